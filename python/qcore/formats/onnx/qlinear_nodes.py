"""QLinearConv and QLinearMatMul nodes, and ONNX Runtime's QGemm.

| node | inputs |
|---|---|
| QLinearConv | x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B |
| QLinearMatMul | a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point |
| QGemm | A, a_scale, a_zero_point, B, b_scale, b_zero_point, C, y_scale, y_zero_point |

Sources: https://onnx.ai/onnx/operators/onnx__QLinearConv.html, onnx__QLinearMatMul.html, and com.microsoft.QGemm of
ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qcore import _core, static
from qcore.formats.onnx import layers
from qcore.formats.onnx.codes import Format, Weight, format_of, row_of, weight_of
from qcore.formats.onnx.graph import Graph, Node


def convolution_of(graph: Graph, node: Node) -> static.QConv2d:
    x, y = _formats(graph, node, "x", 6)
    codes = graph.required(node.input(3), f"{node.where}: w")
    layers.check_rank(codes, 4, "[Co, Ci / groups, Kh, Kw]", f"{node.where}: w")
    scale = graph.required(node.input(4), f"{node.where}: w_scale")
    weight = weight_of(codes, scale, graph.constant(node.input(5), f"{node.where}: w_zero_point"), f"{node.where}: w")
    bias = _bias(graph, node, 8, "B")
    return layers.convolution(graph, node, x, weight, y, bias)


def product_of(graph: Graph, node: Node) -> static.QLinear | None:
    """Read the node; None for a product of two computed values."""
    if graph.is_computed(node.input(3)):
        return None
    return layers.product(node, *_product(graph, node, 6, transposed=False), None)


def gemm_of(graph: Graph, node: Node) -> static.QLinear | None:
    """Read the node; None for a product of two computed values, or one with a float result."""
    if graph.is_computed(node.input(3)) or not node.input(7):
        return None
    for attribute, expected in (("transA", 0), ("alpha", 1)):
        value = node.attributes.get(attribute, expected)
        if value != expected:
            raise _core.QcoreValueError(f"{node.where}: {attribute} is {value}, expected {expected}")
    x, weight, y = _product(graph, node, 7, transposed=bool(node.attributes.get("transB", 0)))
    bias = _bias(graph, node, 6, "C")
    if bias is not None:
        bias = np.ascontiguousarray(row_of(bias, len(weight.codes), f"{node.where}: C", broadcast=True))
    return layers.product(node, x, weight, y, bias)


def _product(graph: Graph, node: Node, y_at: int, *, transposed: bool) -> tuple[Format, Weight, Format]:
    x, y = _formats(graph, node, "a", y_at)
    where = f"{node.where}: b"
    codes = graph.required(node.input(3), where)
    layers.check_rank(codes, 2, "[N, K]" if transposed else "[K, N]", where)
    scale = graph.required(node.input(4), f"{where}_scale")
    zeros = graph.constant(node.input(5), f"{where}_zero_point")
    return x, weight_of(codes if transposed else codes.T, scale, zeros, where), y


def _bias(graph: Graph, node: Node, at: int, name: str) -> NDArray[np.int32] | None:
    bias = graph.constant(node.input(at), f"{node.where}: {name}")
    if bias is not None and bias.dtype != np.int32:
        raise _core.QcoreTypeError(f"{node.where}: {name} has dtype {bias.dtype}, expected int32")
    return bias


def _formats(graph: Graph, node: Node, first: str, y_at: int) -> tuple[Format, Format]:
    def read(name: str, value: str, at: int) -> Format:
        where = f"{node.where}: {name}"
        dtype = None if node.input(at + 1) else graph.dtype(value)
        return format_of(graph, node.input(at), node.input(at + 1), dtype, where)

    return read(first, node.input(0), 1), read("y", node.output(), y_at)
