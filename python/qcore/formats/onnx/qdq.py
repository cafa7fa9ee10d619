"""Conv, MatMul and Gemm between DequantizeLinear and QuantizeLinear ("QDQ").

    x --- DequantizeLinear --+
    w --- DequantizeLinear --+-- Conv, MatMul, Gemm -- any Relu, Clip -- QuantizeLinear --- y
    bias (DequantizeLinear) -+

x and y are codes of int8 or uint8 with one scale each; w is a constant with one scale or one per output channel; the
bias is a constant, float or int32. A QuantizeLinear between a constant and w's DequantizeLinear is carried out here.
Sources: the operators' pages at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core, static
from qcore.formats import _inputs
from qcore.formats.onnx import layers
from qcore.formats.onnx.codes import RANGES, Format, Weight, format_of, row_of, weight_of
from qcore.formats.onnx.graph import STANDARD_DOMAINS, Graph, Node, package

OPERATORS = ("Conv", "MatMul", "Gemm")
_DOMAINS = (*STANDARD_DOMAINS, "com.microsoft")  # ONNX Runtime's own nodes mean the same
_SAME_UNIT = 1e-5
"""Scales of a bias this close to x_scale * w_scale, relatively, are that product, rounded elsewhere."""


def layer_of(graph: Graph, node: Node) -> static.QConv2d | static.QLinear | None:
    """None if the node isn't quantized on all sides."""
    source, weights = _dequantizer(graph, node.input(0)), _dequantizer(graph, node.input(1))
    if source is None or weights is None:
        return None
    if graph.is_computed(weights.input(0)) and _quantizer_of_constant(graph, weights.input(0)) is None:
        return None
    end = _end(graph, node)
    if end is None:
        return None
    last, lo, hi = end
    # Types are inferred for the whole model, which takes time: only where they are needed.
    x = _format(graph, source, f"{node.where}: x", None if source.input(2) else graph.dtype(source.input(0)))
    y = _format(graph, last, f"{node.where}: y", _quantized_dtype(last))
    weight = _weight(graph, node, weights)
    clamp = (y.code(lo), y.code(hi))
    bias = _bias(graph, node, x, weight)
    if node.op_type == "Conv":
        return layers.convolution(graph, node, x, weight, y, bias, clamp)
    return layers.product(node, x, weight, y, bias, clamp)


def _is(node: Node | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and node.domain in _DOMAINS


def _dequantizer(graph: Graph, name: str) -> Node | None:
    node = graph.producer(name)
    return node if _is(node, "DequantizeLinear") else None


def _end(graph: Graph, node: Node) -> tuple[Node, float, float] | None:
    """Return the QuantizeLinear that takes a node's result, and the bounds that Relu and Clip set on the way to it."""
    name, lo, hi = node.output(), -math.inf, math.inf
    while True:  # never around in a circle: each value has one producer, and graph sees to that
        users = graph.consumers(name)
        if name in graph.outputs or len(users) != 1 or users[0].input(0) != name:
            return None
        if _is(users[0], "QuantizeLinear"):
            return users[0], lo, hi
        if not users[0].is_standard or users[0].op_type not in ("Relu", "Clip"):
            return None
        low, high = _bounds(graph, users[0])
        lo, hi = (min(max(bound, low), high) for bound in (lo, hi))
        name = users[0].output()


def _bounds(graph: Graph, node: Node) -> tuple[float, float]:
    if node.op_type == "Relu":
        return 0.0, math.inf
    found = []
    for index, name, default in ((1, "min", -math.inf), (2, "max", math.inf)):
        array = graph.constant(node.input(index), f"{node.where}: {name}")
        if array is None:  # an attribute before opset 11
            found.append(_checks.number(node.attributes.get(name, default), f"{node.where}: {name}"))
        elif array.size == 1 and not np.isnan(array).any():
            found.append(float(array.reshape(-1)[0]))
        else:
            raise _core.QcoreValueError(f"{node.where}: {name} is {array}, expected one number")
    return found[0], found[1]


def _format(graph: Graph, node: Node, where: str, dtype: str | None) -> Format:
    _check_not_blocked(node, where)
    return format_of(graph, node.input(1), node.input(2), dtype, where)


def _quantized_dtype(node: Node) -> str:
    """Return the dtype of the codes of a QuantizeLinear without a zero point."""
    number = node.attributes.get("output_dtype", 0)
    try:
        return str(package().TensorProto.DataType.Name(number)).lower() if number else "uint8"
    except ValueError:
        raise _core.QcoreValueError(f"{node.where}: output_dtype is {number}, expected int8 or uint8") from None


def _check_not_blocked(node: Node, where: str) -> None:
    size = node.attributes.get("block_size", 0)
    if size:
        raise _core.QcoreValueError(f"{where} has scales for blocks of {size}, expected one, or one per output channel")


def _quantizer_of_constant(graph: Graph, name: str) -> Node | None:
    node = graph.producer(name)
    return node if node is not None and _is(node, "QuantizeLinear") and graph.is_constant(node.input(0)) else None


def _codes(graph: Graph, name: str, where: str) -> NDArray[Any]:
    """Constant codes, or those that a QuantizeLinear makes of a constant."""
    node = _quantizer_of_constant(graph, name)
    if node is None:
        return graph.required(name, where)
    _check_not_blocked(node, where)
    values = _inputs.reals(graph.required(node.input(0), where), where)
    scale = _inputs.reals(graph.required(node.input(1), f"{where}_scale"), f"{where}_scale")
    zeros = graph.constant(node.input(2), f"{where}_zero_point")
    dtype = _quantized_dtype(node) if zeros is None else zeros.dtype.name
    if dtype not in RANGES:
        raise _core.QcoreTypeError(f"{where} has dtype {dtype}, expected int8 or uint8")
    axis = _checks.integer(node.attributes.get("axis", 1), f"{where}: axis")
    shape = [1] * values.ndim
    if scale.size != 1 and -values.ndim <= axis < values.ndim:
        shape[axis] = values.shape[axis]
    if not all(each is None or each.size == math.prod(shape) for each in (scale, zeros)) or not (scale > 0).all():
        raise _core.QcoreValueError(
            f"{where} is quantized with scales {list(scale.shape)} along axis {axis} of {list(values.shape)}, expected "
            "one positive number or one per output channel, and as many zero points"
        )
    with np.errstate(over="ignore"):
        steps = np.rint(values / scale.reshape(shape))
    shifted = steps.astype(np.float64) + (0 if zeros is None else zeros.reshape(shape).astype(np.float64))
    codes: NDArray[Any] = np.clip(shifted, *RANGES[dtype]).astype(dtype)
    return codes


def _weight(graph: Graph, node: Node, source: Node) -> Weight:
    where = f"{node.where}: w"
    _check_not_blocked(source, where)
    codes = _codes(graph, source.input(0), where)
    scale = graph.required(source.input(1), f"{where}_scale")
    zeros = graph.constant(source.input(2), f"{where}_zero_point")
    channels = 0
    if node.op_type == "Conv":
        layers.check_rank(codes, 4, "[Co, Ci / groups, Kh, Kw]", where)
    else:
        transposed = node.op_type == "Gemm" and node.attributes.get("transB", 0)
        layers.check_rank(codes, 2, "[N, K]" if transposed else "[K, N]", where)
        channels = 0 if transposed else 1
    if scale.size != 1:
        axis = _checks.integer(source.attributes.get("axis", 1), f"{where}: axis")
        if axis not in (channels, channels - codes.ndim):
            raise _core.QcoreValueError(
                f"{where} has scales along axis {axis}, expected axis {channels}, that of the output channels"
            )
    return weight_of(codes.T if channels else codes, scale, zeros, where)


def _bias(graph: Graph, node: Node, x: Format, weight: Weight) -> NDArray[np.int32] | None:
    where = f"{node.where}: bias"
    name = node.input(2)
    if node.op_type == "Gemm":
        for attribute, expected in (("transA", 0), ("alpha", 1), ("beta", 1)):
            value = node.attributes.get(attribute, expected)
            if value != expected and (attribute != "beta" or name):
                raise _core.QcoreValueError(f"{node.where}: {attribute} is {value}, expected {expected}")
    if node.op_type == "MatMul" or not name:
        return None
    unit = np.float64(x.scale) * weight.scale
    channels = len(weight.codes)
    source = _dequantizer(graph, name)
    if source is None:
        reals = _inputs.reals(graph.required(name, where), where)
        steps = row_of(reals, channels, where, broadcast=node.op_type == "Gemm") / unit
    else:
        steps = _integer_steps(graph, node, source, unit, channels, where)
    rounded = np.rint(np.broadcast_to(steps, (channels,)))
    if not (np.abs(rounded) < 2**31).all():
        raise _core.QcoreValueError(f"{where} / (x_scale * w_scale) is {np.abs(rounded).max():g}, expected int32")
    return rounded.astype(np.int32)


def _integer_steps(graph: Graph, node: Node, source: Node, unit: Any, channels: int, where: str) -> NDArray[Any]:
    _check_not_blocked(source, where)
    codes = graph.required(source.input(0), where)
    if codes.dtype != np.int32:
        raise _core.QcoreTypeError(f"{where} has dtype {codes.dtype}, expected int32")
    scale = _inputs.reals(graph.required(source.input(1), f"{where}_scale"), f"{where}_scale").astype(np.float64)
    scale = row_of(scale, channels, f"{where}_scale", broadcast=True)
    zeros = graph.constant(source.input(2), f"{where}_zero_point")
    if zeros is not None and zeros.any():
        raise _core.QcoreValueError(f"{where}_zero_point is {zeros.reshape(-1)[0]}, expected 0: it is int32")
    steps = row_of(codes, channels, where, broadcast=node.op_type == "Gemm").astype(np.float64)
    return np.where(np.abs(scale / unit - 1) <= _SAME_UNIT, steps, steps * scale / unit)
