"""Formats whose value is ``s * u + b`` with unsigned codes u."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats._inputs import Reals, smallest_floats
from qcore.formats._zero_point_codec import NEEDS_ROUNDING, spread
from qcore.quantized_tensor import QuantizedTensor
from qcore.weight_encoding import WeightEncoding


def decode(
    codes: NDArray[np.uint8],
    scales: Reals,
    minima: Reals,
    *,
    bits: int,
    block_size: int,
    where: str,
    exact: bool = True,
) -> QuantizedTensor:
    """Return u, uint8 [N, K] of ``bits`` 2 to 8, s and b, [N, P], as a QuantizedTensor.

    Exact codes of 2 to 6 bits stay as they are, in an encoded weight whose parameters are of the smallest of float16,
    bfloat16 and float32 that holds them. Codes of 8 bits become ``u - 128``, with the offset ``b + 128 * s`` if float32
    holds all of them; otherwise blocks without a code above 127 stay as they are. What is left then needs
    ``exact=False``, which gives a plain weight and rounds offsets.
    """
    if exact and bits <= 6:
        (kept, kind), (low, low_kind) = smallest_floats(scales), smallest_floats(minima)
        encoding = WeightEncoding(bits, kind, low_kind)  # type: ignore[arg-type]
        return QuantizedTensor.from_encoded(codes, kept, low, encoding=encoding, block_size=block_size)
    storage = 4 if bits <= 4 else 8
    if bits not in (4, 8):
        return _tensor(codes, scales, minima, storage, block_size)
    middle = 1 << (bits - 1)
    offsets, held = _sums(minima, scales, middle)
    if held.all() or not exact:
        return _tensor(codes.astype(np.int16) - middle, scales, offsets, storage, block_size)
    fits = np.maximum.reduceat(codes, np.arange(0, codes.shape[1], block_size), axis=1) <= 127
    if not (held | fits).all():
        raise _core.QcoreValueError(f"{where}: {NEEDS_ROUNDING}")
    moved = codes.astype(np.int16) - spread(np.where(fits, 0, middle).astype(np.int16), codes.shape[1], block_size)
    return _tensor(moved, scales, np.where(fits, minima, offsets), 8, block_size)


def _sums(minima: Reals, scales: Reals, middle: int) -> tuple[Reals, NDArray[np.bool_]]:
    """Return ``minima + middle * scales`` rounded to float32, and where that was exact."""
    a, b = minima.astype(np.float64), scales.astype(np.float64) * middle
    total = a + b
    part = total - a
    lost = (a - (total - part)) + (b - part)  # of the float64 sum, exactly (Knuth's two-sum)
    with np.errstate(over="ignore"):
        rounded = total.astype(np.float32)
    return rounded, (lost == 0) & (rounded == total)


def _tensor(codes: Any, scales: Reals, offsets: Any, bits: int, block_size: int) -> QuantizedTensor:
    return QuantizedTensor.from_parts(
        codes.astype(np.int8), scales, offsets.astype(np.float32), bits=bits, block_size=block_size
    )


def encode(weight: QuantizedTensor, where: str) -> tuple[NDArray[np.uint8], Reals, Reals]:
    """Return u [N, K] of the weight's bits, s and b [N, P]; codes that are none of them negative stay as they are.

    Raises:
        QcoreValueError: a minimum, ``offset - 2^(bits - 1) * scale``, is no float32 number.
    """
    codes, scales, offsets = weight.codes(), weight.scales(), weight.offsets()
    if codes.min() >= 0:
        return codes.view(np.uint8), scales, offsets
    middle = 1 << (weight.bits - 1)
    minima, held = _sums(offsets, scales, -middle)
    if not held.all():
        row, block = (int(i) for i in np.argwhere(~held)[0])
        raise _core.QcoreValueError(
            f"{where}: weight has scale {scales[row, block]} and offset {offsets[row, block]} in row {row}, block "
            f"{block}, expected offset - {middle} * scale, the value of the lowest code, to be a float32 number"
        )
    return (codes.astype(np.int16) + middle).astype(np.uint8), scales, minima
