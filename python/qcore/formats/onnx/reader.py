"""Goes through a model's nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qcore import _core
from qcore.formats.onnx import blocked_weights, matmul_nbits, qdq, qlinear_nodes
from qcore.formats.onnx.graph import Graph, Node, graph_of
from qcore.quantized_tensor import QuantizedTensor

if TYPE_CHECKING:
    from qcore.static import QConv2d, QLinear


def from_onnx(model: Any, *, exact: bool = True) -> dict[str, QuantizedTensor | QConv2d | QLinear]:
    """Return what an ONNX model's quantized nodes hold, as weights and operators of qcore.

    | node | becomes |
    |---|---|
    | MatMulNBits | the weight [N, K], a :class:`qcore.QuantizedTensor` for :func:`qcore.linear` |
    | MatMul or Gemm with DequantizeLinear of a constant in blocks along K (int4, uint4, int8, uint8) | likewise |
    | QLinearConv | :class:`qcore.static.QConv2d` |
    | QLinearMatMul with a constant B [K, N]; QGemm | :class:`qcore.static.QLinear` |
    | DequantizeLinear, Conv, any Relu and Clip, QuantizeLinear | :class:`qcore.static.QConv2d` |
    | DequantizeLinear, MatMul or Gemm, any Relu and Clip, QuantizeLinear | :class:`qcore.static.QLinear` |

    Static operators take the codes that go into the node or its DequantizeLinear, and give those that come out of it or
    of its QuantizeLinear. int8 and uint8 are taken, weights per tensor or per output channel; a zero point that is not
    there is 0. Relu and Clip become ``clamp``. Bias that is float becomes int32 in units of x_scale * w_scale, rounded
    to nearest, and so does int32 with other scales.

    Left out: nodes of other kinds, products of two computed values (attention), and a Conv, MatMul or Gemm without
    such a weight that is not quantized on all sides, or whose result anything else takes too.

    Weights: codes, scales and zero points stay as they are, in an encoded weight, or in a plain one if all zero
    points are ``2^(bits - 1)``. ``dequantize()`` is ``(u - z) * s``, rounded once to float32. Zero points that are
    floats and no integers give offsets ``-s * z``; where float32 doesn't hold those, the weight needs ``exact=False``.
    A node's bias is not part of the weight.

    Args:
        model: a path, or an ``onnx.ModelProto``.
        exact: False gives plain weights with the model's bits, whose offsets are rounded once to
            float32.

    Returns:
        Name of the node (of the Conv, MatMul or Gemm; its first output's name, if it has none) to object.

    Raises:
        QcoreValueError: no ONNX model, or, naming the node: weights, scales or zero points that are no constants or
            have other shapes, activations with more than one scale, SAME padding of images whose size the graph doesn't
            tell, bits other than 4 and 8, g_idx, or no exact form.
        QcoreTypeError: naming the node, another dtype (int16, float8); or the package onnx is not installed.
    """
    graph = graph_of(model)
    found: dict[str, QuantizedTensor | QConv2d | QLinear] = {}
    for node in graph.nodes:
        layer = _layer_of(graph, node, exact)
        if layer is None:
            continue
        if node.name in found:
            raise _core.QcoreValueError(f"{node.where} is there twice, expected names that differ")
        found[node.name] = layer
    return found


def _layer_of(graph: Graph, node: Node, exact: bool) -> QuantizedTensor | QConv2d | QLinear | None:
    if node.op_type == matmul_nbits.OPERATOR and node.domain == matmul_nbits.DOMAIN:
        return matmul_nbits.weight_of(graph, node, exact=exact)
    if node.op_type == "QGemm" and node.domain == "com.microsoft":
        return qlinear_nodes.gemm_of(graph, node)
    if not node.is_standard:
        return None
    if node.op_type == "QLinearConv":
        return qlinear_nodes.convolution_of(graph, node)
    if node.op_type == "QLinearMatMul":
        return qlinear_nodes.product_of(graph, node)
    layer = qdq.layer_of(graph, node) if node.op_type in qdq.OPERATORS else None
    if layer is None and node.op_type in blocked_weights.OPERATORS:
        return blocked_weights.weight_of(graph, node, exact=exact)
    return layer
