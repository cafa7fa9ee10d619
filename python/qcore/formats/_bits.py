"""Codes of 2 to 8 bits in bytes and words, lowest bits first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def nibbles(packed: Bytes) -> Bytes:
    """Turn [..., B] into [..., 2 B]: a byte's low nibble, then its high one."""
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0::2])
    np.right_shift(packed, 4, out=out[..., 1::2])
    return out


def pack_nibbles(codes: NDArray[Any]) -> Bytes:
    """Return the inverse of :func:`nibbles`; an even number of codes in 0..15 along the last axis."""
    low, high = codes[..., 0::2].astype(np.uint8), codes[..., 1::2].astype(np.uint8)
    return np.ascontiguousarray(low | high << np.uint8(4))


def codes_of_words(packed: NDArray[np.uint32], bits: int) -> Bytes:
    """Turn [..., W] into [..., W * 32 // bits], codes of 2 to 8 bits, lowest first. ``packed`` is contiguous."""
    octets = packed.view(np.uint8)
    if bits == 8:
        return octets
    if bits == 4:
        return nibbles(octets)
    count = octets.shape[-1] * 8 // bits
    stream = np.unpackbits(octets, axis=-1, bitorder="little")[..., : count * bits]
    return np.packbits(stream.reshape(*octets.shape[:-1], count, bits), axis=-1, bitorder="little")[..., 0]


def words_of_codes(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Return the inverse of :func:`codes_of_words`; int32, as checkpoints have it. Codes fill whole words."""
    if bits == 8:
        octets = np.ascontiguousarray(codes, np.uint8)
    elif bits == 4:
        octets = pack_nibbles(codes)
    else:
        each = np.unpackbits(np.ascontiguousarray(codes, np.uint8)[..., None], axis=-1, bitorder="little", count=bits)
        octets = np.packbits(each.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
    return octets.view(np.dtype("<i4")).astype(np.int32, copy=False)


def padded(array: NDArray[Any], multiple: int, fill: int = 0) -> NDArray[Any]:
    """Return the last axis filled up to a multiple."""
    missing = -array.shape[-1] % multiple
    if missing == 0:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)], constant_values=fill)
