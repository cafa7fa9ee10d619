"""The layers that are measured, on random normal numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..implementation import Array, Implementation, Inputs, Workload, relative_error
from ..selection import Selection as BaseSelection
from . import baselines, qcore_impl
from .weight import Weight

SHAPES = ((384, 1536), (4096, 4096), (11008, 4096), (4096, 11008))  # N, K
ROWS = (1, 4, 16, 128, 512)  # M
BITS = (4, 8)
BLOCK_SIZES = (32, 64, 128)
ALL_BITS = (2, 3, 4, 5, 6, 8)
ALL_BLOCK_SIZES = (16, *BLOCK_SIZES)
"""Users can choose among these; without a choice, BITS and BLOCK_SIZES are measured."""

_CHECKED_ROWS = 16
_OUTLIER_FACTOR = 30
_REFERENCE_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class Selection(BaseSelection):
    shapes: Sequence[tuple[int, int]] = SHAPES
    rows: Sequence[int] = ROWS
    bits: Sequence[int] = BITS
    block_sizes: Sequence[int] = BLOCK_SIZES
    rotated_bytes: int = 80_000_000

    def takes(self, implementation: Implementation) -> bool:
        scheme = implementation.scheme
        if scheme.weight_bits <= 8 and scheme.weight_bits not in self.bits:
            return False
        if scheme.block_size is not None and scheme.block_size not in self.block_sizes:
            return False
        return super().takes(implementation)


QUICK = Selection(shapes=((384, 1536), (1024, 2048)), rows=(1, 16))


def workloads(selection: Selection) -> list[LinearWorkload]:
    """Return the workloads with at least one case."""
    made = (LinearWorkload.of(n, k, selection) for n, k in selection.shapes)
    return [workload for workload in made if workload.case_names]


@dataclass
class LinearWorkload(Workload):
    """One weight, and activations of several M."""

    n: int = 0
    k: int = 0
    selection: Selection = field(default_factory=Selection)
    _rows: dict[str, int] = field(default_factory=dict)
    _weight: Weight | None = None

    @classmethod
    def of(cls, n: int, k: int, selection: Selection) -> LinearWorkload:
        name = f"{n}x{k}"
        rows = {f"{name} M={m}": m for m in selection.rows}
        rows = {case: m for case, m in rows.items() if selection.cases.search(case)}
        return cls(name, n * k, list(rows), n=n, k=k, selection=selection, _rows=rows)

    @property
    def weight(self) -> Weight:
        if self._weight is None:
            values = np.random.default_rng(0).standard_normal((self.n, self.k), np.float32)
            self._weight = Weight(values / np.float32(np.sqrt(self.k)))
        return self._weight

    def implementations(self) -> list[Implementation]:
        return self.selection.implementations(
            qcore_impl.implementations,
            baselines.SOURCES,
            self.weight,
            self.selection.rotated_bytes,
            unavailable=self.unavailable,
        )

    def inputs(self, case_name: str) -> Inputs:
        m = self._rows[case_name]
        x = np.random.default_rng([1, m]).standard_normal((m, self.k), np.float32)
        parameters = {"M": m, "N": self.n, "K": self.k}
        return Inputs(case_name, parameters, 2 * m * self.n * self.k, x, self._error(x))

    def outliers(self) -> Inputs:
        generator = np.random.default_rng(2)
        x = generator.standard_normal((_CHECKED_ROWS, self.k), np.float32)
        x[:, generator.permutation(self.k)[: max(1, self.k // 100)]] *= _OUTLIER_FACTOR
        return Inputs(f"{self.name} outliers", {}, 0, x, self._error(x))

    def _error(self, x: Array) -> Callable[[Array], float]:
        rows = np.linspace(0, len(x) - 1, min(len(x), _CHECKED_ROWS)).astype(int)
        exact = x[rows].astype(np.float64)
        values = self.weight.values
        truth = np.concatenate(
            [
                exact @ values[start : start + _REFERENCE_ROWS_AT_ONCE].astype(np.float64).T
                for start in range(0, self.n, _REFERENCE_ROWS_AT_ONCE)
            ],
            axis=1,
        )
        return lambda result: relative_error(result.reshape(len(x), self.n)[rows], truth)
