"""Formats whose value is ``(u - z) * s`` with codes u and zero points z of the same unsigned range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor

NEEDS_ROUNDING = (
    "its values are no exact float32 scale * code + offset with 8-bit codes: pass exact=False to round the offsets of "
    "such blocks once to float32"
)


def decode(
    codes: Any, zeros: Any, scales: Reals, *, bits: int, block_size: int, where: str, exact: bool = True
) -> QuantizedTensor:
    """Return u, uint8 [N, K], z, integers [N, P] in 0..2^bits - 1, and s, [N, P], as a QuantizedTensor.

    Codes are ``u - 2^(bits - 1)`` and the offset is ``s * (2^(bits - 1) - z)``, where float32 holds all offsets: always
    so for scales that were fp16 or bfloat16. Otherwise offsets are avoided: the codes are ``u - z`` in 8 bits, for all
    blocks (bits 4) or for those that fit (bits 8). What is left then needs ``exact=False``, which rounds.
    """
    middle = 1 << (bits - 1)
    wide = scales.astype(np.float64) * (middle - zeros.astype(np.float64))
    offsets = wide.astype(np.float32)
    held = offsets == wide
    if held.all() or not exact:
        return _tensor(codes.astype(np.int16) - middle, scales, offsets, bits, block_size)
    differences = codes.astype(np.int16) - spread(zeros.astype(np.int16), codes.shape[1], block_size)
    if bits == 4:
        return _tensor(differences, scales, np.zeros_like(scales), 8, block_size)
    edges = np.arange(0, codes.shape[1], block_size)
    fits = np.maximum.reduceat(differences, edges, axis=1) <= 127
    fits &= np.minimum.reduceat(differences, edges, axis=1) >= -128
    if not (held | fits).all():
        raise _core.QcoreValueError(f"{where}: {NEEDS_ROUNDING}")
    plain = spread(held, codes.shape[1], block_size)
    return _tensor(
        np.where(plain, codes.astype(np.int16) - middle, differences), scales, np.where(held, offsets, 0), 8, block_size
    )


def _tensor(codes: Any, scales: Reals, offsets: Any, bits: int, block_size: int) -> QuantizedTensor:
    parts = offsets.astype(np.float32) if offsets.any() else None
    return QuantizedTensor.from_parts(codes.astype(np.int8), scales, parts, bits=bits, block_size=block_size)


def spread(parameters: NDArray[Any], columns: int, block_size: int) -> NDArray[Any]:
    """Repeat [N, P] along K: [N, K]."""
    return np.repeat(parameters, block_size, axis=1)[:, :columns]


def encode(weight: QuantizedTensor, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Reals]:
    """Return u [N, K], z [N, P] and s [N, P] of a weight, with its own bits.

    Raises:
        QcoreValueError: an offset is no integer multiple of its scale, or the multiple is out of range.
    """
    middle = 1 << (weight.bits - 1)
    scales, offsets = weight.scales(), weight.offsets()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        zeros = np.where(scales == 0, middle, np.rint(middle - offsets.astype(np.float64) / scales))
    kept = (zeros >= 0) & (zeros < 2 * middle) & (scales.astype(np.float64) * (middle - zeros) == offsets)
    if not kept.all():
        row, block = (int(i) for i in np.argwhere(~kept)[0])
        raise _core.QcoreValueError(
            f"{where}: weight has scale {scales[row, block]} and offset {offsets[row, block]} in row {row}, block "
            f"{block}, expected an offset of scale * ({middle} - z) with an integer z in 0..{2 * middle - 1}: the "
            "format has no other offsets"
        )
    codes = (weight.codes().astype(np.int16) + middle).astype(np.uint8)
    return codes, zeros.astype(np.uint8), scales
