"""Super-blocks of 256 elements of GGUF files.

With blocks of 16 or 32 elements and their scales sc and minima m of 4 or 6 bits, or 8 of Q6_K:

| type | bytes | layout | value |
|---|---|---|---|
| Q2_K | 84 | 16 bytes sc + 16 m, 64 bytes, d, dmin: 16 blocks of 16 | d * sc * u - dmin * m, u of 2 bits |
| Q3_K | 110 | 32 bytes of high bits, 64 bytes, 12 bytes, d: 16 blocks of 16 | d * (sc - 32) * (u - 4), u of 3 bits |
| Q4_K | 144 | d, dmin, 12 bytes, 128 bytes: 8 blocks of 32 | d * sc * u - dmin * m |
| Q5_K | 176 | d, dmin, 12 bytes, 32 bytes of high bits, 128 bytes: likewise | d * sc * u - dmin * m, u of 5 bits |
| IQ4_XS | 136 | d, 2 bytes sc high, 4 bytes sc low, 128 bytes: 8 blocks of 32 | d * (sc - 32) * codebook[u] |
| TQ2_0 | 66 | 64 bytes, d: one block of 256 | d * (u - 1), u of 2 bits |
| Q6_K | 210 | 128 bytes, 64 bytes of high bits, 16 int8 sc, d: 16 blocks of 16 | d * sc * (u - 32), u of 6 bits |

Fields of several elements in a byte: a stretch of 32 bytes (64 for the low bits of Q6_K) holds as many runs of its
length, the first in the lowest bits. Source: ggml-quants.c of ggml.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qcore.formats import _affine_codec, _inputs
from qcore.formats._inputs import Reals
from qcore.quantized_tensor import QuantizedTensor
from qcore.weight_encoding import ENCODINGS, WeightEncoding

Bytes = NDArray[np.uint8]
T = TypeVar("T", bound=np.generic)
_SMALL, _LARGE = 16, 32


def _half(raw: Bytes, where: str) -> Reals:
    """Turn [N, S, 2] bytes into [N, S, 1] float32."""
    values = np.ascontiguousarray(raw).view("<f2").astype(np.float16)
    return _inputs.reals(values, where, ("float16",))


def _runs(raw: Bytes, bits: int, length: int = 32) -> Bytes:
    """Return the fields of ``bits`` in stretches of ``length`` bytes: [N, S, B] to [N, S, B * 8 / bits], in order."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    stretches = raw.reshape(*raw.shape[:2], -1, 1, length)
    return ((stretches >> shifts) & np.uint8((1 << bits) - 1)).reshape(*raw.shape[:2], -1)


def _join_runs(fields: Bytes, bits: int, length: int = 32) -> Bytes:
    """Return the inverse of :func:`_runs`: [N, S, B * 8 / bits] to [N, S, B]."""
    stretches = fields.reshape(*fields.shape[:2], -1, 8 // bits, length)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    joined: Bytes = np.bitwise_or.reduce(stretches << shifts, axis=-2)
    return joined.reshape(*fields.shape[:2], -1)


def _rows(values: NDArray[T]) -> NDArray[T]:
    return values.reshape(len(values), -1)


def _six_bit_pairs(raw: Bytes) -> tuple[Bytes, Bytes]:
    """Return scales and minima [N, S, 8] of 12 bytes.

    Blocks 0..3 have 6 bits in the first eight; 4..7 have four in the last ones and two above those six.
    """
    low_s, low_m, high = raw[..., :4], raw[..., 4:8], raw[..., 8:12]
    s = np.concatenate([low_s & 63, high & 15 | low_s >> 2 & 48], axis=-1)
    m = np.concatenate([low_m & 63, high >> 4 | low_m >> 2 & 48], axis=-1)
    return s, m


def _join_six_bit_pairs(s: Bytes, m: Bytes) -> Bytes:
    """Return the inverse of :func:`_six_bit_pairs`."""
    low_s, low_m = (each[..., :4] | (each[..., 4:] & np.uint8(48)) << np.uint8(2) for each in (s, m))
    return np.concatenate([low_s, low_m, s[..., 4:] & np.uint8(15) | m[..., 4:] << np.uint8(4)], axis=-1)


def _with_minima(
    codes: Bytes, scales: Reals, minima: Reals, bits: int, block: int, where: str, exact: bool
) -> QuantizedTensor:
    return _affine_codec.decode(
        _rows(codes), _rows(scales), -_rows(minima), bits=bits, block_size=block, where=where, exact=exact
    )


# How each type is stored; `super_block` blocks are a super-block of 256 elements.
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TQ2_0, IQ4_XS = (
    ENCODINGS[name][0] for name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq2_0", "iq4_xs")
)


def _encoded(
    codes: Bytes, d: Reals, s: Any, encoding: WeightEncoding, block: int, dmin: Reals | None = None, m: Any = None
) -> QuantizedTensor:
    """Return an encoded weight of codes [N, S, 256], d [N, S, 1], scales [N, S, blocks], and minima likewise."""
    return QuantizedTensor.from_encoded(
        _rows(codes),
        _rows(s),
        None if m is None else _rows(m),
        encoding=encoding,
        block_size=block,
        super_scales=_rows(d).astype(np.float16),
        super_offsets=None if dmin is None else _rows(dmin).astype(np.float16),
    )


def from_q2_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 84 bytes as 16 blocks of 2 bits, or of 4 if it may round.

    Args:
        raw: uint8 [N, S, 84].
        where: begins the texts of errors.
        exact: False gives a plain weight, whose offsets may be rounded.
    """
    d, dmin = _half(raw[..., 80:82], where), _half(raw[..., 82:84], where)
    s, m = raw[..., :16] & 15, raw[..., :16] >> 4
    if exact:
        return _encoded(_runs(raw[..., 16:80], 2), d, s, Q2_K, _SMALL, dmin, m)
    return _with_minima(_runs(raw[..., 16:80], 2), d * s, dmin * m, 2, _SMALL, where, exact)


def from_q3_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 110 bytes as 16 symmetric blocks of 3 bits.

    Args:
        raw: uint8 [N, S, 110].
        where: begins the texts of errors.
        exact: False gives the plain weight.
    """
    packed = raw[..., 96:108]
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    high = _runs(packed[..., 8:12], 2, 4)
    codes = _runs(raw[..., 32:96], 2) | _runs(raw[..., :32], 1) << np.uint8(2)
    weight = _encoded(codes, _half(raw[..., 108:110], where), low | high << np.uint8(4), Q3_K, _SMALL)
    return weight if exact else weight.plain()


def from_q4_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 144 bytes as 8 blocks of 4 bits.

    Args:
        raw: uint8 [N, S, 144].
        where: begins the texts of errors.
        exact: False gives a plain weight, whose offsets may be rounded.
    """
    d, dmin = _half(raw[..., :2], where), _half(raw[..., 2:4], where)
    s, m = _six_bit_pairs(raw[..., 4:16])
    if exact:
        return _encoded(_runs(raw[..., 16:], 4), d, s, Q4_K, _LARGE, dmin, m)
    return _with_minima(_runs(raw[..., 16:], 4), d * s, dmin * m, 4, _LARGE, where, exact)


def from_q5_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 176 bytes as 8 blocks of 5 bits, or of 8 if it may round.

    Args:
        raw: uint8 [N, S, 176].
        where: begins the texts of errors.
        exact: False gives a plain weight, whose offsets may be rounded.
    """
    d, dmin = _half(raw[..., :2], where), _half(raw[..., 2:4], where)
    s, m = _six_bit_pairs(raw[..., 4:16])
    codes = _runs(raw[..., 48:], 4) | _runs(raw[..., 16:48], 1) << np.uint8(4)
    if exact:
        return _encoded(codes, d, s, Q5_K, _LARGE, dmin, m)
    return _with_minima(codes, d * s, dmin * m, 5, _LARGE, where, exact)


def from_q6_k(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 210 bytes as 16 symmetric blocks of 6 bits.

    Args:
        raw: uint8 [N, S, 210].
        where: begins the texts of errors.
        exact: False gives the plain weight.
    """
    codes = _runs(raw[..., :128], 4, 64) | _runs(raw[..., 128:192], 2) << np.uint8(4)
    weight = _encoded(codes, _half(raw[..., 208:210], where), raw[..., 192:208] ^ np.uint8(128), Q6_K, _SMALL)
    return weight if exact else weight.plain()


def from_iq4_xs(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 136 bytes as 8 symmetric blocks with a codebook.

    Args:
        raw: uint8 [N, S, 136].
        where: begins the texts of errors.
        exact: not used: nothing is rounded.
    """
    high = _runs(raw[..., 2:4], 2, 1)
    low = np.stack([raw[..., 4:8] & 15, raw[..., 4:8] >> 4], axis=-1).reshape(*raw.shape[:2], 8)
    codes = _runs(raw[..., 8:], 4, 16)
    return _encoded(codes, _half(raw[..., :2], where), low | high << np.uint8(4), IQ4_XS, _LARGE)


def from_tq2_0(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    """Read 66 bytes as one block of 2 bits.

    Args:
        raw: uint8 [N, S, 66].
        where: begins the texts of errors.
        exact: not used: nothing is rounded.
    """
    scales = _rows(_half(raw[..., 64:66], where)).astype(np.float16)
    codes = _rows(_runs(raw[..., :64], 2))
    return QuantizedTensor.from_encoded(codes, scales, encoding=TQ2_0, block_size=256)


def _super_blocks(values: Any, columns: int) -> Bytes:
    """Turn [N, S * columns] uint8, or float16 [N, S] with 2 columns, into [N, S, columns] bytes."""
    octets: Bytes = values.astype("<f2").view(np.uint8) if values.dtype == np.float16 else values
    return octets.reshape(len(octets), -1, columns)


def to_q2_k(parts: dict[str, Any]) -> Bytes:
    """Return the bytes, uint8 [N, S, 84], of an encoded weight's parts."""
    scales = _super_blocks(parts["scales"] | parts["offsets"] << np.uint8(4), 16)
    codes = _join_runs(_super_blocks(parts["codes"], 256), 2)
    halves = [_super_blocks(parts[name], 2) for name in ("super_scales", "super_offsets")]
    return np.concatenate([scales, codes, *halves], axis=-1)


def to_q3_k(parts: dict[str, Any]) -> Bytes:
    """Return the bytes, uint8 [N, S, 110], of an encoded weight's parts."""
    codes, s = _super_blocks(parts["codes"], 256), _super_blocks(parts["scales"], 16)
    low = s[..., :8] & np.uint8(15) | s[..., 8:] << np.uint8(4)
    packed = np.concatenate([low, _join_runs(s >> np.uint8(4), 2, 4)], axis=-1)
    high = _join_runs(codes >> np.uint8(2), 1)
    return np.concatenate(
        [high, _join_runs(codes & np.uint8(3), 2), packed, _super_blocks(parts["super_scales"], 2)], axis=-1
    )


def _halves_and_pairs(parts: dict[str, Any]) -> list[Bytes]:
    """Return d, dmin and the 12 bytes of scales and minima of Q4_K and Q5_K."""
    halves = [_super_blocks(parts[name], 2) for name in ("super_scales", "super_offsets")]
    return [*halves, _join_six_bit_pairs(*(_super_blocks(parts[name], 8) for name in ("scales", "offsets")))]


def to_q4_k(parts: dict[str, Any]) -> Bytes:
    """Return the bytes, uint8 [N, S, 144], of an encoded weight's parts."""
    return np.concatenate([*_halves_and_pairs(parts), _join_runs(_super_blocks(parts["codes"], 256), 4)], axis=-1)


def to_q5_k(parts: dict[str, Any]) -> Bytes:
    """Return the bytes, uint8 [N, S, 176], of an encoded weight's parts."""
    codes = _super_blocks(parts["codes"], 256)
    return np.concatenate(
        [*_halves_and_pairs(parts), _join_runs(codes >> np.uint8(4), 1), _join_runs(codes & np.uint8(15), 4)], axis=-1
    )


def to_q6_k(parts: dict[str, Any]) -> Bytes:
    """Return the bytes, uint8 [N, S, 210], of an encoded weight's parts."""
    codes, scales = _super_blocks(parts["codes"], 256), _super_blocks(parts["scales"], 16)
    low, high = _join_runs(codes & np.uint8(15), 4, 64), _join_runs(codes >> np.uint8(4), 2)
    return np.concatenate([low, high, scales ^ np.uint8(128), _super_blocks(parts["super_scales"], 2)], axis=-1)


def to_iq4_xs(parts: dict[str, Any]) -> Bytes:
    """Return the bytes, uint8 [N, S, 136], of an encoded weight's parts."""
    scales = _super_blocks(parts["scales"], 8)
    high, low = (
        _join_runs(scales >> np.uint8(4), 2, 1),
        scales[..., 0::2] & np.uint8(15) | scales[..., 1::2] << np.uint8(4),
    )
    codes = _join_runs(_super_blocks(parts["codes"], 256), 4, 16)
    return np.concatenate([_super_blocks(parts["super_scales"], 2), high, low, codes], axis=-1)


def to_tq2_0(parts: dict[str, Any]) -> Bytes:
    """Return the bytes, uint8 [N, S, 66], of an encoded weight's parts."""
    codes = _join_runs(_super_blocks(parts["codes"], 256), 2)
    return np.concatenate([codes, _super_blocks(parts["scales"], 2)], axis=-1)
