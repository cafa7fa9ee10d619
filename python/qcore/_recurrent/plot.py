"""A report as a picture: float against quantized state, SQNR of each tensor and over time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qcore._display import plots

if TYPE_CHECKING:
    from qcore._recurrent.direction import Doubles
    from qcore._recurrent.report import ReportRow

_CHANNELS = 3
_COLORS = ("#123a5c", "#c8553d", "#3f7f4f")
_MOST_STEPS = 400  # more would be a blur


def plot_report(
    rows: Sequence[ReportRow], states: tuple[Doubles, Doubles], path: str | os.PathLike[str] | None, where: str
) -> Any:
    """Draw as :meth:`Report.plot`; `where` is what errors begin with."""
    if path is not None:
        plots.ending(path, where)
    with plots.module("matplotlib", where).rc_context(plots.STYLE):
        figure = plots.new_figure(where)
        grid = figure.add_gridspec(2, 2, height_ratios=(1, 1), width_ratios=(2, 1))
        _draw_states(figure.add_subplot(grid[0, :]), states)
        _draw_tensors(figure.add_subplot(grid[1, 0]), rows)
        _draw_steps(figure.add_subplot(grid[1, 1]), rows)
        if path is not None:
            plots.write(figure, path)
    return figure


def _draw_states(axis: Any, states: tuple[Doubles, Doubles]) -> None:
    exact, got = (each[:_MOST_STEPS, 0] for each in states)
    order = np.argsort(-exact.std(axis=0), kind="stable")[:_CHANNELS]
    for color, channel in zip(_COLORS, order, strict=False):
        axis.plot(exact[:, channel], color=color, lw=5, alpha=0.3, label=f"h[{channel}], float")
        axis.plot(got[:, channel], color=color, lw=1.4, label=f"h[{channel}], quantized")
    axis.set_xlabel("step")
    axis.set_ylabel("state")
    axis.set_title("row 0, the channels that vary most", fontsize=11, loc="left")
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9, borderaxespad=0.1)


def _draw_tensors(axis: Any, rows: Sequence[ReportRow]) -> None:
    """Draw one bar for each tensor; where layers or directions differ, the lowest."""
    lowest: dict[str, float] = {}
    for row in rows:
        if row.sqnr is not None:
            lowest[row.tensor] = min(row.sqnr, lowest.get(row.tensor, row.sqnr))
    several = len({(row.layer, row.direction) for row in rows}) > 1
    axis.bar(range(len(lowest)), list(lowest.values()), color="#9ec5e8", edgecolor="#123a5c", lw=0.8)
    axis.set_xticks(range(len(lowest)), list(lowest), rotation=60, ha="right", fontsize=9)
    axis.set_ylabel("SQNR in dB" + (", lowest of layers" if several else ""))
    axis.grid(True, axis="y", lw=0.4, color="0.88")


def _draw_steps(axis: Any, rows: Sequence[ReportRow]) -> None:
    for number, row in enumerate(row for row in rows if row.tensor == "h"):
        values = [np.nan if value is None else value for value in row.by_step]
        backward = " backward" if row.direction else ""
        axis.plot(values, color=_COLORS[number % len(_COLORS)], lw=1.2, label=f"layer {row.layer}{backward}")
    axis.set_xlabel("step")
    axis.set_ylabel("SQNR of h in dB")
    axis.grid(True, axis="y", lw=0.4, color="0.88")
    axis.legend(frameon=False, fontsize=9)
