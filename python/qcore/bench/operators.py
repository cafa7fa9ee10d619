"""The operators that can be measured: a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import bars, plot, tables
from .awq import summary as awq
from .conv import summary as conv
from .gru import plot as gru_plot
from .gru import summary as gru
from .linear import summary as linear
from .lut import summary as lut
from .quantize import summary as quantize
from .results import Case, Document
from .static import summary as static

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True)
class Operator:
    """How an operator's results are shown."""

    kernels: tuple[str, ...]  # the operators of the kernel table that it measures
    summarise: Callable[[Document], list[RenderableType]]  # what ends a report: the figures that its goals are about
    case_table: Callable[[Case, int | None], Table]  # all rows of a case, or the first so many and ours
    legend: str
    draw: Callable[[Document, Path], None]


OPERATORS = {
    "quantize": Operator(
        ("quantize", "dequantize"),
        quantize.summarise,
        lut.case_table,
        quantize.LEGEND,
        bars.bytes_moved(bars.by_library),
    ),
    "linear": Operator(("linear",), linear.summarise, tables.case_table, tables.LEGEND, plot.roofline),
    "conv": Operator(("conv2d",), conv.summarise, conv.case_table, conv.LEGEND, bars.operations(bars.by_memory)),
    "static": Operator(
        ("static",), static.summarise, static.case_table, static.LEGEND, bars.operations(bars.by_memory)
    ),
    "gru": Operator(("gru",), gru.summarise, gru.case_table, gru.LEGEND, gru_plot.times),
    "lut": Operator(
        ("lut", "softmax", "rms_norm"), lut.summarise, lut.case_table, lut.LEGEND, bars.bytes_moved(bars.by_library)
    ),
    "awq": Operator(
        ("awq", "awq_linear"), awq.summarise, awq.case_table, awq.LEGEND, bars.bytes_moved(bars.by_library)
    ),
}
