"""MatMul and Gemm whose weight alone is quantized: a DequantizeLinear with ``block_size`` along K.

| input of DequantizeLinear | layout |
|---|---|
| x | int4, uint4, int8 or uint8 [K, N]; [N, K] for a Gemm with transB |
| x_scale | float32, float16 or bfloat16, likewise, with ceil(K / block_size) in the place of K |
| x_zero_point | of the type of x and the shape of x_scale; 0 if absent |

Value: ``(x - x_zero_point) * x_scale``. Source: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html.
"""

from __future__ import annotations

import numpy as np

from qcore import _checks, _core
from qcore.formats import _inputs, _zero_point_codec
from qcore.formats.onnx.graph import STANDARD_DOMAINS, Graph, Node
from qcore.quantized_tensor import QuantizedTensor

OPERATORS = ("MatMul", "Gemm")
_DOMAINS = (*STANDARD_DOMAINS, "com.microsoft")
_TYPES = {"int4": (4, 8), "uint4": (4, 0), "int8": (8, 128), "uint8": (8, 0)}
"""Bits, and what makes codes unsigned, by dtype."""


def weight_of(graph: Graph, node: Node, *, exact: bool) -> QuantizedTensor | None:
    """Return the weight [N, K]; None if it isn't a constant in blocks along K. A Gemm's bias is not part of it."""
    source = graph.producer(node.input(1))
    if source is None or source.op_type != "DequantizeLinear" or source.domain not in _DOMAINS:
        return None
    size = _checks.integer(source.attributes.get("block_size", 0), f"{node.where}: block_size")
    if size == 0 or not graph.is_constant(source.input(0)):
        return None
    if any(node.attributes.get(name, plain) != plain for name, plain in (("transA", 0), ("alpha", 1))):
        return None
    where = f"{node.where}: w"
    codes = graph.required(source.input(0), where)
    along = 1 if node.op_type == "Gemm" and node.attributes.get("transB", 0) else 0
    axis = _checks.integer(source.attributes.get("axis", 1), f"{where}: axis")
    if codes.ndim != 2 or axis not in (along, along - 2):
        return None
    if codes.dtype.name not in _TYPES:
        raise _core.QcoreTypeError(f"{where} has dtype {codes.dtype}, expected {', '.join(_TYPES)}")
    if size < 1 or 0 in codes.shape:
        raise _core.QcoreValueError(
            f"{where} has shape {list(codes.shape)} and block_size {size}, expected positive numbers"
        )
    scales = _inputs.reals(graph.required(source.input(1), f"{where}_scale"), f"{where}_scale")
    shape = [*codes.shape]
    shape[along] = -(-shape[along] // size)
    _inputs.check_shape(scales, (shape[0], shape[1]), f"{where}_scale", "that of w in blocks of block_size")
    bits, middle = _TYPES[codes.dtype.name]
    zeros = graph.constant(source.input(2), f"{where}_zero_point")
    if zeros is None:
        zeros = np.zeros(scales.shape, np.int16)
    elif zeros.dtype != codes.dtype:
        raise _core.QcoreTypeError(f"{where}_zero_point has dtype {zeros.dtype}, expected {codes.dtype}, that of w")
    _inputs.check_shape(zeros, scales.shape, f"{where}_zero_point", "that of the scales")
    u, z = ((each.astype(np.int16) + middle).astype(np.uint8) for each in (codes, zeros))
    if not along:
        u, z, scales = u.T, z.T, np.ascontiguousarray(scales.T)
    return _zero_point_codec.decode(u, z, scales, bits=bits, block_size=size, where=where, exact=exact)
