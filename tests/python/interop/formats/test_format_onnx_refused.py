"""Nodes that from_onnx leaves out, and models that it refuses with the node's name."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Layer, add_output, model_of

import qcore
from qcore import formats

W = np.ones((6, 4, 3, 3), np.int8)
B = np.ones((12, 7), np.int8)
CONV = Layer(codes=W)
GEMM = Layer("Gemm", codes=B, shape=(3, 12))
VALUE, TYPE = qcore.QcoreValueError, qcore.QcoreTypeError
FLOAT8 = helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)


def refused(model, message, error=VALUE):
    with pytest.raises(error) as caught:
        formats.from_onnx(model)
    assert message in str(caught.value)


def with_constant(model, name, array):
    """Return the model with another value of a constant, or without it."""
    kept = [each for each in model.graph.initializer if each.name != name]
    assert len(kept) < len(model.graph.initializer)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    if array is not None:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def node_of(model, op_type):
    return next(each for each in model.graph.node if each.op_type == op_type)


QDQ = {
    "x per row": (CONV, {"x_scale": np.float32([0.1, 0.2])}, "x_scale has shape [2], expected one number"),
    "y per row": (CONV, {"y_scale": np.float32([0.1, 0.2])}, "y_scale has shape [2], expected one number"),
    "x int16": (CONV, {"x_zero": np.int16(3)}, "x has dtype int16, expected int8 or uint8"),
    "w int16": (CONV, {"w": W.astype(np.int16)}, "w has dtype int16, expected int8 or uint8"),
    "w float8": (CONV, {"w": W.astype(FLOAT8)}, "w has dtype float8_e4m3fn, expected int8 or uint8"),
    "y float8": (CONV, {"y_zero": np.zeros((), FLOAT8)}, "y has dtype float8_e4m3fn, expected int8 or uint8"),
    "w of a 1-d convolution": (CONV, {"w": W[..., 0]}, "w has shape [6, 4, 3], expected [Co, Ci / groups, Kh, Kw]"),
    "w scales": (CONV, {"w_scale": np.ones(5, np.float32)}, "w has scales along axis 1, expected axis 0"),
    "w zero scale": (CONV, {"w_scale": np.float32(0)}, "w_scale[0] is 0, expected"),
    "x nan scale": (CONV, {"x_scale": np.float32(np.nan)}, "x_scale has nan at index []"),
    "w batched": (GEMM, {"w": B[None]}, "w has shape [1, 12, 7], expected [K, N]"),
    "no x_scale": (CONV, {"x_scale": None}, "x_scale is 'x_scale', which is no initializer, expected a constant"),
    "no w": (CONV, {"w": None}, "w is 'w', which is no initializer, expected a constant"),
    "no y_zero": (CONV, {"y_zero": None}, "y_zero_point is 'y_zero', which is no initializer"),
}


@pytest.mark.parametrize("name", QDQ)
def test_constants_of_a_layer(name):
    layer, changes, message = QDQ[name]
    model = layer.model()
    for constant, array in changes.items():
        with_constant(model, constant, array)
    refused(model, f"from_onnx: node 'layer': {message}" if "zero scale" not in name else message, qcore.QcoreError)


ATTRIBUTES = {
    "kernel_shape": (CONV, {"kernel_shape": [3, 2]}, "kernel_shape is [3, 2], expected [3, 3], as the weight has"),
    "pads": (CONV, {"pads": [1, 1]}, "pads is [1, 1], expected 4 integers"),
    "negative pads": (CONV, {"pads": [1, -1, 0, 0]}, "pads is [1, -1, 0, 0], expected numbers from 0 on"),
    "strides": (CONV, {"strides": [0, 1]}, "strides is [0, 1], expected numbers from 1 on"),
    "strides of a number": (CONV, {"strides": 2}, "strides is 2, expected 2 integers"),
    "group": (CONV, {"group": 4}, "static.qconv2d: weight has Co = 6 output channels, expected a multiple of groups"),
    "auto_pad": (CONV, {"auto_pad": "SAME"}, "auto_pad is 'SAME', expected one of 'NOTSET', 'VALID', 'SAME_UPPER'"),
    "alpha": (GEMM, {"alpha": 0.5}, "alpha is 0.5, expected 1"),
    "transA": (GEMM, {"transA": 1}, "transA is 1, expected 0"),
    "beta": (replace(GEMM, bias=(np.zeros(7, np.float32),)), {"beta": 2.0}, "beta is 2.0, expected 1"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name):
    layer, attributes, message = ATTRIBUTES[name]
    refused(replace(layer, attributes=attributes).model(), f"from_onnx: node 'layer': {message}")


BIASES = {
    "shape": ((np.zeros(5, np.float32),), "bias has shape [5], expected [6]"),
    "int8": ((np.zeros(6, np.int8), np.float32(1), None), "bias has dtype int8, expected int32"),
    "zero point": ((np.zeros(6, np.int32), np.float32(1), np.int32(4)), "bias_zero_point is 4, expected 0"),
    "large": ((np.full(6, 1e9, np.float32),), "bias / (x_scale * w_scale) is 5e+12, expected int32"),
    "integers": ((np.zeros(6, np.int32),), "bias has dtype int32, expected float32 or float16 or bfloat16"),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases(name):
    bias, message = BIASES[name]
    refused(replace(CONV, bias=bias).model(), f"from_onnx: node 'layer': {message}", qcore.QcoreError)


def test_zero_points_of_weights_that_differ():
    """They go into the codes where those stay within int8."""
    zeros = np.int8([0, 1, 2, 3, 4, 5])
    scales = np.full(6, 0.01, np.float32)
    layer = replace(CONV, codes=W * np.int8(3), w_zero=zeros, w_scale=scales, w_axis=0)
    plain = replace(CONV, codes=W * np.int8(3) - zeros.reshape(6, 1, 1, 1))
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 9, 8)).astype(np.uint8)
    got, expected = (formats.from_onnx(each.model())["layer"](x) for each in (layer, plain))
    assert np.array_equal(got, expected)
    far = replace(layer, codes=W * np.int8(-128))
    refused(far.model(), "w less its zero points, which differ among channels, is -133 to -128, expected")
    other = with_constant(layer.model(), "w_zero", zeros.astype(np.uint8))
    refused(other, "w_zero_point has dtype uint8, expected int8, that of the codes", TYPE)


def test_same_padding_needs_the_size():
    layer = replace(CONV, attributes={"auto_pad": "SAME_UPPER", "strides": [2, 1]})
    assert list(formats.from_onnx(layer.model())) == ["layer"]
    unknown = replace(layer, shape=("N", 4, "H", "W"))
    refused(unknown.model(), "from_onnx: node 'layer': auto_pad is SAME and the size of 'x_real' is not known in the")
    always_the_same = replace(unknown, attributes={"auto_pad": "SAME_UPPER"})
    assert list(formats.from_onnx(always_the_same.model())) == ["layer"]


def test_blocks_are_refused():
    model = CONV.model()
    node_of(model, "DequantizeLinear").attribute.append(helper.make_attribute("block_size", 2))
    refused(model, "from_onnx: node 'layer': x has scales for blocks of 2, expected one, or one per output channel")


def test_float_layers_are_left_out():
    assert formats.from_onnx(add_output(CONV.model(), "r0")) == {}  # another consumer takes the result
    assert formats.from_onnx(replace(CONV, between=(("Sigmoid", (), {}),)).model()) == {}
    model = CONV.model()
    node_of(model, "Conv").domain = "elsewhere"
    assert formats.from_onnx(model) == {}
    model = CONV.model()
    node_of(model, "Conv").input[1] = "w"  # not dequantized
    assert formats.from_onnx(model) == {}
    model = CONV.model()
    del model.graph.node[-1]
    assert formats.from_onnx(model) == {}


def test_products_of_two_computed_values_are_left_out():
    model = with_constant(replace(GEMM, operator="MatMul").model(), "w", None)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.INT8, [12, 7]))
    assert formats.from_onnx(model) == {}
    model = matmul()
    with_constant(model, "b", None)
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.INT8, [12, 7]))
    assert formats.from_onnx(model) == {}


def matmul(**changes):
    constants = {
        "as": np.float32(0.02), "az": np.int8(7), "b": B, "bs": np.float32(0.01), "bz": np.int8(0),
        "ys": np.float32(0.05), "yz": np.int8(-13),
    } | changes  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", *constants], ["y"], name="layer")
    return model_of([node], constants, ("x", "int8", (9, 12)), ("y", "int8", (9, 7)))


def conv(**changes):
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(117), "w": W, "ws": np.float32(0.01), "wz": np.int8(0),
        "ys": np.float32(0.05), "yz": np.uint8(131), "B": np.zeros(6, np.int32),
    } | changes  # fmt: skip
    node = helper.make_node("QLinearConv", ["x", *constants], ["y"], name="layer")
    return model_of([node], constants, ("x", "uint8", (1, 4, 5, 5)), ("y", "uint8", (1, 6, 3, 3)))


QLINEAR = {
    "rows": (matmul, {"as": np.ones((9, 1), np.float32)}, "a_scale has shape [9, 1], expected one number: activations"),
    "stack": (matmul, {"b": np.stack([B, B])}, "b has shape [2, 12, 7], expected [K, N]"),
    "vector": (matmul, {"b": B[0]}, "b has shape [7], expected [K, N]"),
    "scales": (matmul, {"bs": np.ones(12, np.float32)}, "b_scale has shape [12], expected one number or [7]"),
    "float8": (matmul, {"az": np.zeros((), FLOAT8)}, "a has dtype float8_e4m3fn, expected int8 or uint8"),
    "w": (conv, {"w": W[0]}, "w has shape [4, 3, 3], expected [Co, Ci / groups, Kh, Kw]"),
    "bias": (conv, {"B": np.zeros(6, np.float32)}, "B has dtype float32, expected int32"),
    "bias shape": (conv, {"B": np.zeros(5, np.int32)}, "static.qconv2d: bias has shape [5], expected [6]"),
    "integer scale": (conv, {"xs": np.int32(1)}, "x_scale has dtype int32, expected float32 or float16 or bfloat16"),
    "empty scale": (conv, {"ws": np.ones(0, np.float32)}, "w_scale has shape [0], expected one number or [6]"),
}


@pytest.mark.parametrize("name", QLINEAR)
def test_qlinear_nodes(name):
    make, changes, message = QLINEAR[name]
    refused(make(**changes), f"from_onnx: node 'layer': {message}", qcore.QcoreError)


def gemm(attributes=None, **changes):
    constants = {
        "as": np.float32(0.02), "az": np.int8(7), "b": B, "bs": np.float32(0.01), "bz": np.int8(0),
        "c": np.arange(7, dtype=np.int32) * 300, "ys": np.float32(0.05), "yz": np.int8(-13),
    } | changes  # fmt: skip
    node = helper.make_node("QGemm", ["x", *constants], ["y"], name="layer", domain="com.microsoft", **attributes or {})
    return model_of([node], constants, ("x", "int8", (9, 12)), ("y", "int8", (9, 7)))


def test_qgemm():
    x = np.random.default_rng(0).integers(-128, 128, (9, 12)).astype(np.int8)
    got = formats.from_onnx(gemm())["layer"](x)
    steps = ((x.astype(int) - 7).sum(axis=1, keepdims=True) + np.arange(7) * 300) * (0.02 * 0.01 / 0.05)
    assert np.array_equal(got, np.clip(np.rint(steps) - 13, -128, 127))
    same = gemm({"transB": 1}, b=B.T, c=(np.arange(7, dtype=np.int32) * 300)[None])
    assert np.array_equal(formats.from_onnx(same)["layer"](x), got)
    single = formats.from_onnx(gemm(c=np.int32([600])))["layer"](x)
    assert np.array_equal(single, formats.from_onnx(gemm(c=np.full(7, 600, np.int32)))["layer"](x))
    real = gemm()
    del real.graph.node[0].input[7:]
    assert formats.from_onnx(real) == {}  # its result is float
    refused(gemm({"transA": 1}), "from_onnx: node 'layer': transA is 1, expected 0")
    refused(gemm({"alpha": 2.0}), "from_onnx: node 'layer': alpha is 2.0, expected 1")
    refused(gemm(c=np.zeros((9, 1), np.int32)), "from_onnx: node 'layer': C has shape [9, 1], expected [7]")
    refused(gemm(c=np.zeros(7, np.float32)), "from_onnx: node 'layer': C has dtype float32, expected int32", TYPE)


def test_broadcast_bias_of_gemm():
    x = np.random.default_rng(0).integers(0, 256, (3, 12)).astype(np.uint8)
    results = [
        formats.from_onnx(replace(GEMM, bias=(np.full(shape, 0.25, np.float32),)).model())["layer"](x)
        for shape in ((7,), (1, 7), (1,), ())
    ]
    assert all(np.array_equal(each, results[0]) for each in results)
    rows = replace(GEMM, bias=(np.zeros((3, 1), np.float32),))
    refused(rows.model(), "from_onnx: node 'layer': bias has shape [3, 1], expected [7]")


def test_convolutions_with_computed_weights_are_refused():
    model = with_constant(conv(), "w", None)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.INT8, W.shape))
    refused(model, "from_onnx: node 'layer': w is 'w', which is no initializer, expected a constant")


def test_qlinear_without_zero_points():
    """Types come from the graph."""
    model = conv()
    zeros = conv(xz=np.uint8(0), yz=np.uint8(0))
    node = model.graph.node[0]
    node.input[2] = node.input[5] = node.input[7] = ""
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 5, 5)).astype(np.uint8)
    got, expected = (formats.from_onnx(each)["layer"](x) for each in (model, zeros))
    assert np.array_equal(got, expected)
    del model.graph.input[:]
    refused(model, "from_onnx: node 'layer': x has no zero point and no type in the graph, expected one of them")


def test_constants_in_nodes():
    plain = CONV.model()
    moved = CONV.model()
    for tensor in plain.graph.initializer:
        moved.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del moved.graph.initializer[:]
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 9, 8)).astype(np.uint8)
    got, expected = (formats.from_onnx(each)["layer"](x) for each in (moved, plain))
    assert np.array_equal(got, expected)
    bare = CONV.model()
    with_constant(bare, "x_scale", None)
    bare.graph.node.insert(0, helper.make_node("Constant", [], ["x_scale"], name="s", value_string="x"))
    refused(bare, "from_onnx: node 's' has ['value_string'], expected a tensor")
    bare.graph.node[0].CopyFrom(helper.make_node("Constant", [], ["x_scale"], value_float=0.02))
    assert np.array_equal(formats.from_onnx(bare)["layer"](x), expected)


def test_broken_models():
    twice = CONV.model()
    twice.graph.node.append(helper.make_node("Relu", ["x_real"], ["r0"], name="again"))
    refused(twice, "from_onnx: node 'again' makes 'r0', which another node makes too")

    around = conv()
    around.graph.node[0].input[0] = "y"
    assert list(formats.from_onnx(around)) == ["layer"]  # a layer like any other, whoever calls it

    for name in ("x_scale", "w"):
        short = CONV.model()
        tensor = next(each for each in short.graph.initializer if each.name == name)
        del tensor.dims[:]
        tensor.dims.extend([2**40, 2**20])
        refused(short, f"from_onnx: node 'layer': {name} is '{name}', which can't be read")

    bare = CONV.model()
    del node_of(bare, "Conv").output[:]
    refused(bare, "from_onnx: node 'layer' (Conv) has no output, expected one")
    bare = CONV.model()
    del node_of(bare, "QuantizeLinear").input[1:]
    refused(bare, "from_onnx: node 'layer': y_scale is not given, expected a constant")
    bare = conv()
    del bare.graph.node[0].input[:]
    refused(bare, "from_onnx: node 'layer': x_scale is not given, expected a constant")
    assert formats.from_onnx(onnx.ModelProto()) == {}
    broken = CONV.model()
    node_of(broken, "Conv").attribute.append(onnx.AttributeProto(name="group"))
    refused(broken, "from_onnx: node 'layer': group is None, expected an integer", TYPE)
    node_of(broken, "Conv").attribute[-1].ref_attr_name = "outer"
    refused(broken, "from_onnx: node 'layer' has an attribute that can't be read")


def test_relus_in_a_circle():
    model = CONV.model()
    model.graph.node[-1].CopyFrom(helper.make_node("Relu", ["r0"], ["r1"]))
    model.graph.node.append(helper.make_node("Relu", ["r1"], ["r0"]))
    del node_of(model, "Conv").output[:]
    node_of(model, "Conv").output.append("r1")
    refused(model, "which another node makes too")


def test_clips_that_are_computed():
    layer = replace(CONV, between=(("Clip", (-1.0, 1.0), {}),))
    refused(with_constant(layer.model(), "between0_0", None), "min is 'between0_0', which is no initializer")
    refused(with_constant(layer.model(), "between0_1", np.float32([1, 2])), "max is [1. 2.], expected one number")


@pytest.mark.parametrize("seed", range(4))
def test_damaged_models_are_refused_or_read(seed):
    """Whatever bytes are changed: no other error than qcore's own."""
    rng = np.random.default_rng(seed)
    relu = replace(CONV, between=(("Relu", (), {}),), bias=(np.zeros(6, np.int32), np.float32(1), None))
    whole = [each.SerializeToString() for each in (relu.model(), GEMM.model(), conv(), matmul())]
    outcomes = set()
    for _ in range(200):
        damaged = bytearray(whole[rng.integers(len(whole))])
        for place in rng.integers(len(damaged), size=rng.integers(1, 5)):
            damaged[place] = rng.integers(256)
        model = onnx.ModelProto()
        try:
            model.ParseFromString(bytes(damaged))
        except Exception:  # protobuf's own, before qcore sees anything
            continue
        try:
            formats.from_onnx(model)
            outcomes.add("read")
        except qcore.QcoreError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
