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

:mod:`qcore.formats.gguf_k_blocks` has those of 256. Source: ggml-quants.c of ggml. d may be negative.
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

Bytes = NDArray[np.uint8]
BLOCK = 32


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


def _from_q4_0(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    codes = _split_nibbles(raw[..., 2:]).astype(np.int8) - np.int8(8)
    return _symmetric(codes, _halves(raw[..., :2], where), 4)


def _from_q4_1(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    codes = _split_nibbles(raw[..., 4:]).reshape(len(raw), -1)
    d, m = _halves(raw[..., :2], where), _halves(raw[..., 2:4], where)
    return _affine_codec.decode(codes, d, m, bits=4, block_size=BLOCK, where=where, exact=exact)


def _from_q5_0(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    high = np.unpackbits(raw[..., 2:6], axis=-1, bitorder="little") << np.uint8(4)
    codes = (_split_nibbles(raw[..., 6:]) | high).astype(np.int8) - np.int8(16)
    return _symmetric(codes, _halves(raw[..., :2], where), 8)


def _from_q5_1(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    high = np.unpackbits(raw[..., 4:8], axis=-1, bitorder="little") << np.uint8(4)
    codes = (_split_nibbles(raw[..., 8:]) | high).reshape(len(raw), -1)
    d, m = _halves(raw[..., :2], where), _halves(raw[..., 2:4], where)
    return _affine_codec.decode(codes, d, m, bits=5, block_size=BLOCK, where=where, exact=exact)


def _from_q8_0(raw: Bytes, where: str, exact: bool) -> QuantizedTensor:
    return _symmetric(np.ascontiguousarray(raw[..., 2:]).view(np.int8), _halves(raw[..., :2], where), 8)


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


@dataclass(frozen=True)
class BlockType:
    """A type of block: its elements and bytes, and its codec; raw is uint8 [N, blocks, octets]."""

    elements: int
    octets: int
    read: Callable[[Bytes, str, bool], QuantizedTensor]
    write: Callable[[QuantizedTensor, str], Bytes] | None


TYPES = {
    "Q4_0": BlockType(32, 18, _from_q4_0, _to_q4_0),
    "Q4_1": BlockType(32, 20, _from_q4_1, _to_q4_1),
    "Q5_0": BlockType(32, 22, _from_q5_0, _to_q5_0),
    "Q5_1": BlockType(32, 24, _from_q5_1, None),
    "Q8_0": BlockType(32, 34, _from_q8_0, _to_q8_0),
    "Q2_K": BlockType(256, 84, gguf_k_blocks.from_q2_k, None),
    "Q3_K": BlockType(256, 110, gguf_k_blocks.from_q3_k, None),
    "Q4_K": BlockType(256, 144, gguf_k_blocks.from_q4_k, None),
    "Q5_K": BlockType(256, 176, gguf_k_blocks.from_q5_k, None),
    "Q6_K": BlockType(256, 210, gguf_k_blocks.from_q6_k, None),
}
WRITTEN = [name for name, kind in TYPES.items() if kind.write is not None]


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
    """Return the bytes of a weight's rows, uint8 [N, K / 32 * octets].

    Raises:
        QcoreValueError: the type can't hold the weight exactly.
    """
    write = TYPES[kind].write if kind in TYPES else None
    if write is None:
        raise _core.QcoreValueError(f"{where}: kind is {kind!r}, expected one of {', '.join(WRITTEN)}")
    _outputs.matrix(weight, where)
    _outputs.multiple(weight.shape[1], BLOCK, f"{where}: K")
    _outputs.multiple(weight.block_size, BLOCK, f"{where}: block_size")
    return write(weight, where).reshape(weight.shape[0], -1)
