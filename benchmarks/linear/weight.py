"""A weight matrix and the integer forms that peers take it in, each made once and shared by those that want it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..implementation import Array

_TINY = 1e-30
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Blocks:
    """w ~ (code - zero_point) * scale."""

    codes: Array  # uint8 [N, P, g]
    scales: Array  # float32 [N, P]
    zero_points: Array  # uint8 [N, P]

    def packed_codes(self) -> Array:
        """Two 4-bit codes a byte, the first in the low half: uint8 [N, P, g / 2]."""
        return pairs(self.codes)


def pairs(codes: Array) -> Array:
    """Neighbors along the last axis in one byte, the first in the low half."""
    return np.asarray(codes[..., 0::2] | (codes[..., 1::2] << 4))


class Weight:
    """[N, K] float32."""

    def __init__(self, values: Array) -> None:
        self.values = np.ascontiguousarray(values, np.float32)
        self.n: int
        self.k: int
        self.n, self.k = self.values.shape
        self._blocks: dict[tuple[int, int, bool], Blocks] = {}
        self._channels: tuple[Array, Array] | None = None

    def per_channel(self) -> tuple[Array, Array]:
        """int8 codes [N, K] in +-127 and float32 scales [N]."""
        if self._channels is None:
            scales = np.maximum(np.abs(self.values).max(axis=1), _TINY).astype(np.float32) / np.float32(127)
            codes = np.empty(self.values.shape, np.int8)
            for rows in self._rows():
                codes[rows] = np.rint(self.values[rows] / scales[rows, None])
            self._channels = codes, scales
        return self._channels

    def per_block(self, bits: int, block_size: int, offsets: bool) -> Blocks:
        """Quantize as ONNX Runtime and ggml do.

        Without offsets the zero point is the middle, and the scale's sign is such that the largest magnitude of the
        block gets the code 0, which has no opposite; with them it is where the block's range has its zero.
        """
        key = bits, block_size, offsets
        if key not in self._blocks:
            shape = self.n, self.k // block_size
            codes, scales = np.empty((*shape, block_size), np.uint8), np.empty(shape, np.float32)
            made = Blocks(codes, scales, np.empty(shape, np.uint8))
            for rows in self._rows():
                values = self.values[rows].reshape(-1, shape[1], block_size)
                scales[rows], made.zero_points[rows] = _parameters(values, bits, offsets)
                rounded = np.rint(values / scales[rows, :, None]) + made.zero_points[rows, :, None]
                codes[rows] = np.clip(rounded, 0, 2**bits - 1)
            self._blocks[key] = made
        return self._blocks[key]

    def _rows(self) -> list[slice]:
        return [slice(start, start + _ROWS_AT_ONCE) for start in range(0, self.n, _ROWS_AT_ONCE)]


def _parameters(values: Array, bits: int, offsets: bool) -> tuple[Array, Array]:
    if offsets:
        low, high = np.minimum(values.min(axis=2), 0), np.maximum(values.max(axis=2), 0)
        scales = np.maximum((high - low) / (2**bits - 1), _TINY)
        return scales, np.clip(np.rint(-low / scales), 0, 2**bits - 1)
    low, high = values.min(axis=2), values.max(axis=2)
    scales = np.where(-low > high, low, high) / -(2 ** (bits - 1))
    return np.where(np.abs(scales) < _TINY, np.float32(_TINY), scales), np.full(scales.shape, 2 ** (bits - 1))
