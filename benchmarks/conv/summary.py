"""Tables of convolutions with per-block weights, and the figures that their goals are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plot import bars_of_operations, by_memory
from ..results import Case, Document
from ..static.summary import case_table, peer
from ..tables import Goal, Operator, goals_table
from . import qcore_impl

if TYPE_CHECKING:
    from rich.console import RenderableType

LEGEND = (
    "ms: median of a call, floats in and out. GOP/s: multiplications and additions. dot: of the peak of int8 dot "
    "products. error: relative, in the L2 norm. n: samples. ~ most of its samples were disturbed by other work on the "
    "machine. != its results differ from the reference kernel's."
)


def summarize(document: Document) -> list[RenderableType]:
    """Return the goals: each width and block size in each memory order beside the fastest peer."""
    cases = [case for case in document.cases if case.rows]
    names = [qcore_impl.name(*form) for form in _forms()]
    return [goals_table([_goal(name, cases) for name in names])]


def _forms() -> list[tuple[int, int, str]]:
    return [
        (bits, size, memory)
        for bits in qcore_impl.BITS
        for size in qcore_impl.BLOCK_SIZES
        for memory in qcore_impl.MEMORY
    ]


def _goal(name: str, cases: list[Case]) -> Goal:
    goal = Goal(f"fastest peer / {name}", 1.0)
    for case in cases:
        other = peer(case)
        row = next((row for row in case.rows if row.name == name), None)
        goal.add(case.name, other.milliseconds / row.milliseconds if other and row else None)
    return goal


OPERATOR = Operator("conv", ("conv2d",), summarize, case_table, LEGEND, bars_of_operations(by_memory))
