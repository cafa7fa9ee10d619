"""The weights that are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from qcore.bench.limits import Limits

from ..copying import copy_limits
from ..implementation import Implementation, Inputs, Workload
from ..selection import Selection as BaseSelection
from . import baselines, qcore_impl
from .problem import Data, Layer, Problem, Shape

SHAPES = ((4096, 4096, 128), (4096, 11008, 128), (512, 512, 128))  # K, N, g
ROWS = (1, 16, 128)  # M


@dataclass(frozen=True, kw_only=True)
class Selection(BaseSelection):
    shapes: Sequence[tuple[int, int, int]] = SHAPES
    rows: Sequence[int] = ROWS
    rotated_bytes: int = 80_000_000


QUICK = Selection(shapes=((1024, 2048, 128), (512, 512, 128)), rows=(1, 16))


def workloads(selection: Selection) -> list[AwqWorkload]:
    """Yield cases that dequantize a weight, then multiply it with each number of rows."""
    problems = [Problem(Shape(*shape), m) for shape in selection.shapes for m in (None, *selection.rows)]
    return [AwqWorkload.of(problem, selection) for problem in problems if selection.cases.search(problem.name)]


@lru_cache(maxsize=1)  # cases of a shape follow each other
def _layer(shape: Shape) -> Layer:
    return Layer(shape)


@dataclass(kw_only=True)
class AwqWorkload(Workload):
    """One case."""

    problem: Problem
    selection: Selection

    @classmethod
    def of(cls, problem: Problem, selection: Selection) -> AwqWorkload:
        weights = problem.shape.weights
        return cls(problem.name, weights, [problem.name], has_limits=True, problem=problem, selection=selection)

    def implementations(self) -> list[Implementation]:
        return self.selection.implementations(
            qcore_impl.implementations,
            baselines.SOURCES,
            _layer(self.problem.shape),
            self.problem,
            self.selection.rotated_bytes,
            unavailable=self.unavailable,
        )

    def inputs(self, case_name: str) -> Inputs:
        problem = self.problem
        data = Data(_layer(problem.shape), problem)
        parameters = {"K": problem.shape.k, "N": problem.shape.n, "g": problem.shape.group_size, "M": problem.m or 0}
        return Inputs(case_name, parameters, problem.operations, data, data.error)

    def limits(self, case_name: str) -> Limits:
        """Return a copy of as many bytes as a call moves, or a weight has."""
        others = self.selection.peers is not None
        return copy_limits(self.problem.moved_bytes // 2, "uint8", 1, others=others)
