"""A small CNN that ONNX Runtime's own tool has quantized: each layer gives the codes that ONNX Runtime has there."""

from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from static_calls import PEER_LIMIT

import qcore
from qcore import formats
from qcore.static import QConv2d, QLinear

LAYERS = {"first": QConv2d, "depthwise": QConv2d, "pointwise": QConv2d, "gemm": QLinear, "matmul": QLinear}
RNG = np.random.default_rng(0)
SAMPLES = RNG.standard_normal((3, 4, 3, 14, 14)).astype(np.float32)
U8, S8 = QuantType.QUInt8, QuantType.QInt8


def network():
    shapes = {
        "w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "b2": (8,), "w3": (12, 8, 1, 1), "b3": (12,),
        "w4": (12 * 16, 10), "b4": (10,), "w5": (10, 6),
    }  # fmt: skip
    arrays = {name: RNG.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 8)) for name, shape in shapes.items()}
    arrays |= {"lo": 0.0, "hi": 1.0}
    pads = [1, 1, 1, 1]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name="first", pads=pads, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["a+"]),
        helper.make_node("Conv", ["a+", "w2", "b2"], ["b"], name="depthwise", group=8, pads=pads),
        helper.make_node("Clip", ["b", "lo", "hi"], ["b+"]),
        helper.make_node("Conv", ["b+", "w3", "b3"], ["c"], name="pointwise", auto_pad="SAME_UPPER", strides=[2, 2]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["g"], name="gemm"),
        helper.make_node("MatMul", ["g", "w5"], ["y"], name="matmul"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 14, 14])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 6])],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Samples(CalibrationDataReader):
    def __init__(self):
        self._left = iter(SAMPLES)

    def get_next(self):
        x = next(self._left, None)
        return None if x is None else {"x": x}


def quantized(folder, layout, per_channel, x_type, w_type, reduce_range=False):
    onnx.save(network(), folder / "float.onnx")
    options = {"per_channel": per_channel, "activation_type": x_type, "weight_type": w_type}
    options |= {"reduce_range": reduce_range}
    quantize_static(folder / "float.onnx", folder / "quantized.onnx", Samples(), quant_format=layout, **options)
    return onnx.load(folder / "quantized.onnx")


def ends_of(graph, name):
    """Return the names of the codes that go into a layer and come out of it."""
    producer = {output: node for node in graph.node for output in node.output}
    node = next(each for each in graph.node if each.name == name)
    if node.op_type.startswith("Q"):
        return node.input[0], node.output[0]
    output = node.output[0]
    while (user := next(each for each in graph.node if output in each.input)).op_type != "QuantizeLinear":
        output = user.output[0]
    return producer[node.input[0]].input[0], user.output[0]


@pytest.mark.parametrize(
    ("layout", "per_channel", "x_type", "w_type"),
    list(product((QuantFormat.QDQ, QuantFormat.QOperator), (False, True), (U8, S8), (S8,))),
    ids=str,
)
def test_every_layer_is_onnxruntimes(layout, per_channel, x_type, w_type, tmp_path):
    model = quantized(tmp_path, layout, per_channel, x_type, w_type, reduce_range=PEER_LIMIT < 128)
    found = formats.from_onnx(model)
    suffix = "" if layout is QuantFormat.QDQ else "_quant"
    assert {name.removesuffix(suffix): type(layer) for name, layer in found.items()} == LAYERS
    ends = {name: ends_of(model.graph, name) for name in found}
    for value in {value for pair in ends.values() for value in pair}:
        model.graph.output.append(helper.make_empty_tensor_value_info(value))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, (source, target) in ends.items():
        codes, expected = session.run([source, target], {"x": SAMPLES[0]})
        got = found[name](codes)
        assert got.dtype == expected.dtype
        difference = np.abs(got.astype(int) - expected)
        assert difference.max() <= 1
        assert (difference != 0).mean() <= 0.002


def test_unsigned_weights_with_a_zero_point_for_each_channel(tmp_path):
    model = quantized(tmp_path, QuantFormat.QOperator, True, U8, U8)
    with pytest.raises(qcore.QcoreValueError, match=r"node '\w+_quant': [wb] less its zero points, which differ"):
        formats.from_onnx(model)
