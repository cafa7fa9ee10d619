"""One case: a weight, what is done with it, and its true results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

import qcore

from ..implementation import Array, relative_error
from ..linear.weight import Blocks, Weight

COLUMNS_OF_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)  # of a word, from the lowest nibble

_CHECKED_ROWS = 16


@dataclass(frozen=True)
class Shape:
    """[K, N] in groups of rows."""

    k: int
    n: int
    group_size: int

    @property
    def name(self) -> str:
        return f"{self.k}x{self.n} g{self.group_size}"

    @property
    def groups(self) -> int:
        return self.k // self.group_size

    @property
    def weights(self) -> int:
        return self.k * self.n

    @property
    def nbytes(self) -> int:
        return (self.weights + self.groups * self.n) // 2 + 2 * self.groups * self.n


@dataclass(frozen=True)
class Problem:
    """A weight that is dequantized, or multiplied with M rows."""

    shape: Shape
    m: int | None = None

    @property
    def name(self) -> str:
        return f"{self.shape.name} dequantize" if self.m is None else f"{self.shape.name} M={self.m}"

    @property
    def operations(self) -> int:
        return self.shape.weights * (1 if self.m is None else 2 * self.m)

    @property
    def moved_bytes(self) -> int:
        """By one call: read and written, or the weight."""
        return self.shape.nbytes + (2 * self.shape.weights if self.m is None else 0)


class Layer(Weight):
    """A weight of random codes, zeros and scales; `values` are its weights [N, K], exact."""

    def __init__(self, shape: Shape) -> None:
        generator = np.random.default_rng(0)
        groups, n = shape.groups, shape.n
        self.shape = shape
        self.codes = generator.integers(0, 16, (groups, shape.group_size, n), np.uint8)
        self.zeros = generator.integers(0, 16, (groups, n), np.uint8)
        self.scales = generator.uniform(1e-3, 1e-2, (groups, n)).astype(np.float16)
        self.arrays = words(self.codes.reshape(-1, n)), self.scales, words(self.zeros)
        wide = self.scales.astype(np.float32)
        values = (self.codes.astype(np.float32) - self.zeros[:, None]) * wide[:, None]
        super().__init__(values.reshape(-1, n).T)

    def per_block(self, bits: int, block_size: int, offsets: bool) -> Blocks:
        """Return the codes, zeros and scales themselves: there is no other form."""
        if (bits, block_size, offsets) != (4, self.shape.group_size, True):
            raise qcore.QcoreValueError(f"bench awq: the weight has 4 bits, g = {self.shape.group_size} and zeros")
        codes = np.ascontiguousarray(self.codes.transpose(2, 0, 1))
        scales, zeros = (np.ascontiguousarray(a.T) for a in (self.scales.astype(np.float32), self.zeros))
        return Blocks(codes, scales, zeros)

    def copies(self, count: int) -> list[tuple[Array, Array, Array]]:
        """Return the arrays that AWQ's kernels take."""
        qweight, scales, qzeros = self.arrays
        return [self.arrays, *((qweight.copy(), scales.copy(), qzeros.copy()) for _ in range(count - 1))]


def words(codes: Array) -> Array:
    """int32 [rows, N/8] of uint8 [rows, N]."""
    nibbles = codes.reshape(len(codes), -1, 8)[..., list(COLUMNS_OF_NIBBLES)]
    return np.ascontiguousarray(nibbles[..., 0::2] | nibbles[..., 1::2] << 4).view(np.int32)[..., 0]


class Data:
    """Inputs of the calls of a case, and the error of their results."""

    def __init__(self, layer: Layer, problem: Problem) -> None:
        self.layer, self.problem = layer, problem
        self.x = np.random.default_rng(1).standard_normal((problem.m or 0, problem.shape.k), np.float32)

    @cached_property
    def _sample(self) -> tuple[Array, Array]:
        """(rows, true results there, float64)."""
        count = self.problem.shape.k if self.problem.m is None else self.problem.m
        rows = np.unique(np.linspace(0, count - 1, _CHECKED_ROWS).astype(int))
        weight = self.layer.values.T
        if self.problem.m is None:
            return rows, weight[rows].astype(np.float64)
        return rows, self.x[rows].astype(np.float64) @ weight.astype(np.float64)

    def error(self, result: Array) -> float | None:
        """Return the error of rows of the weight or of y; None for a copy, which computes nothing."""
        if result.size == 0:
            return None
        rows, truth = self._sample
        return relative_error(result[rows], truth)
