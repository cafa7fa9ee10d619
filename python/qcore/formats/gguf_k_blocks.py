"""Super-blocks of 256 elements of GGUF files, which are read and not written.

With blocks of 16 or 32 elements and their scales sc and minima m of 4 or 6 bits, or 8 of Q6_K:

| type | bytes | layout | value |
|---|---|---|---|
| Q2_K | 84 | 16 bytes sc + 16 m, 64 bytes, d, dmin: 16 blocks of 16 | d * sc * u - dmin * m, u of 2 bits |
| Q3_K | 110 | 32 bytes of high bits, 64 bytes, 12 bytes, d: 16 blocks of 16 | d * (sc - 32) * (u - 4), u of 3 bits |
| Q4_K | 144 | d, dmin, 12 bytes, 128 bytes: 8 blocks of 32 | d * sc * u - dmin * m |
| Q5_K | 176 | d, dmin, 12 bytes, 32 bytes of high bits, 128 bytes: likewise | d * sc * u - dmin * m, u of 5 bits |
| Q6_K | 210 | 128 bytes, 64 bytes of high bits, 16 int8 sc, d: 16 blocks of 16 | d * sc * (u - 32), u of 6 bits |

Fields of several elements in a byte: a stretch of 32 bytes (64 for the low bits of Q6_K) holds as many runs of its
length, the first in the lowest bits. Source: ggml-quants.c of ggml.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from qcore.formats import _affine_codec, _inputs
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor

Bytes = NDArray[np.uint8]
T = TypeVar("T", bound=np.generic)
_SMALL, _LARGE = 16, 32


def _half(raw: Bytes, where: str) -> Reals:
    """Turn [N, S, 2] bytes into [N, S, 1] float32."""
    values = np.ascontiguousarray(raw).view("<f2").astype(np.float16)
    return _inputs.reals(values, where, ("float16",))


def _runs(raw: Bytes, bits: int, length: int = 32) -> Bytes:
    """Fields of ``bits`` in stretches of ``length`` bytes: [N, S, B] to [N, S, B * 8 / bits], in order."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    stretches = raw.reshape(*raw.shape[:2], -1, 1, length)
    return ((stretches >> shifts) & np.uint8((1 << bits) - 1)).reshape(*raw.shape[:2], -1)


def _rows(values: NDArray[T]) -> NDArray[T]:
    return values.reshape(len(values), -1)


def _six_bit_pairs(raw: Bytes) -> tuple[Reals, Reals]:
    """Return scales and minima [N, S, 8] of 12 bytes.

    Blocks 0..3 have 6 bits in the first eight; 4..7 have four in the last ones and two above those six.
    """
    low_s, low_m, high = raw[..., :4], raw[..., 4:8], raw[..., 8:12]
    s = np.concatenate([low_s & 63, high & 15 | low_s >> 2 & 48], axis=-1)
    m = np.concatenate([low_m & 63, high >> 4 | low_m >> 2 & 48], axis=-1)
    return s.astype(np.float32), m.astype(np.float32)


def _with_minima(
    codes: Bytes, scales: Reals, minima: Reals, bits: int, block: int, where: str, exact: bool
) -> QuantizedTensor:
    return _affine_codec.decode(
        _rows(codes), _rows(scales), -_rows(minima), bits=bits, block_size=block, where=where, exact=exact
    )


def from_q2_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 84 bytes as 16 blocks of 4 bits.

    Args:
        raw: uint8 [N, S, 84].
        where: begins the texts of errors.
        exact: False may round offsets.
    """
    d, dmin = _half(raw[..., 80:82], where), _half(raw[..., 82:84], where)
    s, m = (raw[..., :16] & 15).astype(np.float32), (raw[..., :16] >> 4).astype(np.float32)
    return _with_minima(_runs(raw[..., 16:80], 2), d * s, dmin * m, 2, _SMALL, where, exact)


def from_q3_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 110 bytes as 16 symmetric blocks of 4 bits.

    Args:
        raw: uint8 [N, S, 110].
        where: begins the texts of errors.
        exact: not used: nothing is rounded.
    """
    packed = raw[..., 96:108]
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    high = _runs(packed[..., 8:12], 2, 4)
    s = (low | high << np.uint8(4)).astype(np.float32) - 32
    codes = _runs(raw[..., 32:96], 2) | _runs(raw[..., :32], 1) << np.uint8(2)
    signed = codes.astype(np.int8) - np.int8(4)
    scales = _half(raw[..., 108:110], where) * s
    return QuantizedTensor.from_parts(_rows(signed), _rows(scales), bits=4, block_size=_SMALL)


def from_q4_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 144 bytes as 8 blocks of 4 bits, or of 8 where that alone is exact.

    Args:
        raw: uint8 [N, S, 144].
        where: begins the texts of errors.
        exact: False may round offsets.
    """
    d, dmin = _half(raw[..., :2], where), _half(raw[..., 2:4], where)
    s, m = _six_bit_pairs(raw[..., 4:16])
    return _with_minima(_runs(raw[..., 16:], 4), d * s, dmin * m, 4, _LARGE, where, exact)


def from_q5_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 176 bytes as 8 blocks of 8 bits.

    Args:
        raw: uint8 [N, S, 176].
        where: begins the texts of errors.
        exact: False may round offsets.
    """
    d, dmin = _half(raw[..., :2], where), _half(raw[..., 2:4], where)
    s, m = _six_bit_pairs(raw[..., 4:16])
    codes = _runs(raw[..., 48:], 4) | _runs(raw[..., 16:48], 1) << np.uint8(4)
    return _with_minima(codes, d * s, dmin * m, 5, _LARGE, where, exact)


def from_q6_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 210 bytes as 16 symmetric blocks of 8 bits.

    Args:
        raw: uint8 [N, S, 210].
        where: begins the texts of errors.
        exact: not used: nothing is rounded.
    """
    codes = _runs(raw[..., :128], 4, 64) | _runs(raw[..., 128:192], 2) << np.uint8(4)
    signed = codes.astype(np.int8) - np.int8(32)
    s = np.ascontiguousarray(raw[..., 192:208]).view(np.int8).astype(np.float32)
    scales = _half(raw[..., 208:210], where) * s
    return QuantizedTensor.from_parts(_rows(signed), _rows(scales), bits=8, block_size=_SMALL)
