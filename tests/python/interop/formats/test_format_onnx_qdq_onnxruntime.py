"""Quantized layers of ONNX models as static operators, against ONNX Runtime."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import compose, helper
from onnx_models import Layer, check, model_of
from static_calls import PEER_LIMIT

from qcore import formats
from qcore.static import QConv2d, QLinear

RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-PEER_LIMIT, PEER_LIMIT, (6, 4, 3, 3)).astype(np.int8)
MATRIX = RNG.integers(-PEER_LIMIT, PEER_LIMIT, (12, 7)).astype(np.int8)  # [K, N]
SCALES = RNG.uniform(0.004, 0.012, 6).astype(np.float32)
REALS = RNG.standard_normal((6, 4, 3, 3)).astype(np.float32) * np.float32(0.3 * PEER_LIMIT / 128)
UNITS = SCALES * np.float32(0.02)
COLUMNS = RNG.uniform(0.004, 0.012, 7).astype(np.float32)
UNSIGNED = (WEIGHT.astype(np.int16) + 128).astype(np.uint8)
BIAS = RNG.integers(-9000, 9000, 6).astype(np.int32)
COLUMN_BIAS = RNG.integers(-9000, 9000, 7).astype(np.int32)
RELU, CLIP = ("Relu", (), {}), ("Clip", (-1.5, 2.25), {})

CONVOLUTIONS = {
    "plain": Layer(codes=WEIGHT),
    "signed": Layer(codes=WEIGHT, x=("int8", 0.02, -3), y=("int8", 0.0511, 5)),
    "from int8 to uint8": Layer(codes=WEIGHT, x=("int8", 0.02, -3)),
    "no zero points": Layer(codes=WEIGHT, x=("uint8", 0.02, None), y=("uint8", 0.2, None)),
    "per channel": Layer(codes=WEIGHT, w_scale=SCALES, w_zero=np.zeros(6, np.int8), w_axis=0),
    "weights with a zero point": Layer(codes=UNSIGNED, w_zero=np.uint8(121)),
    "int32 bias": Layer(codes=WEIGHT, w_scale=SCALES, w_zero=np.zeros(6, np.int8), w_axis=0, bias=(BIAS, UNITS, None)),
    "int32 bias, its zero point": Layer(codes=WEIGHT, bias=(BIAS, np.float32(0.02) * np.float32(0.01), np.int32(0))),
    "relu": Layer(codes=WEIGHT, between=(RELU,)),
    "clip": Layer(codes=WEIGHT, between=(CLIP,)),
    "strides, pads, dilations": Layer(
        codes=WEIGHT, attributes={"strides": [2, 1], "pads": [2, 0, 1, 3], "dilations": [1, 2], "kernel_shape": [3, 3]}
    ),
    "float weights": Layer(codes=REALS, w_real=True, w_scale=SCALES, w_zero=np.zeros(6, np.int8), w_axis=0),
    "float weights, one scale": Layer(codes=REALS, w_real=True, w_scale=np.float32(0.012)),
    "groups": Layer(codes=WEIGHT[:, :2], attributes={"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": Layer(codes=WEIGHT[:4, :1], attributes={"group": 4, "pads": [1, 1, 1, 1]}),
    "valid": Layer(codes=WEIGHT, attributes={"auto_pad": "VALID"}),
} | {
    f"{kind}, stride {stride}": Layer(codes=WEIGHT[..., :width], attributes={"auto_pad": kind, "strides": stride})
    for kind in ("SAME_UPPER", "SAME_LOWER")
    for stride, width in (([1, 1], 2), ([2, 3], 3), ([3, 2], 2))
}
PRODUCTS = {
    "MatMul": Layer("MatMul", codes=MATRIX),
    "MatMul, columns": Layer("MatMul", codes=MATRIX, w_scale=COLUMNS, w_zero=np.zeros(7, np.int8), w_axis=1),
    "MatMul, columns from the end": Layer("MatMul", codes=MATRIX, w_scale=COLUMNS, w_axis=-1),
    "Gemm": Layer("Gemm", codes=MATRIX, bias=(COLUMN_BIAS, np.float32(0.02) * np.float32(0.01), None)),
    "Gemm, transB": Layer("Gemm", codes=MATRIX.T, attributes={"transB": 1}, w_scale=COLUMNS, w_axis=0),
    "Gemm, relu": Layer("Gemm", codes=MATRIX, between=(RELU,)),
}


def session_of(model, optimized=True):
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(check(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def codes_of(dtype, shape, seed=1):
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def compare(model, layer, x, *, most_off=0.002):
    """Check that codes are equal except a few between two: the model's float sums are rounded before."""
    got = layer(x)
    lo, hi = np.iinfo(got.dtype).min, np.iinfo(got.dtype).max
    assert ((got > lo) & (got < hi)).mean() > 0.2  # neither end of the range hides what is compared
    for optimized in (False, True):
        expected = session_of(model, optimized).run(None, {"x": x})[0]
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        difference = np.abs(got.astype(int) - expected.astype(int))
        assert difference.max() <= 1
        assert (difference != 0).mean() <= most_off


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name):
    described = CONVOLUTIONS[name]
    model = described.model()
    found = formats.from_onnx(model)
    assert list(found) == ["layer"]
    assert type(found["layer"]) is QConv2d
    compare(model, found["layer"], codes_of(described.x[0], described.shape))


@pytest.mark.parametrize("shape", [(33, 12), (3, 5, 12)], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name, shape):
    described = replace(PRODUCTS[name], shape=shape)
    if described.operator == "Gemm" and len(shape) != 2:
        described = replace(
            described, operator="MatMul", codes=MATRIX, bias=None, attributes={}, w_scale=COLUMNS, w_axis=1
        )
    model = described.model()
    layer = formats.from_onnx(model)["layer"]
    assert type(layer) is QLinear
    compare(model, layer, codes_of(described.x[0], shape))


@pytest.mark.parametrize("kind", ["SAME_UPPER", "SAME_LOWER"])
def test_dilated_same_padding(kind):
    """ONNX Runtime has none; with pads it has."""
    codes = WEIGHT[..., :2]
    dilated = {"dilations": [2, 3]}
    layer = formats.from_onnx(Layer(codes=codes, attributes=dilated | {"auto_pad": kind}).model())["layer"]
    pads = [2, 1, 2, 2] if kind == "SAME_UPPER" else [2, 2, 2, 1]
    described = Layer(codes=codes, attributes=dilated | {"pads": pads})
    compare(described.model(), layer, codes_of("uint8", described.shape))


def test_float_bias_is_rounded_to_int32():
    unit = np.float32(0.02) * np.float32(0.01)
    bias = (RNG.standard_normal(6) * 2).astype(np.float32)
    described = Layer(codes=WEIGHT, bias=(bias,))
    model = described.model()
    x = codes_of("uint8", described.shape)
    compare(model, formats.from_onnx(model)["layer"], x)
    rounded = Layer(codes=WEIGHT, bias=(np.rint(bias / np.float64(unit)).astype(np.int32), unit, None)).model()
    assert np.array_equal(formats.from_onnx(model)["layer"](x), formats.from_onnx(rounded)["layer"](x))


def test_bias_with_scales_of_its_own():
    bias = (np.int32([700, -900, 40, 0, -3, 500]), np.float32(0.004), None)
    described = Layer(codes=WEIGHT, bias=bias)
    reals = Layer(codes=WEIGHT, bias=(bias[0].astype(np.float32) * bias[1],))
    x = codes_of("uint8", described.shape)
    got = formats.from_onnx(described.model())["layer"](x)
    assert np.array_equal(got, formats.from_onnx(reals.model())["layer"](x))
    compare(reals.model(), formats.from_onnx(described.model())["layer"], x)


def test_qlinear_convolution():
    """The node itself: sums are integers on both sides, and only the multipliers are rounded in other places."""
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(117), "w": WEIGHT, "ws": SCALES, "wz": np.zeros(6, np.int8),
        "ys": np.float32(0.0511), "yz": np.uint8(131), "B": BIAS,
    }  # fmt: skip
    node = helper.make_node(
        "QLinearConv", ["x", *constants], ["y"], auto_pad="SAME_UPPER", strides=[2, 2], name="layer"
    )
    model = model_of([node], constants, ("x", "uint8", (2, 4, 9, 8)), ("y", "uint8", (2, 6, 5, 4)))
    compare(model, formats.from_onnx(model)["layer"], codes_of("uint8", (2, 4, 9, 8)))


@pytest.mark.parametrize("channels", [False, True])
def test_qlinear_product(channels):
    scale = COLUMNS if channels else np.float32(0.01)
    constants = {
        "as": np.float32(0.02), "az": np.int8(7), "b": MATRIX, "bs": scale,
        "bz": np.zeros(7 if channels else (), np.int8), "ys": np.float32(0.0511), "yz": np.int8(-13),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", *constants], ["y"], name="layer")
    model = model_of([node], constants, ("x", "int8", (2, 9, 12)), ("y", "int8", (2, 9, 7)))
    compare(model, formats.from_onnx(model)["layer"], codes_of("int8", (2, 9, 12)))


def test_two_layers_of_a_network():
    """Each layer's codes are the next one's."""
    first = Layer(codes=WEIGHT, between=(RELU,)).model()
    second = Layer(codes=WEIGHT[:, :2], x=("uint8", 0.0511, 131), shape=(1, 6, 7, 6), attributes={"group": 3})
    prefixed = compose.add_prefix(second.model(), "next_")
    model = compose.merge_models(first, prefixed, [("y", "next_x")])
    found = formats.from_onnx(model)
    assert list(found) == ["layer", "next_layer"]
    x = codes_of("uint8", (1, 4, 9, 8))
    hidden = found["layer"](x)
    assert (found["layer"].y_scale, found["layer"].y_zero_point) == (
        found["next_layer"].x_scale,
        found["next_layer"].x_zero_point,
    )
    expected = session_of(model).run(None, {"x": x})[0]
    assert np.abs(found["next_layer"](hidden).astype(int) - expected).max() <= 2
