"""Forms of ONNX's GRU that torch's does not have: reversed, and with linear_before_reset = 0."""

import json

import numpy as np
import pytest
from gru_oracle import Oracle, random_codes, random_parts
from recurrent_oracles.exported_c import ARM, COMPILER, QEMU, SANITIZED, build, check_sizes, run_on_board
from recurrent_oracles.exported_c import run as run_program
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import qcore
from qcore._recurrent.chunks import run_in_chunks
from qcore.gru import Calibrator, Config, Direction, Format, GruWeights, QuantGRU, float_cell, verify_golden
from qcore.gru.core import make

T, B, C, H = 12, 4, 6, 10
KERNELS = [row.name for row in qcore.kernels("gru") if row.device == "cpu" and row.available]
PIPELINES, ROUNDINGS = ("staged", "fused"), ("half_away", "half_even")


def directions(sizes=(C,), seed=0, **options):
    rng = np.random.default_rng(seed)
    return [
        [
            Direction(
                rng.normal(0, 0.4, (3 * H, c)),
                rng.normal(0, 0.3, (3 * H, H)),
                rng.normal(0, 0.2, 3 * H),
                rng.normal(0, 0.2, 3 * H),
                **options,
            )
        ]
        for c in sizes
    ]


def inputs(seed=1, steps=T):
    return np.random.default_rng(seed).normal(0, 1, (steps, B, C)).astype(np.float32)


def test_a_reversed_gru_takes_the_steps_from_the_last_to_the_first(tmp_path):
    layers, x = directions((C, H)), inputs()
    turned = np.ascontiguousarray(x[::-1])
    calibrator = Calibrator(GruWeights(layers, reverse=True)).observe(x)
    q, forward = calibrator.finish(), Calibrator(GruWeights(layers)).observe(turned).finish()
    y, last = q(x)
    expected, states = forward(turned)
    np.testing.assert_array_equal(y, expected[::-1])
    np.testing.assert_array_equal(last, states)
    lengths = np.array([12, 0, 5, 1], np.int32)
    short, last = q(x, lengths=lengths)
    for row, length in enumerate(lengths):
        alone, state = q(x[:length, row : row + 1])
        np.testing.assert_array_equal(short[:length, row], alone[:, 0])
        assert not short[length:, row].any() and (last[:, row] == state[:, 0]).all()
    np.testing.assert_array_equal(run_in_chunks(q, x, steps=5)[0], y)
    q.save(tmp_path / "gru")
    loaded = QuantGRU.load(tmp_path / "gru")
    assert loaded.reverse and repr(loaded) == repr(q) and "reverse, " in repr(q)
    np.testing.assert_array_equal(loaded(x)[0], y)
    with pytest.raises(qcore.QcoreValueError, match=r"gru: step\(\) on a reversed GRU, which needs the whole sequence"):
        q.step(x[0])
    with pytest.raises(qcore.QcoreValueError, match="gru trace: the GRU runs from the last step to the first"):
        q.golden(tmp_path / "golden", x)
    with pytest.raises(qcore.QcoreValueError, match="gru search: the weights run from the last step to the first"):
        calibrator.search(10000)
    with pytest.raises(qcore.QcoreValueError, match="gru weights: reverse is True for two directions"):
        GruWeights([[*layers[0], *layers[0]]], reverse=True)


def run(kernel, core, x, h0, parts, *, reverse=False, lengths=None):
    """Return y, last and gates, or None if the kernel does not take the formats."""
    steps, batch, size = *x.shape[:2], parts["sizes"][1]
    y, last = np.full((steps, batch, size), 99, h0.dtype), np.full((batch, size), 99, h0.dtype)
    gates = np.full((steps, batch, 4 * size), -77, np.int32)
    try:
        with qcore.force_kernel("gru", kernel):
            core.run(x, h0, y, last, reverse, lengths, gates, 0)
    except qcore.QcoreError as error:
        assert "linear_before_reset is 0 with numbers of more than 32 bits" in str(error)
        return None
    assert qcore.last_kernel("gru") == kernel
    return y, last, gates


def arrays(rng, c, h, steps, batch, *, wide):
    """Return parameters with linear_before_reset = 0, and codes of x and h0."""
    parts = random_parts(rng, c, h, wide=wide) | {"linear_before_reset": 0}
    x_form, h_form = (Format(*(int(value) for value in row)) for row in parts["formats"][:2])
    return parts, random_codes(rng, x_form, (steps, batch, c)), random_codes(rng, h_form, (batch, h))


def assert_same(found, expected, where):
    for name, got, wanted in zip(("y", "last", "gates"), found, expected, strict=True):
        np.testing.assert_array_equal(got, wanted, err_msg=f"{where}: {name}")


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_reset_before_the_product_has_the_oracles_integers(pipeline, rounding):
    rng = np.random.default_rng(2)
    vectors = 0
    for steps, batch, c, h in [
        (1, 1, 1, 1),
        (3, 2, 5, 3),
        (4, 3, 1, 7),
        (2, 5, 17, 16),
        (1, 1, 3, 70),
        (5, 1, 33, 1),
    ] * 2:
        parts, x, h0 = arrays(rng, c, h, steps, batch, wide=bool(rng.integers(2)))
        core = make(parts, Config(pipeline=pipeline, rounding=rounding))
        oracle = Oracle(parts, pipeline, rounding)
        lengths = rng.integers(0, steps + 1, batch).astype(np.int32) if rng.integers(2) else None
        options = {"reverse": bool(rng.integers(2)), "lengths": lengths}
        expected = oracle.run(x, h0, **options)
        for kernel in KERNELS:
            found = run(kernel, core, x, h0, parts, **options)
            assert found or kernel != "reference"
            if found:
                assert_same(found, expected, f"{kernel}, {parts['formats'].tolist()}")
                vectors += kernel != "reference"
        trace = np.empty((steps, batch, 17 * h), np.int32)
        core.trace(x, h0, False, trace)
        y, _, gates = oracle.run(x, h0)
        np.testing.assert_array_equal(trace[:, :, -h:], y)
        np.testing.assert_array_equal(trace[:, :, 8 * h : 9 * h], gates[:, :, 3 * h :])
    assert vectors or len(KERNELS) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reference"])
def test_large_layers_equal_the_reference(kernel, threads):
    """Batches of every size of a tile, and threads that share rows or the channels of both halves of a step."""
    rng = np.random.default_rng(3)
    before = qcore.get_num_threads()
    qcore.set_num_threads(threads)
    seen = 0
    try:
        for number, (steps, batch, c, h) in enumerate([(3, 19, 30, 130), (5, 2, 128, 256), (70, 1, 9, 300)] * 2):
            parts, x, h0 = arrays(rng, c, h, steps, batch, wide=False)
            core = make(parts, Config(pipeline=PIPELINES[number % 2], rounding=ROUNDINGS[number // 2 % 2]))
            found = run(kernel, core, x, h0, parts, reverse=bool(number % 2))
            if found:
                seen += 1
                assert_same(found, run("reference", core, x, h0, parts, reverse=bool(number % 2)), f"{number}")
    finally:
        qcore.set_num_threads(before)
    assert seen >= 3


def onnx_gru(direction, x):
    """Return y of the definition of ONNX's operator with linear_before_reset = 0."""
    h, outputs = np.zeros((x.shape[1], H)), []
    (wz, wr, wg), (rz, rr, rg) = np.split(direction.w, 3), np.split(direction.r, 3)
    (bz, br, bg), (cz, cr, cg) = np.split(direction.bx, 3), np.split(direction.br, 3)
    for row in x.astype(np.float64):
        z = 1 / (1 + np.exp(-(row @ wz.T + h @ rz.T + bz + cz)))
        r = 1 / (1 + np.exp(-(row @ wr.T + h @ rr.T + br + cr)))
        h = (1 - z) * np.tanh(row @ wg.T + (r * h) @ rg.T + bg + cg) + z * h
        outputs.append(h)
    return np.stack(outputs)


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(("bits", "bound"), [(8, 3e-2), (16, 5e-4)])
def test_close_to_the_float_cell(bits, bound, pipeline):
    ((direction,),) = directions(linear_before_reset=0)
    x = inputs()
    exact = onnx_gru(direction, x)
    np.testing.assert_allclose(float_cell.run(direction, x.astype(np.float64))[0], exact, atol=1e-12)
    calibrator = Calibrator(GruWeights([[direction]])).observe(x)
    q = calibrator.finish(Config(bits=bits, pipeline=pipeline))
    assert q.format("rrh").bits == bits and "linear_before_reset=0" in repr(q)
    assert np.abs(q(x)[0] - exact).max() < bound
    torchs = Calibrator(GruWeights([[Direction(direction.w, direction.r, direction.bx, direction.br)]])).observe(x)
    assert np.abs(torchs.finish(Config(bits=16))(x)[0] - exact).max() > 5e-2  # another cell indeed
    assert calibrator.finish(Config(bits=bits, widths={"rrh": 12})).format("rrh").bits == 12


def test_layers_streaming_and_files(tmp_path):
    layers, x = directions((C, H), linear_before_reset=0), inputs()
    q = Calibrator(GruWeights(layers)).observe(x).finish()
    y, _ = q(x)
    state = None
    for t in range(T):
        out, state = q.step(x[t], state)
        np.testing.assert_array_equal(out, y[t])
    path = tmp_path / "gru"
    q.save(path)
    loaded = QuantGRU.load(path)
    assert loaded.linear_before_reset == 0 and repr(loaded) == repr(q)
    np.testing.assert_array_equal(loaded(x)[0], y)
    with safe_open(path, "numpy") as file:
        description = json.loads(file.metadata()["gru"])
    assert description["flags"] == {"linear_before_reset": [0, 0]}
    data = path.read_bytes()
    path.write_bytes(data.replace(b"[0, 0]", b"[0, 7]"))
    with pytest.raises(qcore.QcoreValueError, match=r"describes linear_before_reset as \[0, 7\], expected 0 or 1"):
        QuantGRU.load(path)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_golden_files_and_reports(pipeline, tmp_path):
    layers = [[*first, *second] for first, second in zip(*(reset_layers(seed) for seed in (0, 1)), strict=True)]
    h0 = np.random.default_rng(2).uniform(-0.9, 0.9, (4, B, H)).astype(np.float32)
    calibrator = Calibrator(GruWeights(layers)).observe(inputs(), h0)
    path = tmp_path / "golden"
    for bits, rounding in ((8, "half_away"), (16, "half_even")):
        q = calibrator.finish(Config(bits=bits, pipeline=pipeline, rounding=rounding))
        q.golden(path, inputs(), h0)
        tensors = 2 * 3 + (11 if pipeline == "staged" else 8)
        assert verify_golden(path).integers == 4 * T * B * H * tensors + T * B * 2 * H + 4 * B * H
    whole = load_file(path)
    np.testing.assert_array_equal(whole["y"], q(whole["0.x"].astype(np.int16), states_of(whole))[0])
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    for name in (*q.cell_type.traced[:3], "rrh", "h"):
        values = whole[f"1.1.{name}"].copy()
        values[3, 1, 2] += 1 if values[3, 1, 2] == values.min() else -1
        save_file(whole | {f"1.1.{name}": values}, tmp_path / "changed", metadata)
        with pytest.raises(qcore.QcoreValueError, match=rf"1\.1\.{name} differs first at step 3, row 1, channel 2: "):
            verify_golden(tmp_path / "changed")
    report = q.report(inputs(), h0)
    assert report.row("rh_g", 1, 1).bits == 16
    for row in report.rows:  # a tensor that was compared with another one would not be close
        assert row.sqnr is None or row.sqnr > 45, row


def reset_layers(seed):
    return directions((C, 2 * H), seed, linear_before_reset=0)


def states_of(golden):
    return np.stack([golden[f"{layer}.{side}.h0"] for layer in range(2) for side in range(2)]).astype(np.int16)


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_exported_c(pipeline, tmp_path):
    calibrator = Calibrator(GruWeights(directions((C, H), linear_before_reset=0))).observe(inputs())
    q = calibrator.finish(Config(bits=8 if pipeline == "staged" else 16, pipeline=pipeline))
    sizes = q.export_c(tmp_path / "net.h", "net")
    assert sizes.multiply_adds == 3 * H * (C + H + 2 * H)
    assert run_program(build(tmp_path / "net_selftest.c", SANITIZED)) == (
        0,
        "net: 2 rows of 24 steps, 480 outputs equal\n",
    )
    rng = np.random.default_rng(7)
    for number, (c, h) in enumerate([(1, 1), (17, 16), (3, 33)]):
        config = Config(pipeline=pipeline, rounding=ROUNDINGS[number % 2])
        parts, x, _ = arrays(rng, c, h, 9, 2, wide=number > 0)
        QuantGRU([[(make(parts, config), parts)]], config).export_c(tmp_path / "net.h", "net", x, tables="exact")
        assert run_program(build(tmp_path / "net_selftest.c", SANITIZED))[0] == 0


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_exported_c_takes_32_bits_where_they_fit(bits, pipeline, tmp_path):
    """The ends of all codes overflow nothing; weights of 4 bits take half a byte, and boards compute the same."""
    config = Config(widths={"weights": 4}, pipeline=pipeline) if bits == 4 else Config(bits=bits, pipeline=pipeline)
    calibrator = Calibrator(GruWeights(directions((C, H), linear_before_reset=0))).observe(inputs())
    q = calibrator.finish(config)
    ends = np.array([-32768, 32767], np.int16) if bits == 16 else np.array([-128, 127], np.int8)
    x = np.random.default_rng(1).choice(ends, (9, 3, C))
    sizes = q.export_c(tmp_path / "net.h", "net", x)
    weight = {4: "uint8_t", 8: "int8_t", 16: "int16_t"}[bits]
    assert f"typedef {weight} net_weight;" in (tmp_path / "net.h").read_text()
    assert f"typedef int{64 if bits == 16 else 32}_t net_wide;" in (tmp_path / "net.h").read_text()
    assert sizes.weights == 3 * H * (C + H + 2 * H) * bits // 8
    said = (0, "net: 3 rows of 9 steps, 270 outputs equal\n")
    assert run_program(build(tmp_path / "net_selftest.c", SANITIZED)) == said
    for cpu in ("cortex-m4", "cortex-m55") if ARM and QEMU and pipeline == "fused" else ():
        assert run_on_board(tmp_path / "net_selftest.c", cpu) == said


@pytest.mark.skipif(ARM is None, reason="needs arm-none-eabi-gcc")
def test_sizes_of_the_exported_c(tmp_path):
    q = Calibrator(GruWeights(directions(linear_before_reset=0))).observe(inputs()).finish()
    check_sizes(tmp_path, q.export_c(tmp_path / "net.h", "net"), "cortex-m4")


def test_what_is_refused(tmp_path):
    ((direction,),) = directions(linear_before_reset=0)
    x = inputs()
    q = Calibrator(GruWeights([[direction]])).observe(x).finish()
    mixed = Calibrator(GruWeights([[direction], *directions((H,))])).observe(x).finish()
    for call in (
        lambda: mixed.golden(tmp_path / "golden", x),
        lambda: mixed.report(x),
        lambda: mixed.export_c(tmp_path / "gru.h"),
    ):
        with pytest.raises(qcore.QcoreValueError, match="gru trace: layers have linear_before_reset 0 and 1, expected"):
            call()
    assert not list(tmp_path.iterdir())
    with pytest.raises(qcore.QcoreValueError, match="gru weights: linear_before_reset is 2, expected 0 or 1"):
        GruWeights.from_arrays(direction.w, direction.r, linear_before_reset=2)
    parts = dict(q._layers[0][0][1])
    parts["formats"] = parts["formats"].copy()
    parts["formats"][5, 1:] = 0
    with pytest.raises(qcore.QcoreValueError, match="gru: format of rrh is unsigned, expected a signed one"):
        make(parts, q.config)
