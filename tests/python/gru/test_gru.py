"""The fixed-point GRU: every kernel's integers against the oracle; calls, streaming, calibration, errors."""

import json

import numpy as np
import pytest
from gru_oracle import Oracle, random_codes, random_parts, shifted
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

import qcore
from qcore._recurrent.formats import choose_format
from qcore._recurrent.ranges import Range
from qcore.gru import Calibrator, Config, Direction, Format, GruWeights, QuantGRU, float_cell
from qcore.gru.core import make

KERNELS = [row.name for row in qcore.kernels("gru") if row.device == "cpu" and row.available]
PIPELINES, ROUNDINGS = ("staged", "fused"), ("half_away", "half_even")


def run(kernel, core, x, h0, size, h_form, **options):
    steps, batch, _ = x.shape
    y, last = np.full((steps, batch, size), 99, h_form.dtype), np.full((batch, size), 99, h_form.dtype)
    gates = np.full((steps, batch, 4 * size), -77, np.int32)
    with qcore.force_kernel("gru", kernel):
        core.run(x, h0, y, last, options.get("reverse", False), options.get("lengths"), gates, 0)
    if batch:
        assert qcore.last_kernel("gru") == kernel
    return y, last, gates


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_integers_are_the_oracles(pipeline, rounding):
    rng = np.random.default_rng(1)
    shapes = [(1, 1, 1, 1), (3, 2, 5, 3), (4, 3, 1, 7), (2, 5, 17, 16), (1, 1, 3, 70), (5, 1, 33, 1)]
    for steps, batch, c, h in shapes * 4:
        parts = random_parts(rng, c, h, wide=bool(rng.integers(2)))
        core = make(parts, Config(pipeline=pipeline, rounding=rounding))
        oracle = Oracle(parts, pipeline, rounding)
        for gate in range(3):
            assert core.table(gate) == oracle.tables[gate].tolist()
        x = random_codes(rng, oracle.f["x"], (steps, batch, c))
        h0 = random_codes(rng, oracle.f["h"], (batch, h)) if rng.integers(2) else None
        lengths = rng.integers(0, steps + 1, batch).astype(np.int32) if rng.integers(2) else None
        reverse = bool(rng.integers(2))
        expected = oracle.run(x, h0, reverse=reverse, lengths=lengths)
        for kernel in KERNELS:
            found = run(kernel, core, x, h0, h, oracle.f["h"], reverse=reverse, lengths=lengths)
            for name, got, wanted in zip(("y", "last", "gates"), found, expected, strict=True):
                np.testing.assert_array_equal(got, wanted, err_msg=f"{kernel}: {name} of {parts['formats'].tolist()}")


# T, B, C, H: several vectors and slices of channels, batches of every size of a tile, threads by rows and by channels.
LARGE = [(3, 1, 5, 1025), (2, 3, 1025, 40), (3, 19, 30, 130), (5, 2, 128, 256), (4, 37, 64, 192), (70, 1, 9, 300)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reference"])
def test_kernels_equal_the_reference(kernel, threads):
    rng = np.random.default_rng(threads)
    before = qcore.get_num_threads()
    qcore.set_num_threads(threads)
    try:
        for number, (steps, batch, c, h) in enumerate(LARGE):
            parts = random_parts(rng, c, h, wide=number % 2 == 0)
            core = make(parts, Config(pipeline=PIPELINES[number // 2 % 2], rounding=ROUNDINGS[number // 3 % 2]))
            x_form, h_form = (Format(*(int(value) for value in row)) for row in parts["formats"][:2])
            x = random_codes(rng, x_form, (steps, batch, 2 * c))[:, :, ::2]
            h0 = random_codes(rng, h_form, (batch, h))
            lengths = rng.integers(0, steps + 1, batch).astype(np.int32) if number % 3 == 1 else None
            options = {"reverse": bool(number % 2), "lengths": lengths}
            expected = run("reference", core, x, h0, h, h_form, **options)
            for name, got, wanted in zip(
                ("y", "last", "gates"), run(kernel, core, x, h0, h, h_form, **options), expected, strict=True
            ):
                np.testing.assert_array_equal(got, wanted, err_msg=f"{name} of {(steps, batch, c, h)}")
    finally:
        qcore.set_num_threads(before)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_are_rounded_to_codes_and_back(kernel, dtype):
    """Floats in and out are quantize_fixed, codes, dequantize_fixed; strides and the memory around stay."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for bits in (8, 16):
        q = Calibrator(float_gru(c=21, h=35)).observe(inputs(c=21), np.full((1, 4, 35), 0.9)).finish(Config(bits=bits))
        x = (3 * inputs(c=21, seed=6)).astype(kind)  # some beyond what was seen: clipped
        h0 = np.random.default_rng(7).uniform(-1.5, 1.5, (1, 4, 35)).astype(kind)
        codes = np.asarray(q.format("x").encode(x.astype(np.float64)), q.format("x").dtype)
        start = np.asarray(q.format("h").encode(h0.astype(np.float64)), q.format("h").dtype)
        with qcore.force_kernel("gru", kernel):
            y, last = q(x, h0)
            expected, end = q(codes, start)
            spaced = np.full((12, 4, 42), 7, kind)[:, :, ::2]
            spaced[...] = x
            again, _ = q(spaced, h0)
        assert y.dtype == kind and last.dtype == kind
        decode = q.format("h").decode
        np.testing.assert_array_equal(y.astype(np.float32), decode(expected).astype(kind).astype(np.float32))
        np.testing.assert_array_equal(last.astype(np.float32), decode(end).astype(kind).astype(np.float32))
        np.testing.assert_array_equal(again.astype(np.float32), y.astype(np.float32))


@given(st.integers(-(2**60), 2**60), st.integers(1, 61))
def test_shifts_of_the_oracle(value, bits):
    """The oracle's own shifts against exact fractions."""
    from fractions import Fraction

    exact = Fraction(value, 1 << bits)
    assert shifted(value, bits, "half_even") == round(exact)
    away = int(abs(exact) + Fraction(1, 2))
    assert shifted(value, bits, "half_away") == (away if value >= 0 else -away)


def float_gru(c=6, h=10, seed=0):
    rng = np.random.default_rng(seed)
    return GruWeights.from_arrays(
        rng.normal(0, 0.5, (3 * h, c)),
        rng.normal(0, 0.3, (3 * h, h)),
        rng.normal(0, 0.3, 3 * h),
        rng.normal(0, 0.3, 3 * h),
    )


def inputs(steps=12, batch=4, c=6, seed=1):
    return np.random.default_rng(seed).normal(0, 1, (steps, batch, c)).astype(np.float32)


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(("bits", "bound"), [(8, 3e-2), (16, 5e-4)])
def test_quantized_is_close_to_float(bits, bound, pipeline):
    weights, x = float_gru(), inputs(40, 8)
    for method in ("minmax", "ema", "percentile", "mse"):
        q = Calibrator(weights, method).observe(inputs(40, 8, seed=2)).finish(Config(bits=bits, pipeline=pipeline))
        y, last = q(x)
        exact, state = float_cell.run(weights.layers[0][0], x)
        assert y.shape == (40, 8, 10) and last.shape == (1, 8, 10) and y.dtype == np.float32
        error = np.sqrt(np.square(y - exact).mean() / np.square(exact).mean())
        clipping = method in ("ema", "percentile")  # by design: they leave out the largest values
        assert error < (0.1 if clipping else bound), (method, error)
        np.testing.assert_array_equal(last[0], y[-1])
        assert abs(last[0] - state).max() < (0.5 if clipping else 20 * bound)


def test_nothing_is_rounded_to_a_finer_scale_than_it_is_added_at():
    for bits in (8, 16):
        q = Calibrator(float_gru()).observe(inputs()).finish(Config(bits=bits))
        for name, target in (("rrh", "g_pre"), ("old_part", "h"), ("new_part", "h")):
            assert q.format(name).exponent <= q.format(target).exponent


def test_mse_clips_narrow_tensors_only():
    values = np.append(np.random.default_rng(0).normal(0, 0.1, 100_000), [-3.0, 3.0])
    seen = {method: Range(method) for method in ("mse", "minmax")}
    for each in seen.values():
        each.observe(values)
    narrow, wide = ({name: each.format(bits, "cover") for name, each in seen.items()} for bits in (8, 16))
    assert wide["mse"] == wide["minmax"]
    assert narrow["mse"].exponent > narrow["minmax"].exponent
    errors = {name: np.square(form.decode(form.encode(values)) - values).sum() for name, form in narrow.items()}
    assert errors["mse"] < errors["minmax"]


def test_state_dicts():
    rng = np.random.default_rng(0)
    arrays = {}
    for layer, c in ((0, 3), (1, 8)):
        for end in ("", "_reverse"):
            arrays[f"weight_ih_l{layer}{end}"] = rng.normal(0, 1, (12, c))
            arrays[f"weight_hh_l{layer}{end}"] = rng.normal(0, 1, (12, 4))
            arrays[f"bias_hh_l{layer}{end}"] = rng.normal(0, 1, 12)
    weights = GruWeights.from_state_dict(arrays, batch_first=True)
    assert (len(weights.layers), weights.directions, weights.batch_first) == (2, 2, True)
    last = weights.layers[1][1]
    r, z, n = np.split(arrays["weight_ih_l1_reverse"], 3)
    np.testing.assert_array_equal(last.w, np.concatenate([z, r, n]))
    assert not last.bx.any() and last.br.any()
    for change, words in [
        ({"weight_hh_l1": None}, "there is no weight_hh_l1"),
        ({"weight_ih_l0": None}, "there is no weight_ih_l0"),
        ({"weight_hh_l3": np.zeros((12, 4))}, "there is weight_hh_l3, expected only"),
        ({"weight_ih_l0": np.zeros((11, 3))}, "weight_ih_l0 has shape [11, 3], expected 3H rows"),
        ({"bias_hh_l0": np.full(12, np.nan)}, "bias_hh_l0 has nan"),
    ]:
        changed_arrays = {name: array for name, array in (arrays | change).items() if array is not None}
        with pytest.raises(qcore.QcoreValueError) as caught:
            GruWeights.from_state_dict(changed_arrays)
        assert words in str(caught.value) and str(caught.value).startswith("gru weights: ")


def test_codes_in_codes_out_and_streaming():
    q = Calibrator(float_gru()).observe(inputs()).finish()
    x = inputs(seed=3)
    form = q.format("x")
    codes = form.encode(x).astype(form.dtype)
    y, last = q(codes)
    assert y.dtype == np.int8 and last.dtype == np.int8
    floats, _ = q(x)
    np.testing.assert_array_equal(floats, q.format("h").decode(y).astype(np.float32))
    state = None
    for t in range(len(x)):
        out, state = q.step(x[t], state)
        np.testing.assert_array_equal(out, floats[t])
    np.testing.assert_array_equal(state, last)
    reset = np.array([True, False, False, True])
    out, _ = q.step(x[0], state, reset=reset)
    np.testing.assert_array_equal(out[reset], floats[0][reset])
    assert (out[~reset] != floats[0][~reset]).any()


def test_out_and_gates():
    q = Calibrator(float_gru()).observe(inputs()).finish(Config(pipeline="fused"))
    x = inputs(seed=3)
    y, last, gates = q(x, gates=True)
    assert gates.dtype == np.int32 and gates.shape == (1, 12, 4, 40)
    assert y.ctypes.data % 64 == 0 and last.ctypes.data % 64 == 0
    z = q.format("z").decode(gates[0, :, :, :10])
    assert z.min() >= 0 and z.max() <= 1 and z.std() > 0.05
    out = np.full((12, 8, 10), 7, np.float16)
    returned, _ = q(x, out=out[:, ::2])
    assert returned.base is out
    np.testing.assert_array_equal(out[:, ::2], y.astype(np.float16))
    assert (out[:, 1::2] == 7).all()
    single = np.empty((4, 10), np.float32)
    returned, state = q.step(x[0], out=single)
    assert returned is single
    np.testing.assert_array_equal(single, y[0])
    again, _ = q.step(x[1], state)
    np.testing.assert_array_equal(again, y[1])
    with pytest.raises(qcore.QcoreValueError, match=r"gru: out has shape \[12, 4, 9\], expected \[12, 4, 10\]"):
        q(x, out=np.empty((12, 4, 9), np.float32))
    memory = np.zeros((12, 4, 14), np.float32)
    with pytest.raises(qcore.QcoreValueError, match="gru: out overlaps x in memory"):
        q(memory[:, :, :6], out=memory[:, :, 4:])


def test_lengths_and_initial_states():
    q = Calibrator(float_gru()).observe(inputs(), np.full((1, 4, 10), 0.9)).finish()
    x = inputs(seed=4)
    lengths = np.array([12, 0, 5, 1], np.int32)
    h0 = np.random.default_rng(5).uniform(-0.8, 0.8, (1, 4, 10)).astype(np.float32)
    y, last = q(x, h0, lengths=lengths)
    for b, length in enumerate(lengths):
        assert (y[length:, b] == 0).all()
        if length:
            alone, end = q(x[:length, b : b + 1], h0[:, b : b + 1])
            np.testing.assert_array_equal(y[:length, b], alone[:, 0])
            np.testing.assert_array_equal(last[:, b], end[:, 0])
    form = q.format("h")
    np.testing.assert_array_equal(last[0, 1], form.decode(form.encode(h0[0, 1])).astype(np.float32))


@pytest.mark.parametrize("directions", [1, 2])
def test_ema_averages_x_and_h_over_steps_and_batches(directions):
    """min = 0.9 * min + 0.1 * the step's, from the first step on and on through all batches; other tensors don't."""
    weights = two_layers() if directions == 2 else float_gru()
    batches = [inputs(7, 3, seed=1), 3 * inputs(4, 2, seed=2)]
    calibrator = Calibrator(weights, "ema")
    lows, highs, largest = {}, {}, 0.0

    def step(name, values):
        low, high = values.min(), values.max()
        lows[name] = 0.9 * lows[name] + 0.1 * low if name in lows else low
        highs[name] = 0.9 * highs[name] + 0.1 * high if name in highs else high

    for x in batches:
        calibrator.observe(x.transpose(1, 0, 2) if directions == 2 else x)
        for side, direction in enumerate(weights.layers[0]):
            y, _ = float_cell.run(direction, x.astype(float), reverse=side == 1)
            for t in range(len(x) - 1, -1, -1) if side else range(len(x)):
                step(("x", side), x[t])
                step(("h", side), y[t])
            if side == 0:
                largest = max(largest, (x.astype(float) @ direction.w.T).max())
    config = Config(bits=8, rule="cover")
    formats = {}
    for name in ("x", "h"):
        low = min(lows[name, side] for side in range(directions))
        high = max(highs[name, side] for side in range(directions))
        formats[name] = choose_format(low, high, 8)
    q = calibrator.finish(config)
    assert {name: q.format(name) for name in formats} == formats
    wx = q.format("wx")
    assert wx.decode(np.array(wx.highest)) >= largest


def test_ema_of_a_given_state_counts_it_as_a_step():
    x, h0 = np.zeros((1, 1, 6), np.float32), np.full((1, 1, 10), 0.9)
    zero = GruWeights.from_arrays(np.zeros((30, 6)), np.zeros((30, 10)), np.r_[np.full(10, -40.0), np.zeros(20)])
    given, absent = (Calibrator(zero, "ema").observe(x, state)._ranges[0][0]["h"].bounds() for state in (h0, None))
    assert given == pytest.approx((0.9 * 0.9, 0.9 * 0.9)) and absent == (0.0, 0.0)


def test_config():
    config = Config(bits=16, widths={"h": 12, "biases": 24}, pipeline="fused", rounding="half_even", granularity="gate")
    assert Config.from_json(config.to_json()) == config
    assert (config.width("h"), config.width("x"), config.width("biases"), config.width("rb")) == (12, 16, 24, 16)
    q = Calibrator(float_gru()).observe(inputs()).finish(config)
    assert q.format("h").bits == 12
    assert repr(q) == "QuantGRU(6, 10, layers=1, x 16 bits, h 12 bits, weights 16 bits, fused)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "gru config: not JSON"),
        ("[]", "the JSON is a list, expected an object"),
        ('{"bit": 8}', "unknown key 'bit', expected some of bits"),
        ('{"bits": 7}', "bits is 7, expected 8 or 16"),
        ('{"pipeline": "fast"}', "pipeline is 'fast', expected 'staged' or 'fused'"),
        ('{"widths": {"q": 8}}', "widths is 'q', expected names among x, h"),
        ('{"widths": {"h": 17}}', "widths['h'] is 17, expected an integer from 2 to 16"),
        ('{"widths": 8}', "widths is 8, expected a mapping"),
    ],
)
def test_bad_configs(text, words):
    with pytest.raises(qcore.QcoreValueError) as caught:
        Config.from_json(text)
    assert words in str(caught.value)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["h", "weights", "q"]), inner),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("c",), "gru format: name is 'c', expected one of x, h, wx,"),
        (("h", 1), "gru format: layer is 1 and direction 0, expected a layer below 1 and a direction below 1"),
        (("h", 0, -1), "gru format: layer is 0 and direction -1, expected a layer below 1 and a direction below 1"),
    ],
)
def test_formats_that_are_not_there(arguments, text):
    weights = GruWeights.from_arrays(np.ones((24, 4)), np.ones((24, 8)))
    gru = Calibrator(weights).observe(np.ones((5, 1, 4))).finish()
    with pytest.raises(qcore.QcoreValueError) as caught:
        gru.format(*arguments)
    assert str(caught.value).startswith(text)


@given(st.dictionaries(st.sampled_from([*json.loads(Config().to_json()), "bit"]), ANY_JSON))
def test_any_json_is_a_config_or_an_error_that_names_a_key(values):
    try:
        config = Config.from_json(json.dumps(values))
    except qcore.QcoreValueError as error:
        assert str(error).startswith("gru config: ") and any(key in str(error) for key in values)
    else:
        assert Config.from_json(config.to_json()) == config


def bad_parts(**changes):
    parts = random_parts(np.random.default_rng(7), 2, 3)
    for key, value in changes.items():
        parts[key] = value(parts[key].copy()) if callable(value) else value
    return parts


def changed(index, value):
    def change(array):
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": (0, 3)}, "input_size is 0, expected 1 to"),
        ({"w": np.zeros(5, np.int16)}, "w has 5 elements, expected 18"),
        ({"weight_bits": 1}, "weight_bits is 1, expected 2 to 16"),
        ({"bias_bits": 33}, "bias_bits is 33, expected 2 to 32"),
        ({"weight_bits": 2, "w": changed((0, 0), 5)}, "w[0] is 5, expected a code of 2 bits"),
        ({"formats": changed((0, 0), 17)}, "format of x has 17 bits, expected 2 to 16"),
        ({"formats": changed((1, 3), 70000)}, "format of h has zero point 70000"),
        ({"formats": changed((9, 2), 31)}, "format of z has exponent 31, expected 0 to 30"),
        ({"formats": changed((11, 3), 1)}, "format of g has zero point 1, expected 0"),
        ({"formats": changed((6, 2), 100)}, "is shifted left by"),
        ({"formats": changed((6, 2), -100)}, "is shifted right by"),
        ({"w_exponents": changed(0, 127)}, "w_exponents[0] is 127, expected -126 to 126"),
    ],
)
def test_unsafe_parameters(changes, words):
    with pytest.raises(qcore.QcoreValueError) as caught:
        make(bad_parts(**changes), Config())
    assert words in str(caught.value) and str(caught.value).startswith("gru: ")


def test_bad_calls():
    weights = float_gru()
    q = Calibrator(weights).observe(inputs()).finish()
    nan = inputs()
    nan[3, 1, 2] = np.nan
    for call, error, words in [
        (lambda: q(inputs(c=5)), ValueError, "gru: x has shape [12, 4, 5], expected [T, B, C] with C = 6"),
        (
            lambda: q(nan),
            ValueError,
            "gru: x holds a NaN or an infinity, the first at index [3, 1, 2], expected finite values",
        ),
        (lambda: q(inputs().astype(np.int32)), TypeError, "int32"),
        (
            lambda: q(inputs(), np.zeros((1, 3, 10), np.float32)),
            ValueError,
            "h0 has shape [1, 3, 10], expected [1, 4, 10]",
        ),
        (lambda: q(inputs(), lengths=[13, 1, 1, 1]), ValueError, "gru: lengths[0] is 13, expected 0 to T = 12"),
        (lambda: q(inputs(), lengths=[1, 1]), ValueError, "gru: lengths has shape [2], expected [4]"),
        (
            lambda: q.step(inputs()[0], np.zeros((1, 4, 9), np.int8)),
            ValueError,
            "state is int8 [1, 4, 9], expected int8",
        ),
        (lambda: q.step(inputs()[0], reset=[1, 0, 0, 0]), ValueError, "reset is int64 [4], expected bool [4]"),
        (lambda: Calibrator(weights, "max"), ValueError, "method is 'max', expected one of 'minmax'"),
        (lambda: Calibrator(weights).finish(), ValueError, "finish() before any observe(x)"),
        (lambda: Calibrator(weights).observe(nan), ValueError, "gru calibration: x has nan at index [3, 1, 2]"),
        (lambda: Calibrator(3), TypeError, "weights is a int, expected GruWeights"),
        (
            lambda: GruWeights.from_arrays(np.zeros((9, 2)), np.zeros((9, 4))),
            ValueError,
            "w has shape [9, 2] and r [9, 4]",
        ),
        (lambda: GruWeights.from_torch(3), TypeError, "gru is a int, expected a torch.nn.GRU"),
    ]:
        with pytest.raises(error) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
        assert isinstance(caught.value, qcore.QcoreError)


def two_layers():
    rng = np.random.default_rng(3)
    sizes = [(6, 10), (20, 10)]
    layers = [
        [
            Direction(rng.normal(0, 0.5, (30, c)), rng.normal(0, 0.3, (30, h)), None, rng.normal(0, 0.1, 30))
            for _ in "fb"
        ]
        for c, h in sizes
    ]
    return GruWeights(layers, batch_first=True)


def test_files(tmp_path):
    path = tmp_path / "gru.safetensors"
    q = Calibrator(two_layers()).observe(inputs()).finish(Config(bits=16, widths={"h": 12}, pipeline="fused"))
    q.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["gru.safetensors"]
    again = QuantGRU.load(path)
    assert repr(again) == repr(q) and again.config == q.config and again.batch_first
    for got, wanted in zip(again(inputs(seed=9)), q(inputs(seed=9)), strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(FileNotFoundError):
        QuantGRU.load(tmp_path / "none")


def test_files_have_a_byte_for_a_weight_of_up_to_eight_bits(tmp_path):
    """Earlier ones have two, and are read."""
    from safetensors.numpy import load_file, save_file

    for bits, dtype in ((5, "int8"), (8, "int8"), (9, "int16")):
        q = Calibrator(two_layers()).observe(inputs()).finish(Config(widths={"weights": bits}))
        path, earlier = tmp_path / f"{bits}", tmp_path / "earlier"
        q.save(path)
        tensors = load_file(path)
        weights = {name: tensors[name] for name in tensors if name.endswith((".w", ".r"))}
        assert len(weights) == 2 * q.num_layers * q.directions
        assert {each.dtype.name for each in weights.values()} == {dtype}
        with safe_open(path, "numpy") as file:
            wide = {name: each.astype(np.int16) for name, each in weights.items()}
            save_file(tensors | wide, earlier, file.metadata())
        x = inputs(seed=9)
        for read in (QuantGRU.load(path), QuantGRU.load(earlier)):
            assert all(parts[name].dtype == np.int16 for layer in read._layers for _, parts in layer for name in "wr")
            np.testing.assert_array_equal(read(x)[0], q(x)[0])


@given(st.data())
def test_damaged_files_are_refused_or_load(tmp_path_factory, data):
    """Whatever happens to a file, loading it is an error of ours or gives a GRU; nothing crashes."""
    folder = tmp_path_factory.getbasetemp()
    whole = folder / "whole.safetensors"
    if not whole.exists():
        Calibrator(float_gru(2, 3)).observe(inputs(c=2)).finish().save(whole)
    content = bytearray(whole.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = folder / "damaged.safetensors"
    damaged.write_bytes(content)
    try:
        q = QuantGRU.load(damaged)
        q(np.zeros((2, 1, q.input_size), np.float32))
    except (qcore.QcoreError, OSError) as error:
        assert str(error)


def test_files_of_other_kinds(tmp_path):
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "gru"
    Calibrator(float_gru(2, 3)).observe(inputs(c=2)).finish().save(path)
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()

    def refused(words, tensors=tensors, **changes):
        save_file(tensors, tmp_path / "other", metadata | changes)
        with pytest.raises(qcore.QcoreError) as caught:
            QuantGRU.load(tmp_path / "other")
        assert words in str(caught.value), str(caught.value)

    refused("has format 'qcore.gru.0', expected 'qcore.gru.1' or 'qcore.gru.2' or 'qcore.gru.3'", format="qcore.gru.0")
    refused("has a description that can't be read", gru="{")
    refused("has no 'layers' in its description", gru="{}")
    description = json.loads(metadata["gru"])
    refused("describes 2 layers of 1 directions", gru=json.dumps(description | {"layers": 2}))
    refused("was saved with other tables of layer 0", gru=json.dumps(description | {"tables": ["0" * 64]}))
    refused("has no tensor 0.0.w", {name: value for name, value in tensors.items() if name != "0.0.w"})
    refused("0.0.w has dtype int32, expected int16", tensors | {"0.0.w": tensors["0.0.w"].astype(np.int32)})
    refused("expected [14, 4], [3H, C] and [3H, H]", tensors | {"0.0.formats": tensors["0.0.formats"][:3]})
    refused("bx has 3 elements, expected 9", tensors | {"0.0.bx": tensors["0.0.bx"][:3]})
