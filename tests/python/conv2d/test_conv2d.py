"""conv2d: every kernel of this machine against the oracle, bit for bit."""

import functools

import conv_oracle
import ml_dtypes
import numpy as np
import oracle
import pytest
from conv_calls import CPU_KERNELS, MODES, SHAPES, arrays, channels_last, refusal, run, window
from linear_calls import assert_same

import qcore


@functools.cache
def quantized(case, bits, scheme):
    return qcore.quantize(arrays(case)[1], bits=bits, block_size=SHAPES[case][2], scheme=scheme)


@functools.cache
def expected(case, bits, scheme, mode):
    weight = quantized(case, bits, scheme)
    parts = oracle.Quantized(weight.codes().astype(np.int64), weight.scales(), weight.offsets(), weight.block_size)
    return conv_oracle.conv2d(arrays(case)[0], parts, mode, scheme == "asymmetric", **window(case))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("case", SHAPES)
def test_every_kernel_has_the_bits_of_the_oracle(case, bits, scheme, mode):
    x, _ = arrays(case)
    weight = quantized(case, bits, scheme)
    ran = []
    for layout in (x, channels_last(x)):
        for kernel in CPU_KERNELS:
            if refusal(kernel, layout, weight, compute=mode, **window(case)) is None:
                y = run(kernel, layout, weight, compute=mode, **window(case))
                assert_same(y, expected(case, bits, scheme, mode), kernel)
                ran.append(kernel)
    assert "reference" in ran
    assert ("linear" in ran) == (case == "1x1")


def test_every_kernel_ran():
    unused = set(CPU_KERNELS)
    for case in SHAPES:
        x = channels_last(arrays(case)[0])
        weight = quantized(case, 8, "symmetric")
        for mode in MODES:
            unused -= {name for name in unused if refusal(name, x, weight, compute=mode, **window(case)) is None}
    assert not unused


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_bias_and_activation(kernel, mode, dtype):
    case = "1x1" if kernel == "linear" else "3x3"
    x = channels_last(arrays(case)[0].astype(dtype))
    weight = quantized(case, 4, "asymmetric")
    if refusal(kernel, x, weight, compute=mode, **window(case)) is not None:
        return
    bias = np.linspace(-3, 3, weight.shape[0], dtype=np.float32)
    wide = x.astype(np.float32)
    plain = run(kernel, wide, weight, compute=mode, **window(case))
    y = run(kernel, x, weight, bias, compute=mode, activation=(-1, 2.5), **window(case))
    wanted = np.clip(plain + bias[:, None, None], np.float32(-1), np.float32(2.5)).astype(dtype)
    assert_same(y, wanted, kernel)
    for activation in ("relu", "relu6", "silu", "gelu", "gelu_tanh", "tanh", "sigmoid"):
        run(kernel, x, weight, bias, compute=mode, activation=activation, **window(case))


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_strides_and_poisoned_borders(kernel):
    case = "1x1" if kernel == "linear" else "strided"
    x, _ = arrays(case)
    weight = quantized(case, 8, "symmetric")
    wanted = run("reference", x, weight, **window(case))
    n, c, h, w = x.shape
    wide = np.full((n, h + 1, w + 2, c + 3), np.nan, np.float32)
    inner = wide[:, 1:, 1:-1, 2 : c + 2].transpose(0, 3, 1, 2)
    inner[...] = x
    n, c, h, w = wanted.shape
    memory = np.full((n, h + 2, w + 2, c + 2), np.float32(12345))
    out = memory[:, 1:-1, 1:-1, 1:-1].transpose(0, 3, 1, 2)
    if refusal(kernel, inner, weight, out=out, **window(case)) is not None:
        return
    out[...] = np.nan
    assert run(kernel, inner, weight, out=out, **window(case)) is out
    assert_same(out, wanted, kernel)
    out[...] = 12345
    assert (memory == 12345).all()
    if kernel != "linear":  # backwards and every second one
        turned = x[:, ::-1, ::-1, ::-1].copy()[:, ::-1, ::-1, ::-1]
        assert_same(run(kernel, turned, weight, **window(case)), wanted, kernel)
        spread = np.zeros((*x.shape[:3], 2 * x.shape[3]), np.float32)[..., ::2]
        spread[...] = x
        assert_same(run(kernel, spread, weight, **window(case)), wanted, kernel)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("mode", ["int8", "int8_asym", "int16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_not_finite_poisons_what_sees_it(kernel, mode, value):
    case = "1x1" if kernel == "linear" else "3x3"
    x = channels_last(arrays(case)[0])
    weight = quantized(case, 4, "symmetric")
    if refusal(kernel, x, weight, compute=mode, **window(case)) is not None:
        return
    clean = run(kernel, x, weight, compute=mode, **window(case))
    spoilt = x.copy(order="K")
    spoilt[0, 3, 4, 2] = value
    y = run(kernel, spoilt, weight, compute=mode, **window(case))
    reach = 0 if case == "1x1" else 1
    seen = np.zeros(y.shape, bool)
    seen[0, :, 4 - reach : 5 + reach, 2 - reach : 3 + reach] = True
    assert np.isnan(y[seen]).all()
    assert_same(np.where(seen, 0, y), np.where(seen, 0, clean), kernel)


def test_no_results():
    weight = qcore.quantize(np.ones((4, 8, 3, 3), np.float32))
    assert qcore.conv2d(np.ones((0, 8, 5, 5), np.float32), weight).shape == (0, 4, 3, 3)
    none = qcore.quantize(np.ones((0, 8, 3, 3), np.float32))
    assert qcore.conv2d(np.ones((2, 8, 5, 5), np.float32), none).shape == (2, 0, 3, 3)


def test_layout_of_the_result_is_that_of_x():
    weight = quantized("3x3", 8, "symmetric")
    x, _ = arrays("3x3")
    assert qcore.conv2d(x, weight, padding=1).flags.c_contiguous
    assert qcore.conv2d(channels_last(x), weight, padding=1).transpose(0, 2, 3, 1).flags.c_contiguous
    assert qcore.conv2d(x, weight, out_dtype="float16").dtype == np.float16


X, W = np.ones((1, 8, 5, 6), np.float32), qcore.quantize(np.ones((4, 8, 3, 3), np.float32))


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"x": X[0]}, ValueError, "x has shape [8, 5, 6], expected [N, Ci, H, W]"),
        ({"x": X.astype(np.float64)}, TypeError, "x has dtype float64, expected float32, float16 or bfloat16"),
        ({"x": X.astype(np.int8)}, TypeError, "x has dtype int8, expected float32, float16 or bfloat16"),
        (
            {"x": X[:, :7]},
            ValueError,
            "x has shape [1, 7, 5, 6], expected Ci = 8 * 1 channels: those of the weight, times groups",
        ),
        (
            {"x": X[:, :, :2]},
            ValueError,
            "along H the kernel spans 3 elements and x with its padding has 2, expected at least as many",
        ),
        (
            {"dilation": 3},
            ValueError,
            "along H the kernel spans 7 elements and x with its padding has 5, expected at least as many",
        ),
        (
            {"weight": np.ones((4, 8, 3, 3))},
            TypeError,
            "weight is a ndarray, expected a QuantizedTensor: qcore.quantize(weight) makes one",
        ),
        (
            {"weight": qcore.quantize(np.ones((4, 8), np.float32))},
            ValueError,
            "weight has shape [4, 8] (a linear layer's), expected [Co, Ci / groups, Kh, Kw]",
        ),
        ({"groups": 3}, ValueError, "the weight has Co = 4 output channels, expected a multiple of groups = 3"),
        (
            {"groups": 2},
            ValueError,
            "x has shape [1, 8, 5, 6], expected Ci = 8 * 2 channels: those of the weight, times groups",
        ),
        ({"groups": 0}, ValueError, "groups is 0, expected at least 1"),
        ({"groups": 1.0}, TypeError, "groups is 1.0, expected an integer"),
        ({"stride": 0}, ValueError, "stride along H is 0, expected 1 to 2147483648"),
        ({"stride": (1, -1)}, ValueError, "stride along W is -1, expected 1 to 2147483648"),
        ({"stride": (1, 2, 3)}, ValueError, "stride is (1, 2, 3), expected an integer or (H, W)"),
        ({"stride": "1"}, TypeError, "stride is '1', expected an integer or (H, W)"),
        ({"stride": True}, TypeError, "stride is True, expected an integer"),
        ({"dilation": (0, 1)}, ValueError, "dilation along H is 0, expected 1 to 2147483648"),
        ({"padding": -1}, ValueError, "padding at the top is -1, expected 0 to 2147483648"),
        ({"padding": (0, 0, 0, -2)}, ValueError, "padding at the right is -2, expected 0 to 2147483648"),
        (
            {"padding": (1, 2, 3)},
            ValueError,
            "padding is (1, 2, 3), expected 'same', 'valid', an integer, (H, W) or (top, left, bottom, right)",
        ),
        ({"padding": 1.5}, TypeError, "padding is 1.5, expected an integer"),
        (
            {"padding": "full"},
            TypeError,
            "padding is 'full', expected 'same', 'valid', an integer, (H, W) or (top, left, bottom, right)",
        ),
        ({"compute": "int4"}, ValueError, "compute is 'int4', expected one of 'float', 'int8', 'int8_asym', 'int16'"),
        ({"activation": (2, 1)}, ValueError, "activation clamps to (2, 1), expected lo <= hi"),
        ({"bias": np.ones(5, np.float32)}, ValueError, "bias has shape [5], expected [4]"),
        ({"bias": np.ones(4, np.int32)}, TypeError, "bias has dtype int32, expected float32, float16 or bfloat16"),
        ({"out": np.ones((1, 4, 3, 3), np.float32)}, ValueError, "out has shape [1, 4, 3, 3], expected [1, 4, 3, 4]"),
        (
            {"out": np.broadcast_to(np.float32(1), (1, 4, 3, 4))},
            ValueError,
            "out is read-only, expected a writable array",
        ),
        ({"out_dtype": "int8"}, TypeError, "out_dtype is 'int8', expected float32, float16 or bfloat16"),
        ({"stream": "s"}, TypeError, "stream is 's', expected a stream object or its address"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(change, kind, text):
    arguments = {"x": X, "weight": W} | change
    x, weight = arguments.pop("x"), arguments.pop("weight")
    before = None if "out" not in arguments else arguments["out"].copy()
    with pytest.raises(kind) as caught:
        qcore.conv2d(x, weight, **arguments)
    assert isinstance(caught.value, qcore.QcoreError)
    assert str(caught.value) == f"conv2d: {text}"
    if before is not None:
        assert (arguments["out"] == before).all()


def test_out_and_x_may_not_overlap():
    memory = np.ones((1, 1, 6, 6), np.float32)
    weight = qcore.quantize(np.ones((1, 1, 1, 1), np.float32))
    with pytest.raises(ValueError, match=r"^conv2d: out overlaps x in memory, expected separate arrays$"):
        qcore.conv2d(memory, weight, out=memory)
    with pytest.raises(ValueError, match=r"^conv2d: out and out_dtype are both given, expected at most one of them$"):
        qcore.conv2d(memory, weight, out=memory.copy(), out_dtype="float32")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("groups", [1, 2, "channels"])
def test_edges_of_tiles(groups, mode):
    """Numbers of channels, of pixels and block sizes around those that kernels are made of."""
    rng = np.random.default_rng(7)
    for channels, pixels, block in zip(
        [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 70],
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 1, 6, 7, 12, 13, 2],
        [1, 5, 300, 1, 5, 4, 8, 5, 1, 16, 16, 5, 32, 32, 300, 5, 64, 64, 1],
        strict=True,
    ):
        g = channels if groups == "channels" else groups
        inputs, per_group = (channels, 1) if groups == "channels" else (g * channels, channels)
        outputs = channels if groups == "channels" else g * ((channels * 5) % 37 + 1)
        weight = qcore.quantize(
            rng.standard_normal((outputs, per_group, 2, 3), dtype=np.float32),
            bits=4 + 4 * (channels % 2),
            block_size=block,
            scheme="asymmetric" if pixels % 2 else "symmetric",
        )
        memory = np.empty(2 * inputs * 3 * pixels * 4 + 4, np.uint8)
        odd = memory[4:].view(np.float32).reshape(2, 3, pixels, inputs)  # starts a float behind a vector's place
        odd[...] = rng.standard_normal(odd.shape, dtype=np.float32)
        nhwc = odd.transpose(0, 3, 1, 2)
        options = {"compute": mode, "padding": 1, "groups": g, "activation": (-2, 9)}
        bias = rng.standard_normal(outputs, dtype=np.float32)
        wanted = run("reference", nhwc, weight, bias, **options)
        for x in (nhwc.copy(order="C"), channels_last(nhwc)):
            for kernel in CPU_KERNELS:
                if refusal(kernel, x, weight, **options) is None:
                    for y in (run(kernel, x, weight, bias, **options), np.zeros(wanted.shape, np.float16)):
                        if y.dtype == np.float16:
                            run(kernel, x, weight, bias, out=y, **options)
                        assert_same(y, wanted.astype(y.dtype), f"{kernel} {channels} {pixels} {block}")


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("mode", MODES)
def test_depthwise_extremes(mode, scheme):
    """Blocks of one element, whose scale may have no inverse."""
    powers = np.float32(2.0) ** np.arange(-149, 128, dtype=np.float32)
    values = np.concatenate([powers, -powers, np.nextafter(powers, np.float32(np.inf)) * np.float32(1.3), [0, -0.0]])
    channels = 31
    x = np.resize(values, (channels, -(-values.size // channels))).astype(np.float32)[None, :, None]
    rng = np.random.default_rng(3)
    weight = qcore.quantize(
        rng.standard_normal((channels, 1, 1, 1), dtype=np.float32) * 1e-3, block_size=1, bits=8, scheme=scheme
    )
    wanted = run("reference", x, weight, compute=mode, groups=channels)
    for kernel in CPU_KERNELS:
        if refusal(kernel, x, weight, compute=mode, groups=channels) is None:
            assert_same(run(kernel, x, weight, compute=mode, groups=channels), wanted, kernel)


def test_long_blocks():
    """A sum that int32 does not hold in one run: 16-bit codes are exact beyond 256."""
    rng = np.random.default_rng(5)
    x = rng.uniform(0.9, 1, (1, 1100, 2, 3)).astype(np.float32)
    weight = qcore.quantize(rng.uniform(0.9, 1, (20, 1100, 1, 2)).astype(np.float32), block_size=1100)
    for mode in MODES:
        wanted = run("reference", x, weight, compute=mode)
        for kernel in CPU_KERNELS:
            if refusal(kernel, x, weight, compute=mode) is None:
                assert_same(run(kernel, x, weight, compute=mode), wanted, kernel)


def test_any_number_of_threads_gives_the_same_bits():
    x = channels_last(np.random.default_rng(2).standard_normal((2, 64, 20, 21), dtype=np.float32))
    weight = qcore.quantize(np.random.default_rng(1).standard_normal((70, 64, 3, 3), dtype=np.float32), block_size=32)
    threads = qcore.get_num_threads()
    try:
        results = []
        for count in (1, 2, 5):
            qcore.set_num_threads(count)
            results.append(qcore.conv2d(x, weight, padding=1))
    finally:
        qcore.set_num_threads(threads)
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


@pytest.mark.parametrize(("kernel", "dilation"), [((3, 3), 1), ((2, 4), (1, 2)), ((5, 1), (2, 1))])
def test_padding_by_name(kernel, dilation):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8, 9, 7), dtype=np.float32)
    weight = qcore.quantize(rng.standard_normal((4, 8, *kernel), dtype=np.float32), bits=8, block_size=8)
    reach = [each * (size - 1) for each, size in zip(np.broadcast_to(dilation, 2).tolist(), kernel, strict=True)]
    top, left = reach[0] // 2, reach[1] // 2
    sides = (top, left, reach[0] - top, reach[1] - left)
    same = qcore.conv2d(x, weight, padding="same", dilation=dilation)
    assert same.shape == (2, 4, 9, 7)
    np.testing.assert_array_equal(same, qcore.conv2d(x, weight, padding=sides, dilation=dilation))
    valid = qcore.conv2d(x, weight, padding="valid", dilation=dilation)
    np.testing.assert_array_equal(valid, qcore.conv2d(x, weight, dilation=dilation))
    with pytest.raises(ValueError, match=r"conv2d: padding is 'same' and stride is \(2, 2\), expected stride 1"):
        qcore.conv2d(x, weight, padding="same", stride=2)
