"""Formats whose value is ``(u - z) * s`` with codes u and zero points z of the same unsigned range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats._inputs import Reals, smallest_floats
from qcore.quantized_tensor import QuantizedTensor
from qcore.weight_encoding import Offset, WeightEncoding

NEEDS_ROUNDING = (
    "its values are no exact float32 scale * code + offset: pass exact=False to round the offsets of such blocks once "
    "to float32"
)


def decode(
    codes: Any,
    zeros: Any,
    scales: Reals,
    *,
    bits: int,
    block_size: int,
    where: str,
    exact: bool = True,
    bfloat16_first: bool = False,
) -> QuantizedTensor:
    """Return u, uint8 [N, K] of ``bits`` 2, 3, 4 or 8, z, integers [N, P], and s, [N, P], as a QuantizedTensor.

    Codes and zero points stay as they are, in an encoded weight whose scales are of the smallest of float16, bfloat16
    and float32 that holds them; ``bfloat16_first`` is :func:`smallest_floats`'s. Zero points that are all
    ``2^(bits - 1)`` give a symmetric weight, a plain one for 4 and 8 bits. Zero points outside 0..255 give a plain
    weight with offsets, if float32 holds those. With ``exact=False`` a weight of 4 or 8 bits is plain, and its offsets
    are rounded once to float32.

    Raises:
        QcoreValueError: a zero point is outside 0..255 and float32 doesn't hold its offset.
    """
    middle = 1 << (bits - 1)
    symmetric = bool((zeros == middle).all())
    if bits in (4, 8) and (symmetric or not exact):
        return _with_offsets(codes, zeros, scales, bits, block_size)[0]
    if zeros.min() < 0 or zeros.max() > 255:
        tensor, held = _with_offsets(codes, zeros, scales, bits, block_size)
        if not held:
            raise _core.QcoreValueError(f"{where}: {NEEDS_ROUNDING}")
        return tensor
    kept, scale_kind = smallest_floats(scales, bfloat16_first=bfloat16_first)
    kind: Offset | None = None if symmetric else "uint4 zero points" if zeros.max() <= 15 else "uint8 zero points"
    encoding = WeightEncoding(bits, scale_kind, kind, zero=middle)
    parts = None if symmetric else zeros.astype(np.uint8)
    return QuantizedTensor.from_encoded(codes, kept, parts, encoding=encoding, block_size=block_size)


def _with_offsets(codes: Any, zeros: Any, scales: Reals, bits: int, block_size: int) -> tuple[QuantizedTensor, bool]:
    """Return a plain weight of codes ``u - 2^(bits - 1)``, and whether no offset was rounded."""
    middle = 1 << (bits - 1)
    wide = scales.astype(np.float64) * (middle - zeros.astype(np.float64))
    offsets = wide.astype(np.float32)
    signed = (codes.astype(np.int16) - middle).astype(np.int8)
    tensor = QuantizedTensor.from_parts(
        signed, scales, offsets if offsets.any() else None, bits=max(bits, 4), block_size=block_size
    )
    return tensor, bool((offsets == wide).all())


def spread(parameters: NDArray[Any], columns: int, block_size: int) -> NDArray[Any]:
    """Repeat [N, P] along K: [N, K]."""
    return np.repeat(parameters, block_size, axis=1)[:, :columns]


def encode(weight: QuantizedTensor, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Reals]:
    """Return u [N, K], z [N, P] and s [N, P] of a weight, with its own bits.

    The weight is plain, or one that :func:`decode` makes: ``_outputs.matrix(..., zero_points=True)`` gives both.

    Raises:
        QcoreValueError: an offset is no integer multiple of its scale, or the multiple is out of range.
    """
    middle = 1 << (weight.bits - 1)
    scales, offsets = weight.scales(), weight.offsets()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        zeros = np.where(scales == 0, middle, np.rint(middle - offsets.astype(np.float64) / scales))
    expected = scales.astype(np.float64) * (middle - zeros)
    if weight.encoding is not None:
        expected = expected.astype(np.float32)
    kept = (zeros >= 0) & (zeros < 2 * middle) & (expected == offsets)
    if not kept.all():
        row, block = (int(i) for i in np.argwhere(~kept)[0])
        raise _core.QcoreValueError(
            f"{where}: weight has scale {scales[row, block]} and offset {offsets[row, block]} in row {row}, block "
            f"{block}, expected an offset of scale * ({middle} - z) with an integer z in 0..{2 * middle - 1}: the "
            "format has no other offsets"
        )
    codes = (weight.codes().astype(np.int16) + middle).astype(np.uint8)
    return codes, zeros.astype(np.uint8), scales
