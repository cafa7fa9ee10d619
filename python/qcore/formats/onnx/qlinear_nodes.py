"""QLinearConv and QLinearMatMul nodes.

| node | inputs |
|---|---|
| QLinearConv | x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B |
| QLinearMatMul | a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point |

Sources: https://onnx.ai/onnx/operators/onnx__QLinearConv.html and onnx__QLinearMatMul.html.
"""

from __future__ import annotations

import numpy as np

from qcore import _core, static
from qcore.formats.onnx import layers
from qcore.formats.onnx.codes import Format, format_of, weight_of
from qcore.formats.onnx.graph import Graph, Node


def convolution_of(graph: Graph, node: Node) -> static.QConv2d:
    x, y = _formats(graph, node, "x")
    codes = graph.required(node.input(3), f"{node.where}: w")
    layers.check_rank(codes, 4, "[Co, Ci / groups, Kh, Kw]", f"{node.where}: w")
    scale = graph.required(node.input(4), f"{node.where}: w_scale")
    weight = weight_of(codes, scale, graph.constant(node.input(5), f"{node.where}: w_zero_point"), f"{node.where}: w")
    bias = graph.constant(node.input(8), f"{node.where}: B")
    if bias is not None and bias.dtype != np.int32:
        raise _core.QcoreTypeError(f"{node.where}: B has dtype {bias.dtype}, expected int32")
    return layers.convolution(graph, node, x, weight, y, bias)


def product_of(graph: Graph, node: Node) -> static.QLinear | None:
    """None for a product of two computed values."""
    if graph.is_computed(node.input(3)):
        return None
    x, y = _formats(graph, node, "a")
    codes = graph.required(node.input(3), f"{node.where}: b")
    layers.check_rank(codes, 2, "[K, N]", f"{node.where}: b")
    scale = graph.required(node.input(4), f"{node.where}: b_scale")
    zeros = graph.constant(node.input(5), f"{node.where}: b_zero_point")
    return layers.product(node, x, weight_of(codes.T, scale, zeros, f"{node.where}: b"), y, None)


def _formats(graph: Graph, node: Node, first: str) -> tuple[Format, Format]:
    def read(name: str, value: str, at: int) -> Format:
        where = f"{node.where}: {name}"
        dtype = None if node.input(at + 1) else graph.dtype(value)
        return format_of(graph, node.input(at), node.input(at + 1), dtype, where)

    return read(first, node.input(0), 1), read("y", node.output(), 6)
