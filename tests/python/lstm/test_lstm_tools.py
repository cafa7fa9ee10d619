"""Traces, golden files, reports and searches of LSTMs; what they share with the GRU's is tested there."""

import math

import numpy as np
import pytest
from recurrent_oracles.lstm_oracle import Oracle
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import qcore
from qcore.lstm import TENSORS, Calibrator, Config, Direction, LstmWeights, QuantLSTM, float_cell, verify_golden
from qcore.lstm.integers import COMPUTED
from qcore.lstm.trace import cell_of, trace

C, H = 5, 7
CONFIGS = {
    "8": Config(),
    "16 interp": Config(bits=16, rounding="half_even", tables="interp"),
    "mixed": Config(widths={"h": 13, "c": 11, "weights": 5, "i_pre": 8, "g": 11, "biases": 20}, rounding="half_even"),
}
FORMS = [(0, False), (3, False), (0, True), (3, True)]
"""Size of the projection, and whether there are peepholes."""


def weights(layers=2, directions=2, *, projection=0, peepholes=False, batch_first=False):
    rng = np.random.default_rng(0)
    outputs = projection or H

    def direction(inputs):
        shapes = (4 * H, inputs), (4 * H, outputs), 4 * H, 4 * H
        return Direction(
            *(rng.normal(0, sigma, shape) for sigma, shape in zip((0.5, 0.4, 0.3, 0.3), shapes, strict=True)),
            projection=rng.normal(0, 0.4, (projection, H)) if projection else None,
            peepholes=rng.normal(0, 0.4, (3, H)) if peepholes else None,
        )

    sizes = [C] + [directions * outputs] * (layers - 1)
    return LstmWeights([[direction(size) for _ in range(directions)] for size in sizes], batch_first=batch_first)


def inputs(steps=6, batch=3, seed=1, scale=1.0):
    return np.random.default_rng(seed).normal(0, scale, (steps, batch, C)).astype(np.float32)


def states(rows=4, batch=3, outputs=H):
    rng = np.random.default_rng(2)
    return [rng.uniform(-0.9, 0.9, (rows, batch, size)).astype(np.float32) for size in (outputs, H)]


def quantized(config=None, given=None):
    given = given or weights()
    initial = states(len(given.layers) * given.directions, outputs=given.output_size)
    return Calibrator(given).observe(inputs(seed=3), *initial).finish(config)


def ratio(exact, got):
    return 10 * math.log10(np.square(exact).sum() / np.square(got - exact).sum())


@pytest.mark.parametrize(("projection", "peepholes"), FORMS)
@pytest.mark.parametrize("rounding", ["half_away", "half_even"])
def test_cell_computes_the_oracles_integers(rounding, projection, peepholes):
    """The cell in NumPy, the trace of the reference and the oracle of the specification agree on a whole sequence."""
    q = quantized(Config(bits=16, rounding=rounding), weights(1, 1, projection=projection, peepholes=peepholes))
    (found,) = trace(q, inputs(), *states(1, outputs=q.output_size))[0]
    oracle = Oracle(q._layers[0][0][1], rounding)
    *_, expected = oracle.run(found.x, *found.states)
    cell = cell_of(q, 0, 0)
    np.testing.assert_array_equal(np.concatenate([found.tensors[name] for name in cell.traced], axis=2), expected)
    h, c = found.states
    for t, x in enumerate(found.x):
        codes = cell.step(x, [h, c])
        last = ("m", "h") if projection else ("h",)
        assert tuple(codes) == (*COMPUTED[:-1], *last) == cell.tensors
        for name, values in codes.items():
            np.testing.assert_array_equal(values, found.tensors[name][t], err_msg=f"{name} of step {t}")
        h, c = codes["h"], codes["c"]


def rewritten(path, tensors):
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    changed = path.with_suffix(".changed")
    save_file(tensors, changed, metadata)
    return changed


@pytest.mark.parametrize(("projection", "peepholes"), FORMS)
@pytest.mark.parametrize("name", CONFIGS)
def test_golden_files(name, projection, peepholes, tmp_path):
    path = tmp_path / "golden"
    q = quantized(CONFIGS[name], weights(projection=projection, peepholes=peepholes))
    q.golden(path, inputs(), *states(outputs=q.output_size))
    check = verify_golden(path)
    assert str(check) == f"2 layers of 2 directions, 6 steps: {check.integers:,} integers equal"
    tensors, outputs = (2 * 4 + 11, projection) if projection else (2 * 4 + 10, H)
    assert check.integers == 4 * 6 * 3 * (H * tensors + outputs) + 6 * 3 * 2 * outputs + 4 * 3 * (outputs + H)
    stored = load_file(path)
    codes = [stored["0.x"].astype(q.format("x").dtype)]
    for state in ("h", "c"):
        each = [stored[f"{layer}.{side}.{state}0"] for layer in range(2) for side in range(2)]
        codes.append(np.stack(each).astype(q.format(state).dtype))
    if q.format("h").dtype == q.format("h", 1).dtype:
        for result, wanted in zip(("y", "last_h", "last_c"), q(*codes), strict=True):
            np.testing.assert_array_equal(stored[result], wanted)


@pytest.mark.parametrize(("projection", "peepholes"), FORMS[1:])
def test_one_changed_number_of_a_golden_file_is_named(projection, peepholes, tmp_path):
    path = tmp_path / "golden"
    q = quantized(CONFIGS["mixed"], weights(projection=projection, peepholes=peepholes))
    q.golden(path, inputs(), *states(outputs=q.output_size))
    whole = load_file(path)
    rng = np.random.default_rng(4)
    steps = [f"0.1.{name}" for name in q.cell_type.traced]
    for tensor in [*steps, "y", "last_h", "last_c"]:
        values = whole[tensor].copy()
        index = tuple(int(rng.integers(size)) for size in values.shape)
        values[index] += 1 if values[index] == values.min() else -1
        first = "layer and direction" if tensor.startswith("last") else "step"
        place = f"{tensor} differs first at {first} {index[0]}, row {index[1]}, channel {index[2]}: "
        with pytest.raises(qcore.QcoreValueError) as caught:
            verify_golden(rewritten(path, whole | {tensor: values}))
        said = f"the file has {values[index]}, the definition gives {whole[tensor][index]}"
        assert place + said in str(caught.value), str(caught.value)
    formats = whole["0.0.formats"].copy()
    formats[TENSORS.index("c"), 3] = 1
    for words, changed in [
        ("has no tensor 0.0.c_tanh", {key: value for key, value in whole.items() if key != "0.0.c_tanh"}),
        ("0.0.formats of c is [11, 1,", whole | {"0.0.formats": formats}),
        ("0.0.options has shape [4], expected [5]", whole | {"0.0.options": whole["0.0.options"][1:].copy()}),
    ]:
        with pytest.raises(qcore.QcoreValueError) as caught:
            verify_golden(rewritten(path, changed))
        assert words in str(caught.value) and str(caught.value).startswith("lstm golden: "), str(caught.value)
    save_file(whole, tmp_path / "other", {"format": "qcore.gru.golden.1"})
    with pytest.raises(qcore.QcoreValueError, match=r"has format 'qcore\.gru\.golden\.1', expected 'qcore\.lstm"):
        verify_golden(tmp_path / "other")


def test_report(tmp_path):
    given = weights(1, 1)
    q, x = Calibrator(given, "minmax").observe(inputs(12)).finish(), inputs(12, seed=2)
    report = q.report(x)
    exact, _, _ = float_cell.run(given.layers[0][0], x.astype(float))
    y = q(x)[0].astype(float)
    row = report.row("h")
    assert row.bits == 8 and row.sqnr == pytest.approx(ratio(exact, y))
    assert row.by_step == pytest.approx([ratio(a, b) for a, b in zip(exact, y, strict=True)])
    np.testing.assert_array_equal(report.states[1], y)
    assert [row.tensor for row in report.rows] == ["x", "weights W", "weights R", "b", *COMPUTED]
    assert report.row("c").bits == 16 and report.row("c_tanh").sqnr > 20
    far = q.report(inputs(12, seed=3, scale=5.0))
    assert far.row("x").clip_rate > 0.2 and far.row("wx").clip_rate > 0 and far.row("weights R").clip_rate == 0
    q.save(tmp_path / "lstm")
    loaded = QuantLSTM.load(tmp_path / "lstm")
    assert loaded.report(x, weights=given) == report
    for call, words in [
        (lambda: loaded.report(x), "lstm report: weights is None, expected the LstmWeights that were quantized"),
        (lambda: loaded.report(x, weights=3), "lstm report: weights is a int, expected LstmWeights"),
        (lambda: q.report(x, c0=states(2)[1]), "lstm: c0 has shape [2, 3, 7], expected [1, 3, 7]"),
        (lambda: report.row("z"), "lstm report: there is no 'z' of layer 0, direction 0, expected one of x, "),
    ]:
        with pytest.raises(qcore.QcoreError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(("projection", "peepholes"), FORMS)
def test_every_tensor_of_16_bits_is_close(projection, peepholes):
    """A tensor that was compared with another one, or from other states, would not be."""
    given = weights(projection=projection, peepholes=peepholes, batch_first=True)
    initial = states(outputs=given.output_size)
    x = inputs().transpose(1, 0, 2)
    q = Calibrator(given).observe(x, *initial).finish(Config(bits=16))  # what a projection gives has no bound
    report = q.report(x, *initial)
    assert len(report.rows) == 1 + 4 * (3 + len(COMPUTED)) + (8 if projection else 0) + 4 * peepholes
    for row in report.rows:
        assert row.sqnr is None or row.sqnr > 50, row
    outputs = q(x, *initial)[0].transpose(1, 0, 2)[:, :, : q.output_size]
    np.testing.assert_array_equal(report.states[1], outputs)


def test_search():
    given = weights()
    x, (h0, c0) = inputs(8), states()
    calibrator = Calibrator(given).observe(inputs(seed=3), *states())
    search = calibrator.search(10**6, x, h0, c0, least_gain=0.2)
    chosen = [trial for trial in search.tried if trial.chosen]
    assert len(chosen) > 1 and search.error < 0.8 * search.tried[0].error
    assert (chosen[-1].widths, chosen[-1].error) == (search.config.widths, search.error)
    exact = given._outputs(x.astype(float), [h0, c0])
    y = calibrator.finish(search.config)(x, h0, c0)[0].astype(float)
    assert search.error == pytest.approx(np.square(y - exact).mean())
    matrices = 2 * 4 * H * (C + H) + 2 * 4 * H * (2 * H + H)
    narrow = matrices + 2 * 4 * 4 * H
    limited = calibrator.search(narrow + 2 * 4 * H * 3, state_rows=2)  # h of 1 byte, c of 2
    assert limited.tried[0].size == narrow + 2 * 4 * H * 3 == limited.size and "h" not in limited.config.widths
    projected = weights(projection=3)
    found = Calibrator(projected).observe(inputs(seed=3), *states(outputs=3)).search(10**6, state_rows=2)
    matrices = 2 * (4 * H * (C + 3) + 3 * H) + 2 * (4 * H * (6 + 3) + 3 * H)
    assert found.tried[0].size == matrices + 2 * 4 * 4 * H + 2 * 4 * (3 + 2 * H)
    assert {"m"} < {trial.tensor for trial in found.tried} and "m" not in {trial.tensor for trial in search.tried}
    for call, words in [
        (lambda: calibrator.search(narrow - 1), f"lstm search: budget is {narrow - 1} bytes, expected at least the"),
        (lambda: calibrator.search(10**6, x, h0, c0[:2]), "lstm calibration: c0 has shape [2, 3, 7], expected [4, 3"),
        (lambda: Calibrator(given).search(10), "lstm search: search() before any observe(x)"),
    ]:
        with pytest.raises(qcore.QcoreValueError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
