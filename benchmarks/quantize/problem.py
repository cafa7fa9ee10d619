"""One case: floats and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ..implementation import Array, Bound, Built, Implementation, Scheme, relative_error

Way = Literal["quantize", "encode", "dequantize", "activations", "rotate"]
WAYS: dict[Way, tuple[int, ...]] = {
    "quantize": (4, 8),
    "encode": (3, 4, 6),
    "dequantize": (4, 8),
    "activations": (8,),
    "rotate": (32,),
}
"""The widths of the codes that each is measured with."""
BLOCK_SIZE = 64

_CHECKED_ROWS = 16


@dataclass(frozen=True)
class Problem:
    """Describes one case.

    `encode`: a weight quantized into the k-quant of that width, with a search. `activations`: rows quantized to 8 bits
    as `linear` does inside. `rotate`: qcore.hadamard, floats to floats.
    """

    way: Way
    n: int
    k: int
    bits: int

    @property
    def name(self) -> str:
        form = {"rotate": "", "encode": f" {self.encoding}"}.get(self.way, f" {self.bits}b g{BLOCK_SIZE}")
        return f"{self.way} {self.n}x{self.k}{form}"

    @property
    def encoding(self) -> str:
        """The name of the k-quant."""
        return f"q{self.bits}_k"

    @property
    def elements(self) -> int:
        return self.n * self.k

    @property
    def moved_bytes(self) -> int:
        """Floats, codes, and a scale per block; activations have an offset and a sum as well."""
        parameters = {"activations": 12, "rotate": 0}.get(self.way, 4)  # of k-quants 3.5 to 4.5
        return self.elements * 4 + self.elements * self.bits // 8 + self.elements // BLOCK_SIZE * parameters

    def implementation(self, name: str, library: str, bind: Callable[[Data], Bound]) -> Implementation:
        return Implementation(
            name, library, Scheme(self.bits, "fp32", "fp32", BLOCK_SIZE), lambda: Built(self.moved_bytes, 1, bind)
        )


class Data:
    """Random normal floats; results are compared as floats [N, K]."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.x = np.random.default_rng(0).standard_normal((problem.n, problem.k), np.float32)

    @property
    def largest(self) -> int:
        """The largest code of a symmetric block."""
        return (1 << self.problem.bits - 1) - 1

    @cached_property
    def rounded(self) -> tuple[Array, Array]:
        """(codes int8 [N, P, g], scales float32 [N, P, 1]) of x."""
        blocks = self.x.reshape(self.problem.n, -1, BLOCK_SIZE)
        scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(self.largest)
        return np.rint(blocks / scales).astype(np.int8), scales

    @cached_property
    def _sample(self) -> tuple[Array, Array]:
        """(rows, the floats there)."""
        rows = np.unique(np.linspace(0, self.problem.n - 1, _CHECKED_ROWS).astype(int))
        if self.problem.way != "dequantize":
            return rows, self.x[rows].astype(np.float64)
        codes, scales = self.rounded
        return rows, (codes[rows] * scales[rows].astype(np.float64)).reshape(len(rows), -1)

    def error(self, result: Array) -> float | None:
        """Return the error of x after rounding or of the dequantized codes; None for a copy, which computes nothing."""
        if result.size == 0:
            return None
        rows, truth = self._sample
        return relative_error(result[rows], truth)
