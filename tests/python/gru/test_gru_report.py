"""Reports: their numbers against plain sums, tables, JSON and pictures."""

import dataclasses
import io
import json
import math
import sys

import numpy as np
import pytest
from rich.console import Console

import qcore
from qcore.gru import Calibrator, Config, Direction, GruWeights, QuantGRU, float_cell
from qcore.gru.trace import trace


def weights(layers=1, directions=1, *, batch_first=False):
    rng = np.random.default_rng(0)

    def direction(c):
        return Direction(rng.normal(0, 0.5, (18, c)), rng.normal(0, 0.4, (18, 6)), rng.normal(0, 0.2, 18), None)

    sizes = [4] + [6 * directions] * (layers - 1)
    return GruWeights([[direction(c) for _ in range(directions)] for c in sizes], batch_first=batch_first)


def inputs(seed=1, scale=1.0):
    return np.random.default_rng(seed).normal(0, scale, (12, 5, 4)).astype(np.float32)


def quantized(config=None, given=None, **shape):
    given = given or weights(**shape)
    x = inputs().transpose(1, 0, 2) if given.batch_first else inputs()
    return Calibrator(given, "minmax").observe(x).finish(config)


def ratio(exact, got):
    return 10 * math.log10(np.square(exact).sum() / np.square(got - exact).sum())


@pytest.mark.parametrize("pipeline", ["staged", "fused"])
def test_numbers_of_the_state_and_the_input(pipeline):
    q, x = quantized(Config(pipeline=pipeline)), inputs(2)
    report = q.report(x)
    exact, _ = float_cell.run(weights().layers[0][0], x.astype(float))
    y = q(x)[0].astype(float)
    row = report.row("h")
    assert (row.bits, len(row.by_step)) == (8, 12)
    assert row.sqnr == pytest.approx(ratio(exact, y))
    assert row.by_step == pytest.approx([ratio(a, b) for a, b in zip(exact, y, strict=True)])
    np.testing.assert_array_equal(report.states[0], exact)
    np.testing.assert_array_equal(report.states[1], y)
    codes = q.format("h").encode(y)
    assert row.used_bits == pytest.approx(math.log2(codes.max() - codes.min() + 1)) and 6 < row.used_bits <= 8
    form = q.format("x")
    decoded = form.decode(form.encode(x))
    assert report.row("x").sqnr == pytest.approx(ratio(x.astype(float), decoded))
    outside = np.rint(np.ldexp(x.astype(float), form.exponent)) + form.zero_point
    assert report.row("x").clip_rate == ((outside < form.lowest) | (outside > form.highest)).mean()
    names = [row.tensor for row in report.rows]
    staged = ["rrh", "old_part", "new_part"] if pipeline == "staged" else []
    assert sorted(names) == sorted(
        [
            "x",
            "weights W",
            "weights R",
            "bx",
            "br",
            "wx",
            "rh",
            "z_pre",
            "z",
            "r_pre",
            "r",
            "rb",
            "g_pre",
            "g",
            "h",
            *staged,
        ]
    )
    assert report.row("br").sqnr is None  # zeros
    assert report.row("weights W").clip_rate == 0 and 30 < report.row("weights W").sqnr < 60


def test_every_tensor_of_16_bits_is_close():
    """A tensor that was compared with another one would not be."""
    for pipeline in ("staged", "fused"):
        for row in quantized(Config(bits=16, pipeline=pipeline), layers=2, directions=2).report(inputs()).rows:
            assert row.sqnr is None or row.sqnr > 60, row
            assert row.clip_rate == 0


def test_clipping_is_counted():
    """Inputs four times as large as those of the calibration leave every format but the gates' own."""
    q, x = quantized(), inputs(3, 4.0)
    report = q.report(x)
    assert report.row("x").clip_rate > 0.2 and report.row("wx").clip_rate > 0
    exact, states = quantized().report(inputs()), report.states
    assert all(row.clip_rate == 0 for row in exact.rows)
    assert states[1].max() <= q.format("h").decode(np.array(127))


def test_clipping_of_a_table_is_counted():
    """z below 1/2 has the exponent 9; sigmoid of what its argument's format has left above 0 does not fit."""
    rng = np.random.default_rng(0)
    bias = np.r_[np.full(6, -0.4), np.zeros(12)]
    given = GruWeights.from_arrays(0.05 * rng.normal(0, 1, (18, 4)), 0.05 * rng.normal(0, 1, (18, 6)), bias)
    q, x = quantized(given=given), inputs(3, 8.0)
    z, pre = q.format("z"), q.format("z_pre")
    assert z.exponent == 9
    argument = pre.decode(trace(q, x)[0][0].tensors["z_pre"])
    above = np.rint(np.ldexp(1 / (1 + np.exp(-argument)), z.exponent)) > z.highest
    assert 0.01 < above.mean() == pytest.approx(q.report(x).row("z").clip_rate)


def test_layers_directions_states_and_batch_first():
    q = quantized(Config(bits=16), layers=2, directions=2, batch_first=True)
    x = inputs(4).transpose(1, 0, 2)
    h0 = np.random.default_rng(5).uniform(-0.5, 0.5, (4, 5, 6)).astype(np.float32)
    report = q.report(x, h0)
    y = q(x, h0)[0].transpose(1, 0, 2)
    np.testing.assert_array_equal(report.states[1], y[:, :, :6])
    assert abs(report.states[0] - y[:, :, :6]).max() < 1e-2
    assert {(row.layer, row.direction) for row in report.rows} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert report.row("h", 1, 1).sqnr > 55
    codes = q.format("x").encode(x).astype(np.int16)
    assert q.report(codes).row("h").sqnr == pytest.approx(q.report(q.format("x").decode(codes)).row("h").sqnr)


def test_loaded_grus_need_the_weights(tmp_path):
    q = quantized()
    q.save(tmp_path / "gru")
    loaded = QuantGRU.load(tmp_path / "gru")
    for call, words in [
        (lambda: loaded.report(inputs()), "gru report: weights is None, expected the GruWeights that were quantized"),
        (lambda: loaded.report(inputs(), weights=3), "gru report: weights is a int, expected GruWeights"),
        (
            lambda: loaded.report(inputs(), weights=weights(2)),
            "weights have C, H, outputs, layers and directions (4, 6, 6, 2, 1), expected (4, 6, 6, 1, 1)",
        ),
        (lambda: loaded.report(inputs()[:, :, :3], weights=weights()), "x has shape [12, 5, 3], expected [T, B, C]"),
        (
            lambda: q.report(inputs()).row("q"),
            "gru report: there is no 'q' of layer 0, direction 0, expected one of x, ",
        ),
    ]:
        with pytest.raises(qcore.QcoreError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
    assert loaded.report(inputs(), weights=weights()) == q.report(inputs())


def test_table_and_json():
    report = quantized(layers=2, directions=2).report(inputs())
    values = json.loads(report.to_json())["rows"]
    assert values == [json.loads(json.dumps(dataclasses.asdict(row))) for row in report.rows]
    stream = io.StringIO()
    Console(file=stream, width=80).print(report.table())
    lines = [line.split() for line in stream.getvalue().splitlines()]
    row = report.row("z_pre", 1, 1)
    steps = [row.by_step[0], row.by_step[6], row.by_step[11]]
    cells = ["1", "<", "z_pre", "16", f"{row.used_bits:.1f}", "0", *(f"{value:.1f}" for value in [row.sqnr, *steps])]
    assert cells in lines


def test_pictures(tmp_path, monkeypatch):
    report = quantized(layers=2, directions=2).report(inputs())
    figure = report.plot(tmp_path / "report.png")
    states, tensors, steps = figure.axes
    assert len(states.lines) == 6 and len(steps.lines) == 4
    channel = report.states[0][:, 0].std(axis=0).argmax()
    for line, drawn in zip(states.lines[:2], report.states, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), drawn[:, 0, channel])
    drawn = {round(bar.get_height(), 6) for bar in tensors.patches}
    assert round(min(row.sqnr for row in report.rows if row.tensor == "h"), 6) in drawn
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"
    report.plot(tmp_path / "report.svg")
    assert "quantized" in (tmp_path / "report.svg").read_text()
    with pytest.raises(qcore.QcoreValueError, match=r"gru plot: path is 'report\.txt', expected a name"):
        report.plot("report.txt")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(qcore.QcoreValueError, match="gru plot: plots need matplotlib: pip install"):
        report.plot()
