"""static.qlinear and static.qconv2d: every kernel of this machine against the definition, code by code."""

import conv_calls
import numpy as np
import pytest
import static_calls
from static_calls import CPU_KERNELS, RANGES, codes, run

import qcore
from qcore.static import QConv2d, QLinear, qconv2d, qlinear

DTYPES = [(x, y) for x in RANGES for y in RANGES]


def layer(rng, weight_shape, x_dtype, y_dtype, *, x_zero=None, y_zero=None):
    """(x_scale, x_zero_point, weight, w_scale, y_scale, y_zero_point, bias) with results spread over y's range."""
    weight = codes(rng, weight_shape, "int8")
    channels, count = weight_shape[0], int(np.prod(weight_shape[1:]))
    w_scale = rng.uniform(0.001, 0.01, channels).astype(np.float32)
    y_scale = 0.02 * 0.005 * 74 * 74 * max(count, 1) ** 0.5 / 60
    zeros = [int(rng.integers(*RANGES[d])) if z is None else z for d, z in ((x_dtype, x_zero), (y_dtype, y_zero))]
    bias = rng.integers(-30000, 30000, channels).astype(np.int32)
    return 0.02, zeros[0], weight, w_scale, y_scale, zeros[1], bias


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize(("x_dtype", "y_dtype"), DTYPES)
@pytest.mark.parametrize("case", conv_calls.SHAPES)
def test_qconv2d(kernel, case, x_dtype, y_dtype):
    rng = np.random.default_rng([*map(ord, case), x_dtype == "int8", y_dtype == "int8"])
    x_shape, w_shape, *_ = conv_calls.SHAPES[case]
    x = codes(rng, x_shape, x_dtype)
    arguments = layer(rng, w_shape, x_dtype, y_dtype)
    window = conv_calls.window(case)
    wanted = static_calls.conv2d(x, *arguments, y_dtype=y_dtype, **window)
    assert len(np.unique(wanted)) > min(50, wanted.size // 4)
    for layout in (x, conv_calls.channels_last(x)):
        y = run(kernel, qconv2d, layout, *arguments, y_dtype=y_dtype, **window)
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize(("x_dtype", "y_dtype"), DTYPES)
@pytest.mark.parametrize("m", [0, 1, 2, 7, 16, 65])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 31), (16, 64), (33, 7), (65, 257), (8, 0)])
def test_qlinear(kernel, m, n, k, x_dtype, y_dtype):
    rng = np.random.default_rng([m, n, k])
    x = codes(rng, (m, k), x_dtype)
    arguments = layer(rng, (n, k), x_dtype, y_dtype)
    y = run(kernel, qlinear, x, *arguments, y_dtype=y_dtype)
    np.testing.assert_array_equal(y, static_calls.linear(x, *arguments, y_dtype=y_dtype))


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_zero_points_at_the_ends_and_saturation(kernel):
    rng = np.random.default_rng(0)
    for x_dtype, (lo, hi) in RANGES.items():
        for zero in (lo, hi):
            for extreme in (lo, hi):
                x = np.full((3, 40), extreme, x_dtype)
                weight = np.array([[127] * 40, [-128] * 40, [-128, 127] * 20], np.int8)
                arguments = (1.0, zero, weight, 1.0, 2000.0, zero, rng.integers(-9, 9, 3).astype(np.int32))
                y = run(kernel, qlinear, x, *arguments)
                np.testing.assert_array_equal(y, static_calls.linear(x, *arguments))


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_halves_go_to_even(kernel):
    x = np.arange(0, 200, dtype=np.uint8)[:, None]
    for y_scale in (2.0, 4.0, 8.0):
        arguments = (1.0, 100, np.ones((1, 1), np.int8), 1.0, y_scale, 0)
        y = run(kernel, qlinear, x, *arguments, y_dtype="int8")
        np.testing.assert_array_equal(y[:, 0], np.rint((np.arange(200) - 100) / y_scale))


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 128), ("uint8", 0), ("uint8", 255), ("int8", -128), ("int8", 5)])
def test_weights_with_a_zero_point(kernel, dtype, zero):
    rng = np.random.default_rng(zero + 200)
    x = codes(rng, (1, 13, 6, 7), "uint8")
    arguments = (0.1, 77, codes(rng, (20, 13, 3, 2), dtype), 0.03, 12.0, 99)
    options = {"w_zero_point": zero, "padding": 1}
    y = run(kernel, qconv2d, x, *arguments, **options)
    np.testing.assert_array_equal(y, static_calls.conv2d(x, *arguments, **options))


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_clamp_out_and_strides(kernel):
    rng = np.random.default_rng(3)
    x = codes(rng, (2, 17, 5, 6), "uint8")
    arguments = layer(rng, (21, 17, 3, 3), "uint8", "uint8", y_zero=100)
    wanted = static_calls.conv2d(x, *arguments, padding=1, clamp=(100, 180))
    assert (wanted.min(), wanted.max()) == (100, 180)
    wide = np.zeros((2, 6, 8, 20), np.uint8)
    inner = wide[:, 1:, 1:-1, 2:-1].transpose(0, 3, 1, 2)
    inner[...] = x
    memory = np.full((2, 7, 8, 23), 7, np.uint8)
    out = memory[:, 1:-1, 1:-1, 1:-1].transpose(0, 3, 1, 2)
    assert run(kernel, qconv2d, inner, *arguments, padding=1, clamp=(100, 180), out=out) is out
    np.testing.assert_array_equal(out, wanted)
    out[...] = 7
    assert (memory == 7).all()
    turned = x[:, ::-1, ::-1, ::-1].copy()[:, ::-1, ::-1, ::-1]
    np.testing.assert_array_equal(run(kernel, qconv2d, turned, *arguments, padding=1, clamp=(100, 180)), wanted)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_rows_of_any_rank_and_stride(kernel):
    rng = np.random.default_rng(4)
    arguments = layer(rng, (19, 24), "int8", "uint8")
    whole = codes(rng, (3, 2, 4, 3, 2, 50), "int8")
    x = whole.transpose(4, 1, 0, 3, 2, 5)[..., ::2][..., :24]
    y = run(kernel, qlinear, x, *arguments, y_dtype="uint8")
    np.testing.assert_array_equal(y, static_calls.linear(x, *arguments, y_dtype="uint8"))
    single = run(kernel, qlinear, x[0, 0, 0, 0, 0], *arguments, y_dtype="uint8")
    np.testing.assert_array_equal(single, y[0, 0, 0, 0, 0])


def test_layers_are_made_once():
    rng = np.random.default_rng(5)
    arguments = layer(rng, (5, 8), "uint8", "uint8")
    made = QLinear(*arguments)
    x = codes(rng, (4, 8), "uint8")
    np.testing.assert_array_equal(made(x), qlinear(x, *arguments))
    assert repr(made) == "QLinear(x uint8, y uint8, cpu)"
    assert made.to("cpu").device == "cpu"


def test_from_float():
    rng = np.random.default_rng(6)
    weight, bias = rng.standard_normal((6, 4, 3, 3)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    weight[2] = 0
    x = codes(rng, (1, 4, 9, 9), "uint8")
    made = QConv2d.from_float(0.02, 128, weight, 0.5, 120, bias, padding=1)
    real = static_calls.conv_oracle
    y = np.zeros((1, 6, 9, 9))
    taps = [(i, j) for i in range(3) for j in range(3)]
    for (i, j), (pixels, _) in zip(taps, real.windows((x - 128.0) * 0.02, (3, 3), 1, 1, 1), strict=True):
        y += (pixels @ weight[:, :, i, j].T.astype(np.float64)).T.reshape(6, 1, 9, 9).transpose(1, 0, 2, 3)
    wanted = np.clip(np.rint((y + bias[:, None, None]) / 0.5) + 120, 0, 255)
    assert np.abs(made(x).astype(float) - wanted).max() <= 1
    with pytest.raises(
        ValueError, match=r"^static.qlinear: weight holds a NaN or an infinity, expected finite numbers$"
    ):
        QLinear.from_float(1, 0, np.full((2, 2), np.nan), 1, 0)
    with pytest.raises(ValueError, match=r"^static.qlinear: weight has shape \[2\], expected 2 axes$"):
        QLinear.from_float(1, 0, np.ones(2), 1, 0)
    with pytest.raises(ValueError, match=r"^static.qlinear: bias has shape \[3\], expected \[2\]$"):
        QLinear.from_float(1, 0, np.ones((2, 2)), 1, 0, np.ones(3))
    with pytest.raises(ValueError, match=r"^static.qlinear: bias / \(x_scale \* w_scale\) reaches .*, expected int32$"):
        QLinear.from_float(1e-9, 0, np.ones((2, 2)), 1, 0, np.ones(2))


X, W = np.ones((2, 8), np.uint8), np.ones((4, 8), np.int8)
GOOD = {"x": X, "x_scale": 0.1, "x_zero_point": 3, "weight": W, "w_scale": 0.1, "y_scale": 0.2, "y_zero_point": 4}
TYPE, VALUE = TypeError, ValueError


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"x": X.astype(np.float32)}, TYPE, "x has dtype float32, expected int8 or uint8"),
        ({"x": 3}, TYPE, "x is a int, expected an array with __dlpack__ (numpy, torch, jax, cupy, ...)"),
        ({"x": X[:, :7]}, VALUE, "x has shape [2, 7], expected [..., K] with K = 8"),
        ({"x_scale": 0}, VALUE, "x_scale is 0, expected a positive finite number"),
        ({"x_scale": np.inf}, VALUE, "x_scale is inf, expected a positive finite number"),
        ({"y_scale": -1.0}, VALUE, "y_scale is -1, expected a positive finite number"),
        ({"y_scale": "1"}, TYPE, "y_scale is '1', expected a number"),
        ({"y_scale": 1e-45, "x_scale": 1e30}, VALUE, "x_scale * w_scale[0] / y_scale is inf, expected a finite number"),
        ({"x_zero_point": 256}, VALUE, "x_zero_point is 256, expected 0 to 255 for uint8"),
        ({"y_zero_point": 128, "y_dtype": "int8"}, VALUE, "y_zero_point is 128, expected -128 to 127 for int8"),
        ({"w_zero_point": 200}, VALUE, "w_zero_point is 200, expected -128 to 127 for int8"),
        ({"w_zero_point": 0.5}, TYPE, "w_zero_point is 0.5, expected an integer"),
        ({"y_dtype": "int32"}, TYPE, "y_dtype is 'int32', expected int8 or uint8"),
        ({"weight": W.astype(np.int32)}, TYPE, "weight has dtype int32, expected int8 or uint8"),
        ({"weight": W[0]}, VALUE, "weight has shape [8], expected [N, K]"),
        ({"w_scale": np.ones(3, np.float32)}, VALUE, "w_scale has shape [3], expected [4] or [1]"),
        ({"w_scale": np.ones(4)}, TYPE, "w_scale has dtype float64, expected float32"),
        ({"w_scale": [1, 1, 0, 1]}, VALUE, "w_scale[2] is 0, expected a positive finite number"),
        ({"w_scale": "a"}, TYPE, "w_scale is ['a'], expected a number or float32 [N]"),
        ({"bias": np.ones(4, np.float32)}, TYPE, "bias has dtype float32, expected int32"),
        ({"bias": np.ones(5, np.int32)}, VALUE, "bias has shape [5], expected [4]"),
        ({"clamp": (5, 3)}, VALUE, "clamp is (5, 3), expected codes of y within 0 to 255, lo <= hi"),
        ({"clamp": 3}, VALUE, "clamp is 3, expected None or a pair (lo, hi) of codes"),
        ({"clamp": (0.5, 3)}, TYPE, "clamp is 0.5, expected an integer"),
        ({"out": np.ones((2, 4), np.int8)}, TYPE, "out has dtype int8, expected uint8"),
        ({"out": np.ones((2, 5), np.uint8)}, VALUE, "out has shape [2, 5], expected [2, 4]"),
        ({"out": np.broadcast_to(np.uint8(1), (2, 4))}, VALUE, "out is read-only, expected a writable array"),
        ({"stream": "s"}, TYPE, "stream is 's', expected a stream object or its address"),
        (
            {"bias": np.array([0, 0, 2**31 - 100, 0], np.int32)},
            VALUE,
            "output channel 2 can reach sums of 2147485564 with its weights and bias, expected at most 2147483647: "
            "they are int32",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(change, kind, text):
    arguments = GOOD | change
    before = None if "out" not in arguments else arguments["out"].copy()
    with pytest.raises(kind) as caught:
        qlinear(**arguments)
    assert isinstance(caught.value, qcore.QcoreError)
    assert str(caught.value) == f"static.qlinear: {text}"
    if before is not None:
        assert (arguments["out"] == before).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": X}, "x has shape [2, 8], expected [N, Ci, H, W]"),
        ({"weight": W}, "weight has shape [4, 8], expected [Co, Ci / groups, Kh, Kw]"),
        ({"groups": 3}, "weight has Co = 4 output channels, expected a multiple of groups = 3"),
        ({"stride": 0}, "stride along H is 0, expected 1 to 2147483648"),
        (
            {"dilation": 4},
            "along H the kernel spans 5 elements and x with its padding has 3, expected at least as many",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors_of_qconv2d(change, text):
    arguments = GOOD | {"x": np.ones((1, 8, 3, 3), np.uint8), "weight": np.ones((4, 8, 2, 2), np.int8)} | change
    with pytest.raises(ValueError) as caught:
        qconv2d(**arguments)
    assert str(caught.value) == f"static.qconv2d: {text}"


def test_layer_and_array_on_different_devices():
    if qcore.info()["cuda"]["device_count"] == 0:
        with pytest.raises(qcore.CudaError):
            QLinear(0.1, 0, W, 0.1, 0.1, 0).to("cuda")
    with pytest.raises(
        ValueError, match=r"^static.qlinear: device is 'tpu', expected 'cpu', 'cuda' or 'cuda:<index>'$"
    ):
        QLinear(0.1, 0, W, 0.1, 0.1, 0).to("tpu")
