"""Blocks of GGUF files.

Of 32 elements, fp16 parameters first, then the codes; byte j of 16 has element j in its low nibble and j + 16 in its
high one:

| type | bytes | layout | value |
|---|---|---|---|
| Q4_0 | 18 | d, 16 bytes | d * (u - 8) |
| Q4_1 | 20 | d, m, 16 bytes | d * u + m |
| Q5_0 | 22 | d, 32 high bits, 16 bytes | d * (u - 16) |
| Q5_1 | 24 | d, m, 32 high bits, 16 bytes | d * u + m |
| Q8_0 | 34 | d, 32 int8 | d * q |
| IQ4_NL | 18 | d, 16 bytes | d * codebook[u] |
| MXFP4 | 17 | e, 16 bytes | 2^(e - 128) * codebook[u], twice the numbers of e2m1 |
| NVFP4 | 36 | 4 e4m3 scales s, 4 times 8 bytes: 64 elements | s / 2 * codebook[u], likewise |

:mod:`qcore.formats.gguf_k_blocks` has those of 256. Source: ggml-quants.c of ggml. d may be negative.

Exact readers keep the bytes of the file (:class:`qcore.WeightEncoding`). Q4_0 and Q8_0 are plain weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore.formats import _affine_codec, _inputs, _outputs, gguf_k_blocks
from qcore.formats._inputs import Reals
from qcore.formats._zero_point_codec import spread
from qcore.quantized_tensor import QuantizedTensor
from qcore.weight_encoding import ENCODINGS, WeightEncoding

Bytes = NDArray[np.uint8]
BLOCK = 32
_Q4_1, _Q5_1, _Q5_0, _IQ4_NL, _MXFP4, _NVFP4 = (
    ENCODINGS[name][0] for name in ("q4_1", "q5_1", "q5_0", "iq4_nl", "mxfp4", "nvfp4")
)


def _halves(blocks: Bytes, where: str) -> Reals:
    """Turn [N, P, 2] bytes into [N, P] float32."""
    return _inputs.reals(np.ascontiguousarray(blocks).view("<f2")[..., 0].astype(np.float16), where, ("float16",))


def _half_bytes(values: Reals, where: str) -> Bytes:
    """Turn [N, P] into [N, P, 2]."""
    return np.ascontiguousarray(_outputs.halves(values, where)).astype("<f2")[..., None].view(np.uint8)


def _split_nibbles(packed: Bytes) -> Bytes:
    """Turn [..., B] bytes into [..., 2 B]: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _join_nibbles(codes: Bytes) -> Bytes:
    """Turn [..., 32] into [..., 16]."""
    return codes[..., :16] | codes[..., 16:] << np.uint8(4)


def _symmetric(codes: NDArray[np.int8], scales: Reals, bits: int) -> QuantizedTensor:
    return QuantizedTensor.from_parts(codes.reshape(len(codes), -1), scales, bits=bits, block_size=BLOCK)


def _encoded(codes: Bytes, d: Reals, encoding: WeightEncoding) -> QuantizedTensor:
    """Return an encoded weight of u, [N, P, 32], whose scales are float16 numbers."""
    return QuantizedTensor.from_encoded(
        codes.reshape(len(codes), -1), d.astype(np.float16), encoding=encoding, block_size=BLOCK
    )


def _from_q4_0(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    codes = _split_nibbles(raw[..., 2:]).astype(np.int8) - np.int8(8)
    return _symmetric(codes, _halves(raw[..., :2], where), 4)


def _from_q4_1(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    codes = _split_nibbles(raw[..., 4:]).reshape(len(raw), -1)
    d, m = _halves(raw[..., :2], where), _halves(raw[..., 2:4], where)
    return _affine_codec.decode(codes, d, m, bits=4, block_size=BLOCK, where=where, exact=exact)


def _from_q5_0(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    high = np.unpackbits(raw[..., 2:6], axis=-1, bitorder="little") << np.uint8(4)
    codes = _split_nibbles(raw[..., 6:]) | high
    if exact:
        return _encoded(codes, _halves(raw[..., :2], where), _Q5_0)
    return _symmetric(codes.astype(np.int8) - np.int8(16), _halves(raw[..., :2], where), 8)


def _from_q5_1(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    high = np.unpackbits(raw[..., 4:8], axis=-1, bitorder="little") << np.uint8(4)
    codes = (_split_nibbles(raw[..., 8:]) | high).reshape(len(raw), -1)
    d, m = _halves(raw[..., :2], where), _halves(raw[..., 2:4], where)
    return _affine_codec.decode(codes, d, m, bits=5, block_size=BLOCK, where=where, exact=exact)


def _from_q8_0(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    return _symmetric(np.ascontiguousarray(raw[..., 2:]).view(np.int8), _halves(raw[..., :2], where), 8)


def _from_iq4_nl(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    return _encoded(_split_nibbles(raw[..., 2:]), _halves(raw[..., :2], where), _IQ4_NL)


def _from_mxfp4(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    exponents = raw[..., 0]
    if (exponents == 255).any():
        row, block = (int(i) for i in np.argwhere(exponents == 255)[0])
        raise _core.QcoreValueError(
            f"{where} has a scale of 255 (NaN by the OCP's definition) in row {row}, block {block}, expected 0 to 254"
        )
    codes = _split_nibbles(raw[..., 1:]).reshape(len(raw), -1)
    return QuantizedTensor.from_encoded(codes, exponents, encoding=_MXFP4, block_size=BLOCK)


def _from_nvfp4(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    scales = raw[..., :4].reshape(len(raw), -1)
    if (scales == 255).any():
        row, block = (int(i) for i in np.argwhere(scales == 255)[0])
        raise _core.QcoreValueError(
            f"{where} has the scale 0xff, 480 by ggml's decoder, in row {row}, block {block}, expected a number of e4m3"
        )
    # ggml reads scales without a sign, and 0x7f as zero.
    numbers = np.where(scales == 0x7F, 0, scales & 0x7F).astype(np.uint8)
    codes = _split_nibbles(raw[..., 4:].reshape(*raw.shape[:2], 4, 8)).reshape(len(raw), -1)
    return QuantizedTensor.from_encoded(codes, numbers, encoding=_NVFP4, block_size=16)


def _blocks_of(weight: QuantizedTensor, lowest: int, highest: int, kind: str, where: str) -> tuple[Bytes, Reals]:
    """Return u, uint8 [N, P, 32], and scales [N, P] of a symmetric weight."""
    if weight.offsets().any():
        raise _core.QcoreValueError(f"{where}: weight has offsets, expected none: {kind} has no place for them")
    codes = weight.codes()
    if codes.min() < lowest or codes.max() > highest:
        raise _core.QcoreValueError(
            f"{where}: weight has codes {codes.min()} to {codes.max()}, expected {lowest} to {highest} for {kind}"
        )
    unsigned = (codes.astype(np.int16) - lowest).astype(np.uint8)
    return unsigned.reshape(len(codes), -1, BLOCK), _per_block(weight.scales(), weight)


def _per_block(parameters: Reals, weight: QuantizedTensor) -> Reals:
    """Return the parameters of blocks of 32 from those of blocks of a multiple of 32."""
    return spread(parameters, weight.shape[1] // BLOCK, weight.block_size // BLOCK)


def _to_q4_0(weight: QuantizedTensor, where: str) -> Bytes:
    codes, scales = _blocks_of(weight, -8, 7, "Q4_0", where)
    return np.concatenate([_half_bytes(scales, f"{where}: weight's scales"), _join_nibbles(codes)], axis=-1)


def _to_q4_1(weight: QuantizedTensor, where: str) -> Bytes:
    codes, scales, minima = _affine_codec.encode(weight, where)
    if codes.max() > 15:
        raise _core.QcoreValueError(f"{where}: weight has codes up to {codes.max()}, expected 0 to 15 for Q4_1")
    return np.concatenate(
        [
            _half_bytes(_per_block(scales, weight), f"{where}: weight's scales"),
            _half_bytes(_per_block(minima, weight), f"{where}: the value of weight's lowest code"),
            _join_nibbles(codes.reshape(len(codes), -1, BLOCK)),
        ],
        axis=-1,
    )


def _to_q5_0(weight: QuantizedTensor, where: str) -> Bytes:
    codes, scales = _blocks_of(weight, -16, 15, "Q5_0", where)
    high = np.packbits(codes >> 4, axis=-1, bitorder="little")
    scale_bytes = _half_bytes(scales, f"{where}: weight's scales")
    return np.concatenate([scale_bytes, high, _join_nibbles(codes & np.uint8(15))], axis=-1)


def _to_q8_0(weight: QuantizedTensor, where: str) -> Bytes:
    codes, scales = _blocks_of(weight, -128, 127, "Q8_0", where)
    return np.concatenate([_half_bytes(scales, f"{where}: weight's scales"), codes ^ np.uint8(128)], axis=-1)


def _octets_of(values: Any) -> Bytes:
    """Turn float16 [N, P] into uint8 [N, P, 2]."""
    return np.ascontiguousarray(values.astype("<f2"))[..., None].view(np.uint8)


def _codes_of(parts: dict[str, Any]) -> Bytes:
    return np.ascontiguousarray(parts["codes"]).reshape(len(parts["codes"]), -1, BLOCK)


def _high_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> 4, axis=-1, bitorder="little")


def _pack_q4_1(parts: dict[str, Any]) -> Bytes:
    halves = [_octets_of(parts[name]) for name in ("scales", "offsets")]
    return np.concatenate([*halves, _join_nibbles(_codes_of(parts))], axis=-1)


def _pack_q5_0(parts: dict[str, Any]) -> Bytes:
    codes = _codes_of(parts)
    low = _join_nibbles(codes & np.uint8(15))
    return np.concatenate([_octets_of(parts["scales"]), _high_bits(codes), low], axis=-1)


def _pack_q5_1(parts: dict[str, Any]) -> Bytes:
    codes, halves = _codes_of(parts), [_octets_of(parts[name]) for name in ("scales", "offsets")]
    return np.concatenate([*halves, _high_bits(codes), _join_nibbles(codes & np.uint8(15))], axis=-1)


def _pack_iq4_nl(parts: dict[str, Any]) -> Bytes:
    return np.concatenate([_octets_of(parts["scales"]), _join_nibbles(_codes_of(parts))], axis=-1)


def _pack_mxfp4(parts: dict[str, Any]) -> Bytes:
    return np.concatenate([parts["scales"][..., None], _join_nibbles(_codes_of(parts))], axis=-1)


def _pack_nvfp4(parts: dict[str, Any]) -> Bytes:
    rows = len(parts["codes"])
    codes = parts["codes"].reshape(rows, -1, 4, 16)
    nibbles = codes[..., :8] | codes[..., 8:] << np.uint8(4)
    return np.concatenate([parts["scales"].reshape(rows, -1, 4), nibbles.reshape(rows, -1, 32)], axis=-1)


@dataclass(frozen=True)
class BlockType:
    """A type of block: its elements and bytes, and its codec; raw is uint8 [N, blocks, octets].

    Attributes:
        write: turns a plain weight into raw bytes, or raises QcoreValueError.
        encoding, block_size: of the weights that ``pack`` turns into raw bytes.
        pack: takes their :meth:`qcore.QuantizedTensor.encoded_parts`.
    """

    elements: int
    octets: int
    read: Callable[[Bytes, str, bool], QuantizedTensor]
    write: Callable[[QuantizedTensor, str], Bytes] | None = None
    encoding: WeightEncoding | None = None
    block_size: int = BLOCK
    pack: Callable[[dict[str, Any]], Bytes] | None = None


_K = gguf_k_blocks
TYPES = {
    "Q4_0": BlockType(32, 18, _from_q4_0, _to_q4_0),
    "Q4_1": BlockType(32, 20, _from_q4_1, _to_q4_1, _Q4_1, 32, _pack_q4_1),
    "Q5_0": BlockType(32, 22, _from_q5_0, _to_q5_0, _Q5_0, 32, _pack_q5_0),
    "Q8_0": BlockType(32, 34, _from_q8_0, _to_q8_0),
    "Q5_1": BlockType(32, 24, _from_q5_1, None, _Q5_1, 32, _pack_q5_1),
    "Q2_K": BlockType(256, 84, _K.from_q2_k, None, _K.Q2_K, 16, _K.to_q2_k),
    "Q3_K": BlockType(256, 110, _K.from_q3_k, None, _K.Q3_K, 16, _K.to_q3_k),
    "Q4_K": BlockType(256, 144, _K.from_q4_k, None, _K.Q4_K, 32, _K.to_q4_k),
    "Q5_K": BlockType(256, 176, _K.from_q5_k, None, _K.Q5_K, 32, _K.to_q5_k),
    "Q6_K": BlockType(256, 210, _K.from_q6_k, None, _K.Q6_K, 16, _K.to_q6_k),
    "IQ4_NL": BlockType(32, 18, _from_iq4_nl, None, _IQ4_NL, 32, _pack_iq4_nl),
    "IQ4_XS": BlockType(256, 136, _K.from_iq4_xs, None, _K.IQ4_XS, 32, _K.to_iq4_xs),
    "MXFP4": BlockType(32, 17, _from_mxfp4, None, _MXFP4, 32, _pack_mxfp4),
    "NVFP4": BlockType(64, 36, _from_nvfp4, None, _NVFP4, 16, _pack_nvfp4),
    "TQ2_0": BlockType(256, 66, _K.from_tq2_0, None, _K.TQ2_0, 256, _K.to_tq2_0),
}


def tensor_of(kind: str, raw: Any, where: str, *, exact: bool = True) -> QuantizedTensor:
    """Return a weight [N, K] from the bytes of its rows, uint8 [N, K / elements * octets], of one of :data:`TYPES`."""
    found = TYPES.get(kind)
    if found is None:
        raise _core.QcoreValueError(f"{where} has type {kind}, expected one of {', '.join(TYPES)}")
    array = _inputs.octets(raw, where)
    _inputs.matrix(array, where, "[N, bytes of a row]")
    if array.shape[1] % found.octets:
        raise _core.QcoreValueError(
            f"{where} has rows of {array.shape[1]} bytes, expected a multiple of {found.octets} for {kind}"
        )
    return found.read(np.ascontiguousarray(array).reshape(len(array), -1, found.octets), where, exact)


def raw_of(kind: str, weight: QuantizedTensor, where: str) -> Bytes:
    """Return the bytes of a weight's rows, uint8 [N, K / elements * octets], of one of :data:`TYPES`.

    Raises:
        QcoreValueError: the type can't hold the weight exactly.
    """
    found = TYPES[kind]
    if found.pack is not None and weight.encoding == found.encoding and weight.block_size == found.block_size:
        _outputs.multiple(weight.shape[1], found.elements, f"{where}: K")
        return found.pack(weight.encoded_parts()).reshape(weight.shape[0], -1)
    if found.write is None:
        stored = "plain codes" if weight.encoding is None else f"the encoding {weight.encoding.to_dict()}"
        assert found.encoding is not None
        raise _core.QcoreValueError(
            f"{where}: weight has {stored} of {weight.bits} bits in blocks of {weight.block_size}, expected the "
            f"encoding {found.encoding.to_dict()} in blocks of {found.block_size}, which {kind} has"
        )
    weight = _outputs.matrix(weight, where)
    _outputs.multiple(weight.shape[1], BLOCK, f"{where}: K")
    _outputs.multiple(weight.block_size, BLOCK, f"{where}: block_size")
    return found.write(weight, where).reshape(weight.shape[0], -1)


def first_exact(weight: QuantizedTensor, where: str) -> tuple[Bytes, str]:
    """Return the bytes of :func:`raw_of` and the first of :data:`TYPES` that holds the weight exactly.

    Raises:
        QcoreValueError: none does.
    """
    fitting = [
        name
        for name, kind in TYPES.items()
        if kind.encoding is not None and (weight.encoding, weight.block_size) == (kind.encoding, kind.block_size)
    ]
    reasons = []
    for kind in fitting + [name for name, kind in TYPES.items() if kind.write is not None]:
        try:
            return raw_of(kind, weight, where), kind
        except _core.QcoreValueError as error:
            reasons.append(f"{kind}: {str(error).removeprefix(f'{where}: ')}")
    raise _core.QcoreValueError(f"{where} has no exact form: {'; '.join(dict.fromkeys(reasons))}")
