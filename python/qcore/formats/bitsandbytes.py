"""Weights of bitsandbytes: NF4, FP4 and LLM.int8().

| array | layout |
|---|---|
| weight of 4 bits | uint8, N * K / 2 bytes: the matrix [N, K] row by row, an even element in the high half of a byte |
| absmax | float32 [N * K / block_size]; or of a double-quantized weight uint8, numbers of nested_quant_map |
| nested_quant_map, nested_absmax | float32 [256], and float32 [ceil(blocks / 256)] |
| CB, SCB of LLM.int8() | int8 [N, K] and float32 [N] |

Value: ``absmax * table[u]``, with ``absmax = nested_quant_map[a] * nested_absmax + nested_offset`` of a weight that is
double-quantized; ``CB * SCB / 127``. Source: bitsandbytes.functional, dequantize_4bit and int8_vectorwise_dequant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _checks, _core
from qcore.formats import _bits, _inputs
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor
from qcore.weight_encoding import NF4_CODEBOOK, WeightEncoding

_FP4 = (0, 1, 80, 120, 40, 60, 20, 30, 0, -1, -80, -120, -40, -60, -20, -30)
_TABLES = {"nf4": (NF4_CODEBOOK, 112.03), "fp4": (_FP4, 120.0)}
"""Integers and what divides them, by type: the pair with the least mean square error."""
_NESTED_BLOCK = 256


def from_bitsandbytes_4bit(
    weight: Any,
    absmax: Any,
    *,
    quant_type: str,
    shape: Any,
    block_size: int = 64,
    nested_absmax: Any = None,
    nested_quant_map: Any = None,
    nested_offset: float = 0.0,
) -> QuantizedTensor:
    """Return a weight [N, K] of bitsandbytes in 4 bits, nearly: its table is rounded to integers of 8 bits.

    A value is wrong by at most 0.0039 of its block's absmax with "nf4" (root mean square over the table: 0.0017), and
    with "fp4" by 0.0032 where it is the smallest, +-1/192, and by float32's rounding else. The codes take the file's 4
    bits; absmax is kept in float32, also that of a double-quantized weight.

    Args:
        weight: uint8, N * K / 2 numbers of any shape.
        absmax: float32 [N * K / block_size]; uint8 for a double-quantized weight.
        quant_type: "nf4" or "fp4".
        shape: N and K, that of the quant_state.
        block_size: its blocksize, a divisor of K.
        nested_absmax: float32 [ceil(blocks / 256)], of a double-quantized weight.
        nested_quant_map: float32 [256], likewise.
        nested_offset: likewise.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype, or blocks don't end with rows.
    """
    where = "from_bitsandbytes_4bit"
    integers, divisor = _checks.choice(quant_type, _TABLES, f"{where}: quant_type")
    size = _checks.integer(block_size, f"{where}: block_size")
    sizes = [_checks.integer(each, f"{where}: shape") for each in shape]
    if len(sizes) != 2 or min(sizes) < 1:
        raise _core.QcoreValueError(f"{where}: shape is {sizes}, expected N and K")
    n, k = sizes
    if size < 1 or k % size or k % 2:
        raise _core.QcoreValueError(
            f"{where}: block_size is {size} and K is {k}, expected a divisor of K, which is even"
        )
    packed = _inputs.octets(weight, f"{where}: weight")
    if packed.size != n * k // 2:
        raise _core.QcoreValueError(
            f"{where}: weight has shape {list(packed.shape)}, expected {n * k // 2} bytes for {sizes}"
        )
    blocks = n * k // size
    values = _inputs.host(absmax, f"{where}: absmax")
    if values.dtype == np.uint8:
        scales = _nested(values, blocks, nested_absmax, nested_quant_map, nested_offset, where)
    else:
        if nested_absmax is not None or nested_quant_map is not None:
            raise _core.QcoreTypeError(f"{where}: absmax has dtype {values.dtype}, expected uint8 with nested_absmax")
        scales = _inputs.reals(values, f"{where}: absmax", ("float32",))
        _check_count(scales, blocks, f"{where}: absmax", "N * K / block_size")
    codes = _bits.nibbles(packed.reshape(n, k // 2)).reshape(n, -1, 2)[..., ::-1].reshape(n, k)
    encoding = WeightEncoding(4, "float32", codebook=integers)
    scales = (scales.reshape(n, k // size).astype(np.float64) / divisor).astype(np.float32)
    return QuantizedTensor.from_encoded(codes, scales, encoding=encoding, block_size=size)


def from_bitsandbytes_int8(weight: Any, scb: Any) -> QuantizedTensor:
    """Return a weight [N, K] of LLM.int8(), a plain weight of 8 bits with one scale per row, ``SCB / 127``.

    bitsandbytes multiplies by SCB and then by 1 / 127, so that its own values may differ by 2^-22 of themselves. Its
    products with the outlier columns of x in float16 have no counterpart: ``compute="float"`` takes all columns so.

    Args:
        weight: CB, int8 [N, K].
        scb: SCB, float32 [N], finite.

    Raises:
        QcoreValueError, QcoreTypeError: an array has another shape or dtype.
    """
    where = "from_bitsandbytes_int8"
    codes = _inputs.host(weight, f"{where}: weight")
    if codes.dtype != np.int8:
        raise _core.QcoreTypeError(f"{where}: weight has dtype {codes.dtype}, expected int8")
    _inputs.matrix(codes, f"{where}: weight", "[N, K]")
    rows = _inputs.reals(scb, f"{where}: scb", ("float32",))
    _check_count(rows, codes.shape[0], f"{where}: scb", "N")
    scales = (rows.reshape(-1, 1).astype(np.float64) / 127).astype(np.float32)
    return QuantizedTensor.from_parts(codes, scales, bits=8, block_size=codes.shape[1])


def _nested(numbers: NDArray[np.uint8], blocks: int, absmax: Any, table: Any, offset: Any, where: str) -> Reals:
    """Return absmax of a double-quantized weight, float32 [blocks], with bitsandbytes' two roundings."""
    if absmax is None or table is None:
        raise _core.QcoreValueError(
            f"{where}: absmax has dtype uint8 and nested_{'absmax' if absmax is None else 'quant_map'} is missing, "
            "expected both nested arrays of a double-quantized weight"
        )
    _check_count(numbers, blocks, f"{where}: absmax", "N * K / block_size")
    outer = _inputs.reals(absmax, f"{where}: nested_absmax", ("float32",))
    _check_count(outer, -(-blocks // _NESTED_BLOCK), f"{where}: nested_absmax", "ceil(blocks / 256)")
    values = _inputs.reals(table, f"{where}: nested_quant_map", ("float32",))
    _check_count(values, 256, f"{where}: nested_quant_map", "256")
    products = values.reshape(-1)[numbers.reshape(-1)] * np.repeat(outer.reshape(-1), _NESTED_BLOCK)[:blocks]
    found: Reals = products + np.float32(offset)
    return found


def _check_count(array: NDArray[Any], count: int, where: str, names: str) -> None:
    if array.size != count:
        raise _core.QcoreValueError(f"{where} has shape {list(array.shape)}, expected [{count}], which is {names}")
