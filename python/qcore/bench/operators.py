"""The operators that can be measured: a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import plot, tables
from .awq import summary as awq
from .conv import summary as conv
from .gru import plot as gru_plot
from .gru import summary as gru
from .linear import summary as linear
from .lut import summary as lut
from .results import Case, Document
from .static import plot as static_plot
from .static import summary as static

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True)
class Operator:
    """How an operator's results are shown."""

    summarise: Callable[[Document], list[RenderableType]]  # what ends a report: the figures that its goals are about
    case_table: Callable[[Case, int | None], Table]  # all rows of a case, or the first so many and ours
    legend: str
    draw: Callable[[Document, Path], None] | None = None


OPERATORS = {
    "linear": Operator(linear.summarise, tables.case_table, tables.LEGEND, plot.roofline),
    "lut": Operator(lut.summarise, lut.case_table, lut.LEGEND),
    "awq": Operator(awq.summarise, awq.case_table, awq.LEGEND),
    "gru": Operator(gru.summarise, gru.case_table, gru.LEGEND, gru_plot.times),
    "conv": Operator(conv.summarise, conv.case_table, conv.LEGEND, static_plot.rates),
    "static": Operator(static.summarise, static.case_table, static.LEGEND, static_plot.rates),
}
