"""The operators that can be measured: a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import tables
from .linear import summary as linear
from .lut import summary as lut
from .results import Case, Document

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True)
class Operator:
    """How an operator's results are shown."""

    summarise: Callable[[Document], list[RenderableType]]  # what ends a report: the figures that its goals are about
    case_table: Callable[[Case, int | None], Table]  # all rows of a case, or the first so many and ours
    legend: str
    has_roofline: bool = False


OPERATORS = {
    "linear": Operator(linear.summarise, tables.case_table, tables.LEGEND, True),
    "lut": Operator(lut.summarise, lut.case_table, lut.LEGEND),
}
