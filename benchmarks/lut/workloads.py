"""The functions that are measured, on random normal numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qcore.bench.limits import Limits

from ..copying import copy_limits
from ..implementation import Implementation, Inputs, Workload
from ..selection import Selection as BaseSelection
from . import baselines, qcore_impl
from .baselines import torch_functions
from .problem import FUNCTION_NAMES, ITEM_BYTES, Data, Problem

SIZES = (1 << 24, 1 << 10)
DTYPES = tuple(ITEM_BYTES)


@dataclass(frozen=True, kw_only=True)
class Selection(BaseSelection):
    functions: Sequence[str] = FUNCTION_NAMES
    dtypes: Sequence[str] = DTYPES
    sizes: Sequence[int] = SIZES


QUICK = Selection(functions=("silu", "exp", "softmax"), dtypes=("fp32", "fp16"), sizes=(1 << 20, 1 << 10))


def workloads(selection: Selection) -> list[FunctionWorkload]:
    problems = [
        Problem(function, dtype, size)
        for function in selection.functions
        for dtype in selection.dtypes
        for size in selection.sizes
    ]
    return [FunctionWorkload.of(problem, selection) for problem in problems if selection.cases.search(problem.name)]


@dataclass(kw_only=True)
class FunctionWorkload(Workload):
    """One function on one array."""

    problem: Problem
    selection: Selection

    @classmethod
    def of(cls, problem: Problem, selection: Selection) -> FunctionWorkload:
        return cls(
            problem.name, problem.elements, [problem.name], has_limits=True, problem=problem, selection=selection
        )

    def implementations(self) -> list[Implementation]:
        return self.selection.implementations(
            qcore_impl.implementations, baselines.SOURCES, self.problem, unavailable=self.unavailable
        )

    def inputs(self, case_name: str) -> Inputs:
        data = Data(self.problem)
        return Inputs(case_name, {"elements": self.problem.elements}, self.problem.elements, data, data.error)

    def limits(self, case_name: str) -> Limits:
        problem = self.problem
        return copy_limits(
            problem.elements,
            torch_functions.DTYPES[problem.dtype],
            ITEM_BYTES[problem.dtype],
            others=self.selection.peers is not None,
        )
