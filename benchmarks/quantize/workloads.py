"""The arrays that are measured, on random normal numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qcore.bench.limits import Limits

from ..copying import copy_limits
from ..implementation import Implementation, Inputs, Workload
from ..selection import Selection as BaseSelection
from . import baselines, qcore_impl
from .problem import WAYS, Data, Problem

SHAPES = ((4096, 4096), (512, 512))  # N, K


@dataclass(frozen=True, kw_only=True)
class Selection(BaseSelection):
    shapes: Sequence[tuple[int, int]] = SHAPES


QUICK = Selection(shapes=((512, 512),))


def workloads(selection: Selection) -> list[QuantizationWorkload]:
    problems = [
        Problem(way, n, k, bits) for n, k in selection.shapes for way, widths in WAYS.items() for bits in widths
    ]
    return [QuantizationWorkload.of(problem, selection) for problem in problems if selection.cases.search(problem.name)]


@dataclass(kw_only=True)
class QuantizationWorkload(Workload):
    """One way of one array."""

    problem: Problem
    selection: Selection

    @classmethod
    def of(cls, problem: Problem, selection: Selection) -> QuantizationWorkload:
        return cls(
            problem.name, problem.elements, [problem.name], has_limits=True, problem=problem, selection=selection
        )

    def implementations(self) -> list[Implementation]:
        return self.selection.implementations(
            qcore_impl.implementations, baselines.SOURCES, self.problem, unavailable=self.unavailable
        )

    def inputs(self, case_name: str) -> Inputs:
        problem, data = self.problem, Data(self.problem)
        parameters = {"N": problem.n, "K": problem.k, "bits": problem.bits}
        return Inputs(case_name, parameters, problem.elements, data, data.error)

    def limits(self, case_name: str) -> Limits:
        """Return a copy of as many bytes as a call moves."""
        return copy_limits(self.problem.moved_bytes // 2, "uint8", 1, others=self.selection.peers is not None)
