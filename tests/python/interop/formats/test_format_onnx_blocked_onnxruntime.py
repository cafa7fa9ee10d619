"""Weights of MatMul and Gemm from a DequantizeLinear in blocks, against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qcore
from qcore import formats

N, K, G = 6, 70, 16
P = 5
RANGES = {"INT4": (-8, 8), "UINT4": (0, 16), "INT8": (-128, 128), "UINT8": (0, 256)}


def tensor(name, kind, values):
    return helper.make_tensor(name, getattr(TensorProto, kind), values.shape, values.reshape(-1))


def model_of(kind, *, zeros=True, gemm=False, dtype=np.float32, seed=0, shape=(P, N), **attributes):
    """Return a model with one product, whose weight is [K, N], or [N, K] with ``gemm``."""
    rng = np.random.default_rng(seed)
    turn = (lambda array: np.ascontiguousarray(array.T)) if gemm else (lambda array: array)
    codes = turn(rng.integers(*RANGES[kind], (K, N)))
    scales = turn(rng.uniform(-0.02, 0.02, shape).astype(dtype).astype(np.float32))
    constants = [tensor("codes", kind, codes), numpy_helper.from_array(scales, "scales")]
    names = ["codes", "scales"]
    if zeros:
        constants.append(tensor("zeros", kind, turn(rng.integers(*RANGES[kind], shape))))
        names.append("zeros")
    attributes = {"axis": int(gemm), "block_size": G} | attributes
    nodes = [
        helper.make_node("DequantizeLinear", names, ["w"], **attributes),
        helper.make_node("Gemm" if gemm else "MatMul", ["x", "w"], ["y"], name="p", **({"transB": 1} if gemm else {})),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", K])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", N])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializer=constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def dequantized(model):
    """Return values [N, K]: each sum of a product with an identity has one term, so that nothing is rounded."""
    options = onnxruntime.SessionOptions()
    # Without fusion into MatMulNBits, whose kernels subtract sums of x times the zero points, rounded.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": np.eye(K, dtype=np.float32)})[0].T


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("gemm", [False, True])
def test_every_value_is_onnxruntimes_own(kind, zeros, gemm):
    model = model_of(kind, zeros=zeros, gemm=gemm)
    weight = formats.from_onnx(model)["p"]
    assert (weight.shape, weight.bits, weight.block_size) == ((N, K), 4 if "4" in kind else 8, G)
    assert (weight.encoding is None) == (not zeros and kind.startswith("INT"))
    assert np.array_equal(weight.dequantize(), dequantized(model))


def test_rounded_offsets():
    weight = formats.from_onnx(model_of("UINT8"), exact=False)["p"]
    assert (weight.encoding, weight.bits) == (None, 8)


@pytest.mark.parametrize("change", [{"block_size": 0, "shape": (N,), "axis": 1}, {"axis": 1}])
def test_weights_without_blocks_along_k_are_left_out(change):
    assert formats.from_onnx(model_of("INT8", **change)) == {}


def test_wrong_shapes():
    with pytest.raises(
        qcore.QcoreValueError, match=r"^from_onnx: node 'p': w_scale has shape \[4, 6\], expected \[5, 6\]"
    ):
        formats.from_onnx(model_of("INT4", shape=(4, N)))
    with pytest.raises(qcore.QcoreValueError, match=r"node 'p': w has shape .* and block_size -1, expected positive"):
        formats.from_onnx(model_of("INT4", block_size=-1))
