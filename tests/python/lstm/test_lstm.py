"""The fixed-point LSTM: every kernel's integers against the oracle; calls, streaming, files, errors."""

import json

import numpy as np
import pytest
from gru_oracle import random_codes
from recurrent_oracles.lstm_oracle import Oracle, random_parts, trace_size

import qcore
from qcore.lstm import Calibrator, Config, Direction, Format, LstmWeights, QuantLSTM, float_cell
from qcore.lstm.core import make

KERNELS = [row.name for row in qcore.kernels("lstm") if row.device == "cpu" and row.available]
ROUNDINGS = ("half_away", "half_even")


def run(kernel, core, x, states, size, forms, *, reverse=False, lengths=None):
    steps, batch, _ = x.shape
    h_form, c_form = forms
    hidden, outputs = size if isinstance(size, tuple) else (size, size)
    y, h = np.full((steps, batch, outputs), 99, h_form.dtype), np.full((batch, outputs), 99, h_form.dtype)
    c = np.full((batch, hidden), 99, c_form.dtype)
    with qcore.force_kernel("lstm", kernel):
        core.run(x, *states, y, h, c, reverse, lengths)
    assert qcore.last_kernel("lstm") == kernel
    return y, h, c


@pytest.mark.parametrize(("projected", "peepholes"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_integers_are_the_oracles(rounding, projected, peepholes):
    rng = np.random.default_rng(1)
    shapes = [(1, 1, 1, 1), (3, 2, 5, 3), (4, 3, 1, 7), (2, 5, 17, 16), (1, 1, 3, 70), (5, 1, 33, 1)]
    for steps, batch, c, h in shapes * (2 if projected or peepholes else 4):
        projection = int(rng.integers(1, 2 * h + 2)) if projected else 0
        parts = random_parts(rng, c, h, wide=bool(rng.integers(2)), projection=projection, peepholes=peepholes)
        core = make(parts, Config(rounding=rounding))
        oracle = Oracle(parts, rounding)
        for index, expected in enumerate(oracle.tables.values()):
            assert core.table(index) == expected.tolist()
        x = random_codes(rng, oracle.f["x"], (steps, batch, c))
        sizes = {"h": projection or h, "c": h}
        states = [
            random_codes(rng, oracle.f[n], (batch, size)) if rng.integers(2) else None for n, size in sizes.items()
        ]
        lengths = rng.integers(0, steps + 1, batch).astype(np.int32) if rng.integers(2) else None
        reverse = bool(rng.integers(2))
        *expected, _ = oracle.run(x, *states, reverse=reverse, lengths=lengths)
        for kernel in KERNELS:
            size, forms = (h, projection or h), (oracle.f["h"], oracle.f["c"])
            found = run(kernel, core, x, states, size, forms, reverse=reverse, lengths=lengths)
            for name, got, wanted in zip(("y", "h", "c"), found, expected, strict=True):
                np.testing.assert_array_equal(got, wanted, err_msg=f"{kernel}: {name} of {parts['formats'].tolist()}")
        trace = np.empty((steps, batch, trace_size(parts)), np.int32)
        core.trace(x, *states, reverse, trace)
        np.testing.assert_array_equal(trace, oracle.run(x, *states, reverse=reverse)[3])


# T, B, C, H: several vectors and slices of channels, batches of every size of a tile, threads by rows and by channels.
# From the third on there is a projection to H / 3, in every third from the first on are peepholes.
LARGE = [(3, 1, 5, 1025), (3, 19, 30, 130), (5, 2, 128, 256), (4, 37, 64, 96), (70, 1, 9, 300), (4, 1, 40, 999)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reference"])
def test_kernels_equal_the_reference(kernel, threads):
    rng = np.random.default_rng(threads)
    before = qcore.get_num_threads()
    qcore.set_num_threads(threads)
    try:
        for number, (steps, batch, c, h) in enumerate(LARGE):
            outputs = h // 3 if number > 1 else h
            given = {"projection": outputs if number > 1 else 0, "peepholes": number % 3 == 0}
            parts = random_parts(rng, c, h, wide=number % 2 == 0, **given)
            core = make(parts, Config(rounding=ROUNDINGS[number // 2 % 2]))
            x_form, *forms = (Format(*(int(value) for value in row)) for row in parts["formats"][:3])
            x = random_codes(rng, x_form, (steps, batch, 2 * c))[:, :, ::2]
            states = [random_codes(rng, form, (batch, size)) for form, size in zip(forms, (outputs, h), strict=True)]
            lengths = rng.integers(0, steps + 1, batch).astype(np.int32) if number % 3 == 1 else None
            options = {"reverse": bool(number % 2), "lengths": lengths}
            expected = run("reference", core, x, states, (h, outputs), forms, **options)
            found = run(kernel, core, x, states, (h, outputs), forms, **options)
            for name, got, wanted in zip(("y", "h", "c"), found, expected, strict=True):
                np.testing.assert_array_equal(got, wanted, err_msg=f"{name} of {(steps, batch, c, h)}")
    finally:
        qcore.set_num_threads(before)


def direction(rng, c, h, projection=0, peepholes=False):
    return Direction(
        rng.normal(0, 0.5, (4 * h, c)),
        rng.normal(0, 0.3, (4 * h, projection or h)),
        rng.normal(0, 0.3, 4 * h),
        rng.normal(0, 0.3, 4 * h),
        projection=rng.normal(0, 0.4, (projection, h)) if projection else None,
        peepholes=rng.normal(0, 0.4, (3, h)) if peepholes else None,
    )


def float_lstm(c=6, h=10, layers=1, directions=1, projection=0, peepholes=False, **options):
    rng = np.random.default_rng(0)
    sizes = [c, *[directions * (projection or h)] * (layers - 1)]
    made = [[direction(rng, size, h, projection, peepholes) for _ in range(directions)] for size in sizes]
    return LstmWeights(made, **options)


def inputs(steps=12, batch=4, c=6, seed=1):
    return np.random.default_rng(seed).normal(0, 1, (steps, batch, c)).astype(np.float32)


def calibrated(config=None, weights=None, **shape):
    return Calibrator(weights or float_lstm()).observe(inputs(40, 8, **shape)).finish(config)


@pytest.mark.parametrize(("projection", "peepholes"), [(0, False), (4, False), (0, True), (4, True)])
@pytest.mark.parametrize(("bits", "bound"), [(8, 3e-2), (16, 1e-3)])
def test_quantized_is_close_to_float(bits, bound, projection, peepholes):
    weights, x = float_lstm(projection=projection, peepholes=peepholes), inputs(40, 8)
    size = projection or 10
    for method in ("minmax", "ema", "percentile", "mse"):
        q = Calibrator(weights, method).observe(inputs(40, 8, seed=2)).finish(Config(bits=bits))
        y, h, c = q(x)
        exact, _, cell = float_cell.run(weights.layers[0][0], x)
        assert (y.shape, h.shape, c.shape) == ((40, 8, size), (1, 8, size), (1, 8, 10)) and y.dtype == np.float32
        error = np.sqrt(np.square(y - exact).mean() / np.square(exact).mean())
        clipping = method in ("ema", "percentile")  # by design: they leave out the largest values
        assert error < (0.15 if clipping else bound), (method, error)
        np.testing.assert_array_equal(h[0], y[-1])
        assert abs(c[0] - cell).max() < (2.0 if clipping else 40 * bound)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_are_rounded_to_codes_and_back(kernel, dtype):
    for bits, projection, peepholes in ((8, 0, False), (16, 19, False), (8, 0, True)):
        weights = float_lstm(21, 35, projection=projection, peepholes=peepholes)
        q = calibrated(Config(bits=bits), weights, c=21)
        x = (3 * inputs(c=21, seed=6)).astype(dtype)  # some beyond what was seen: clipped
        rng = np.random.default_rng(7)
        states = [rng.uniform(-1.5, 1.5, (1, 4, size)).astype(dtype) for size in (projection or 35, 35)]
        forms = q.format("x"), q.format("h"), q.format("c")
        codes, *start = (
            np.asarray(form.encode(array.astype(np.float64)), form.dtype)
            for form, array in zip(forms, (x, *states), strict=True)
        )
        with qcore.force_kernel("lstm", kernel):
            found, expected = q(x, *states), q(codes, *start)
        for got, wanted, form in zip(found, expected, (forms[1], *forms[1:]), strict=True):
            assert got.dtype == dtype and wanted.dtype == form.dtype
            np.testing.assert_array_equal(got, form.decode(wanted).astype(dtype))


@pytest.mark.parametrize(("projection", "peepholes"), [(0, False), (4, False), (4, True)])
@pytest.mark.parametrize(("layers", "directions"), [(2, 1), (1, 2), (3, 2)])
def test_layers_and_directions(layers, directions, projection, peepholes):
    """A stack is its cells one after the other, and its transposed arrays those of batch_first."""
    weights = float_lstm(layers=layers, directions=directions, projection=projection, peepholes=peepholes)
    size = projection or 10
    q = calibrated(weights=weights)
    x = q.format("x").encode(inputs()).astype(np.int8)
    rng = np.random.default_rng(3)
    sizes = {"h": size, "c": 10}
    h0, c0 = (random_codes(rng, q.format(name), (layers * directions, 4, n)) for name, n in sizes.items())
    y, h, c = q(x, h0, c0)
    between = x
    for layer in range(layers):
        outputs = []
        for side in range(directions):
            row = layer * directions + side
            out, last_h, last_c = (
                np.empty(shape, dtype)
                for shape, dtype in (((12, 4, size), np.int8), ((4, size), np.int8), ((4, 10), np.int16))
            )
            core, _ = q._layers[layer][side]
            core.run(between, h0[row], c0[row], out, last_h, last_c, side == 1, None)
            np.testing.assert_array_equal(h[row], last_h)
            np.testing.assert_array_equal(c[row], last_c)
            outputs.append(out)
        between = np.concatenate(outputs, axis=2)
    np.testing.assert_array_equal(y, between)
    first = QuantLSTM(q._layers, q.config, batch_first=True)
    swapped, *states = first(np.ascontiguousarray(x.transpose(1, 0, 2)), h0, c0)
    np.testing.assert_array_equal(swapped, y.transpose(1, 0, 2))
    for got, wanted in zip(states, (h, c), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("projection", "peepholes"), [(0, False), (4, False), (4, True)])
def test_streaming_lengths_and_out(projection, peepholes):
    q = calibrated(weights=float_lstm(layers=2, projection=projection, peepholes=peepholes))
    size = projection or 10
    x = inputs(seed=3)
    y, h, c = q(x)
    state = None
    for t in range(len(x)):
        out, state = q.step(x[t], state)
        np.testing.assert_array_equal(out, y[t])
    assert [array.dtype for array in state] == [np.int8, np.int16]
    np.testing.assert_array_equal(q.format("h", 1).decode(state[0][1]).astype(np.float32), h[1])
    np.testing.assert_array_equal(q.format("c").decode(state[1][0]).astype(np.float32), c[0])
    reset = np.array([True, False, False, True])
    out, _ = q.step(x[0], state, reset=reset)
    np.testing.assert_array_equal(out[reset], y[0][reset])
    assert (out[~reset] != y[0][~reset]).any()
    lengths = np.array([12, 0, 5, 1], np.int32)
    short, h, c = q(x, lengths=lengths)
    for b, length in enumerate(lengths):
        assert (short[length:, b] == 0).all()
        if length:
            alone, h_alone, c_alone = q(x[:length, b : b + 1])
            np.testing.assert_array_equal(short[:length, b], alone[:, 0])
            np.testing.assert_array_equal(h[:, b], h_alone[:, 0])
            np.testing.assert_array_equal(c[:, b], c_alone[:, 0])
    out = np.full((12, 8, size), 7, np.float16)
    assert q(x, out=out[:, ::2])[0].base is out
    np.testing.assert_array_equal(out[:, ::2], y.astype(np.float16))
    assert (out[:, 1::2] == 7).all()


def test_a_reversed_lstm_takes_the_steps_from_the_last_to_the_first(tmp_path):
    layers = float_lstm(layers=2).layers
    x = inputs(seed=3)
    turned = np.ascontiguousarray(x[::-1])
    q = Calibrator(LstmWeights(layers, reverse=True)).observe(x).finish()
    forward = Calibrator(LstmWeights(layers)).observe(turned).finish()
    y, *last = q(x)
    expected, *states = forward(turned)
    np.testing.assert_array_equal(y, expected[::-1])
    np.testing.assert_array_equal(last, states)
    q.save(tmp_path / "lstm")
    loaded = QuantLSTM.load(tmp_path / "lstm")
    assert loaded.reverse and "reverse, " in repr(loaded)
    np.testing.assert_array_equal(loaded(x)[0], y)
    with pytest.raises(
        qcore.QcoreValueError, match=r"lstm: step\(\) on a reversed LSTM, which needs the whole sequence"
    ):
        q.step(x[0])
    with pytest.raises(qcore.QcoreValueError, match="lstm weights: reverse is True for two directions"):
        LstmWeights(float_lstm(directions=2).layers, reverse=True)


@pytest.mark.parametrize("projection", [0, 4])
@pytest.mark.parametrize("config", [Config(), Config(bits=16, tables="interp", widths={"c": 12})])
def test_files(config, projection, tmp_path):
    path = tmp_path / "lstm.safetensors"
    weights = float_lstm(layers=2, directions=2, projection=projection, peepholes=projection > 0, batch_first=True)
    q = calibrated(config, weights)
    q.save(path)
    loaded = QuantLSTM.load(path)
    assert (loaded.config, loaded.batch_first, repr(loaded)) == (config, True, repr(q))
    x = inputs()
    for got, wanted in zip(loaded(x), q(x), strict=True):
        np.testing.assert_array_equal(got, wanted)
    data = bytearray(path.read_bytes())
    path.write_bytes(bytes(data).replace(b"qcore.lstm.2", b"qcore.lstm.1"))
    np.testing.assert_array_equal(QuantLSTM.load(path)(x)[0], q(x)[0])
    path.write_bytes(data[:100])
    with pytest.raises(qcore.QcoreValueError, match="is not an LSTM's safetensors file"):
        QuantLSTM.load(path)
    path.write_bytes(bytes(data).replace(b"qcore.lstm.2", b"qcore.lstm.9"))
    with pytest.raises(qcore.QcoreValueError, match=r"has format .qcore\.lstm\.9., expected .qcore\.lstm\.1."):
        QuantLSTM.load(path)


def test_interpolated_tables_are_near():
    exact, interp = (calibrated(Config(bits=16, tables=kind)) for kind in ("exact", "interp"))
    for index in range(5):
        a, b = (np.array(q._layers[0][0][0].table(index)) for q in (exact, interp))
        assert abs(a - b).max() <= 2 and (np.diff(b) >= 0).all()
    x = inputs()
    assert abs(exact(x)[0] - interp(x)[0]).max() < 1e-3


def test_cell_state_is_kept():
    """With f = 1 and i = 0 nothing of c is lost: no drift."""
    h = 3
    b = np.concatenate([np.full(h, -40.0), np.full(h, 40.0), np.zeros(h), np.zeros(h)])
    weights = LstmWeights.from_arrays(np.zeros((4 * h, 1)), np.zeros((4 * h, h)), b)
    c0 = np.array([[[0.9, -0.4, 0.1]]])
    q = (
        Calibrator(weights)
        .observe(np.ones((2, 1, 1)), None, c0)
        .finish(
            Config(widths={"f": 9})  # of 8 bits, 1.0 would be 255/256
        )
    )
    _, _, c = q(np.ones((3000, 1, 1), np.float32), None, c0.astype(np.float32))
    np.testing.assert_allclose(c, c0, atol=2e-4)


def test_config():
    config = Config(bits=16, widths={"h": 12, "biases": 24}, rounding="half_even", granularity="gate")
    assert Config.from_json(config.to_json()) == config
    assert (config.width("h"), config.width("x"), config.width("biases"), config.width("rh")) == (12, 16, 24, 16)
    projected = calibrated(Config(widths={"m": 11}), float_lstm(projection=4))
    assert repr(projected).startswith("QuantLSTM(6, 10, projected to 4, layers=1, x 8 bits")
    assert (projected.format("m").bits, projected.output_size, projected.hidden_size) == (11, 4, 10)
    peepholes = calibrated(weights=float_lstm(peepholes=True))
    assert repr(peepholes).startswith("QuantLSTM(6, 10, peepholes, layers=1, x 8 bits")
    assert repr(calibrated()) == "QuantLSTM(6, 10, layers=1, x 8 bits, h 8 bits, c 16 bits, weights 8 bits)"
    for text, words in [
        ("{", "lstm config: not JSON"),
        ('{"pipeline": "fused"}', "unknown key 'pipeline', expected some of bits"),
        ('{"bits": 7}', "lstm config: bits is 7, expected 8 or 16"),
        ('{"widths": {"z": 8}}', "widths is 'z', expected names among x, h, c"),
        (json.dumps({"widths": {"c": 17}}), "widths['c'] is 17, expected an integer from 2 to 16"),
    ]:
        with pytest.raises(qcore.QcoreValueError) as caught:
            Config.from_json(text)
        assert words in str(caught.value)


def test_errors():
    q, both, projected = (
        calibrated(weights=float_lstm(**given)) for given in ({}, {"directions": 2}, {"projection": 4})
    )
    x = inputs()
    y, state = q.step(x[0])
    h0 = np.zeros((1, 4, 10), np.float32)
    memory = np.zeros((2, 4, 10), np.float32)
    for call, kind, words in [
        (
            lambda: q(x[:, :, :5]),
            qcore.QcoreValueError,
            r"lstm: x has shape \[12, 4, 5\], expected \[T, B, C\] with C = 6",
        ),
        (lambda: q(x[0]), qcore.QcoreValueError, r"lstm: x has shape \[4, 6\], expected \[T, B, C\]"),
        (lambda: q(x, h0[:, :3]), qcore.QcoreValueError, r"lstm: h0 has shape \[1, 3, 10\], expected \[1, 4, 10\]"),
        (
            lambda: q(x, h0, h0[..., :9]),
            qcore.QcoreValueError,
            r"lstm: c0 has shape \[1, 4, 9\], expected \[1, 4, 10\]",
        ),
        (lambda: q(x, None, h0.astype(np.int8)), qcore.QcoreTypeError, "lstm: c0 has dtype int8, expected int16"),
        (lambda: q(x * np.nan), qcore.QcoreValueError, "lstm: x"),
        (lambda: q(x, None, h0 + np.inf), qcore.QcoreValueError, "lstm: c0"),
        (lambda: q(x, lengths=[13, 1, 1, 1]), qcore.QcoreValueError, r"lstm: lengths\[0\] is 13, expected 0 to T = 12"),
        (lambda: q.step(x[0], y), qcore.QcoreTypeError, r"lstm: state is a ndarray, expected \(h, c\)"),
        (lambda: q.step(x[0], (state[1], state[0])), qcore.QcoreValueError, "lstm: h of state is int16"),
        (lambda: both.step(x[0]), qcore.QcoreValueError, "lstm: step.. on a bidirectional LSTM"),
        (lambda: q.format("z"), qcore.QcoreValueError, "lstm format: name is 'z', expected one of x, h, c"),
        (lambda: Calibrator(float_lstm()).finish(), qcore.QcoreValueError, "lstm calibration: finish.. before any"),
        (lambda: Calibrator(q), qcore.QcoreTypeError, "lstm calibration: weights is a QuantLSTM, expected LstmWeights"),
        (
            lambda: Direction(np.zeros((8, 2)), np.zeros((9, 2))),
            qcore.QcoreValueError,
            r"expected \[4H, C\] and \[4H, H\]",
        ),
        (
            lambda: Direction(np.zeros((8, 2)), np.zeros((8, 2)), peepholes=np.zeros((2, 3))),
            qcore.QcoreValueError,
            r"lstm weights: peepholes has shape \[2, 3\], expected \[3, 2\] of i, f and o",
        ),
        (
            lambda: LstmWeights([*float_lstm(10).layers, *float_lstm(10, peepholes=True).layers]),
            qcore.QcoreValueError,
            "lstm weights: some layers have peepholes, expected all or none of them",
        ),
        (lambda: q.format("m"), qcore.QcoreValueError, "lstm format: name is 'm', expected one of x, h, c"),
        (
            lambda: Direction(np.zeros((8, 2)), np.zeros((8, 3)), projection=np.zeros((2, 2))),
            qcore.QcoreValueError,
            r"w has shape \[8, 2\], r \[8, 3\] and projection \[2, 2\], expected \[4H, C\], \[4H, P\] and \[P, H\]",
        ),
        (
            lambda: projected(x, h0),
            qcore.QcoreValueError,
            r"lstm: h0 has shape \[1, 4, 10\], expected \[1, 4, 4\]",
        ),
        (
            lambda: LstmWeights([*float_lstm(projection=4).layers, *float_lstm(4, projection=3).layers]),
            qcore.QcoreValueError,
            "lstm weights: layer 1 has 3 outputs, expected 4 as in the first layer",
        ),
        (
            lambda: q._stack.run(x, None, None, np.empty((12, 4, 10), np.float32), memory[:1], memory[:1], False, None),
            qcore.QcoreValueError,
            "lstm: h_last overlaps c_last in memory",
        ),
    ]:
        with pytest.raises(kind, match=words):
            call()


def test_impossible_formats_are_refused():
    parts = random_parts(np.random.default_rng(0), 2, 3)
    rows = {name: number for number, name in enumerate(("x", "h", "c"))}
    for name, column, value, words in [
        ("c", 2, 100, "lstm: i . g up to .* is shifted left"),
        ("c", 3, 1, "lstm: format of c has zero point 1, expected 0"),
        ("x", 0, 17, "lstm: format of x has 17 bits, expected 2 to 16"),
    ]:
        formats = parts["formats"].copy()
        formats[rows[name], column] = value
        with pytest.raises(qcore.QcoreValueError, match=words):
            make(parts | {"formats": formats}, Config())
    parts = random_parts(np.random.default_rng(0), 2, 3, projection=2)
    for changed, words in [
        ({"formats": parts["formats"][:-1]}, r"lstm: formats have another shape than \[15, 4\]"),
        ({"projection_exponents": np.zeros(3, np.int32)}, "lstm: projection_exponents has 3 elements, expected 2"),
        (
            {"peepholes": np.zeros(8, np.int16), "peepholes_exponents": np.zeros(3, np.int32)},
            "peepholes has 8 elements",
        ),
        (
            {"peepholes": np.zeros(9, np.int16), "peepholes_exponents": np.zeros(2, np.int32)},
            "exponents has 2 elements",
        ),
        ({"projection": parts["projection"][:, 1:]}, "lstm: projection has 4 elements, expected 6"),
    ]:
        with pytest.raises(qcore.QcoreValueError, match=words):
            make({**parts, **changed}, Config())
