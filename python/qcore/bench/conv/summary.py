"""Tables of convolutions with per-block weights, and the figures that their goals are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..goals import Goal, goals_table
from ..results import Case, Document
from ..static.summary import case_table, peer
from . import ours

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["LEGEND", "case_table", "summarise"]

LEGEND = (
    "ms: median of a call, floats in and out. GOP/s: multiplications and additions. dot: of the peak of int8 dot "
    "products. error: relative, in the L2 norm. n: samples. ~ most of its samples were disturbed by other work on the "
    "machine. != its results differ from the reference kernel's."
)


def summarise(document: Document) -> list[RenderableType]:
    """The goals: each width and block size in each memory order beside the fastest peer."""
    cases = [case for case in document.cases if case.rows]
    names = [ours.name(*form) for form in _forms()]
    return [goals_table([_goal(name, cases) for name in names])]


def _forms() -> list[tuple[int, int, str]]:
    return [(bits, size, memory) for bits in ours.BITS for size in ours.BLOCK_SIZES for memory in ours.MEMORY]


def _goal(name: str, cases: list[Case]) -> Goal:
    goal = Goal(f"fastest peer / {name}", 1.0)
    for case in cases:
        other = peer(case)
        row = next((row for row in case.rows if row.name == name), None)
        goal.add(case.name, other.milliseconds / row.milliseconds if other and row else None)
    return goal
