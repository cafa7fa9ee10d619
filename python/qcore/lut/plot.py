"""A table as a picture: the function, the table on its cut points, and the relative error over x."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from qcore._display import plots
from qcore.lut.accuracy import Accuracy, Errors, accuracy, function_of
from qcore.lut.core import TableCore
from qcore.lut.functions import Function

Array = np.ndarray[Any, Any]

_WHERE = "lut plot"
_BINS = 500  # of errors along the axis
_LEAST_ERROR = 1e-8  # of float32 results, about; smaller ones are drawn here
_HALF_UNIT = 2.0**-11  # the largest relative error of rounding to fp16
_FUNCTION, _TABLE, _CUT, _WORST, _MEAN = "#9ec5e8", "#123a5c", "#b9b9b9", "#c8553d", "#f0c9a0"

# Domains in which a reduced table is evaluated at x itself (exp: at x / ln 2), so that its cuts can be drawn.
_FACTOR = {"exp": math.log(2.0)}


def plot_table(
    table: TableCore,
    path: str | os.PathLike[str] | None = None,
    function: Any = None,
    *,
    domain: tuple[float, float] | None = None,
) -> Any:
    """Draw function, table and error over x; needs matplotlib (``pip install 'libqcore[plot]'``).

    Args:
        table: any.
        path: .png (1200 x 800), .svg or .pdf to write, whole or not at all; None writes nothing.
        function: what the table is compared with: a name of :func:`qcore.lut.names` or a callable of float64 arrays; by
            default the function of the table's name. Where there is none, the table is drawn alone.
        domain: (low, high) of x; by default that of the named function, else the table's ends.

    Returns:
        matplotlib's Figure, for Agg.

    Raises:
        QcoreValueError, QcoreTypeError: no matplotlib, another ending, a function that is none or is NaN there.
        OSError: the file can't be written.
    """
    if path is not None:
        check(path)
    matplotlib = _module("matplotlib")
    compared = function_of(table, function)
    with matplotlib.rc_context(plots.STYLE):
        figure = _draw(table, compared, domain)
        if path is not None:
            plots.write(figure, path)
    return figure


def check(path: str | os.PathLike[str]) -> str:
    """Return the ending of a plot's name, or raise if it can't be drawn: called before a fit of seconds."""
    return plots.ending(path, _WHERE)


def _module(name: str) -> Any:
    return plots.module(name, _WHERE)


def _draw(table: TableCore, function: Function | None, domain: tuple[float, float] | None) -> Any:
    figure = plots.new_figure(_WHERE)
    if function is None:
        axis = figure.subplots()
        cuts = table.cuts.astype(np.float64)
        _draw_table(axis, table, _inner(cuts[0], cuts[-1]), None)
        axis.set_xlabel("x")
        figure.suptitle(_title(table), fontsize=13)
        return figure
    measured = accuracy(table, function, domain)
    errors = measured.of_table(table)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    x = measured.x
    if table.range_reduction == "periodic" and domain is None:
        x = _inner(-3 * math.pi, 3 * math.pi)
    _draw_table(top, table, x, function)
    _draw_errors(bottom, measured, errors, top)
    figure.suptitle(
        f"{_title(table)}\nrelative error on {len(measured.x):,} fp16 numbers: mean {errors.mean:.2e}, "
        f"max {errors.max:.2e}",
        fontsize=13,
    )
    return figure


def _inner(low: float, high: float) -> Array:
    return np.linspace(low, high, 20_001)


def _title(table: TableCore) -> str:
    reduced = "" if table.range_reduction == "none" else f", range reduction {table.range_reduction!r}"
    count = len(table.values)
    return f"{table.name}: {count} {table.table_dtype} values in {len(table.cuts) - 1} intervals{reduced}"


def _draw_table(axis: Any, table: TableCore, x: Array, function: Function | None) -> None:
    cuts = _own_cuts(table)
    _scale_x(axis, x, cuts)
    x = _along(axis, x)
    y = table(x.astype(np.float32)).astype(np.float64)
    if function is not None:
        with np.errstate(all="ignore"):
            f = function.evaluate(x)
        axis.plot(x, np.clip(f, -65504, 65504), color=_FUNCTION, lw=6, label="function", solid_capstyle="round")
    axis.plot(x, y, color=_TABLE, lw=1.4, label="table")
    low, high = axis.get_xlim()
    shown = [cut for cut in cuts if low <= cut <= high]
    for number, cut in enumerate(shown):
        axis.axvline(cut, color=_CUT, lw=0.9, ls=(0, (4, 2)), zorder=0, label="" if number else "cut points")
    if table.range_reduction != "none" and shown:
        axis.axvspan(shown[0], shown[-1], color="#f3f3f3", zorder=-1, label="what the table covers")
    _scale_y(axis, y)
    axis.set_ylabel("y")
    axis.grid(True, axis="y", lw=0.4, color="0.88")
    _legend(axis)


def _own_cuts(table: TableCore) -> list[float]:
    """Return the cut points as numbers that x can have."""
    return [float(cut) * _FACTOR.get(table.range_reduction, 1.0) for cut in table.cuts]


def _scale_x(axis: Any, x: Array, cuts: list[float]) -> None:
    """Scales x linearly, logarithmically, or both: fp16 numbers are as dense as the logarithm, on either side of 0."""
    low, high = float(x[0]), float(x[-1])
    if low > 0 and high > 32 * low and high < 1:
        axis.set_xscale("logit")
        axis.set_xlim(low / 1.5, 1 - (1 - high) / 1.5)
    elif max(-low, high) <= 32:
        margin = 0.01 * (high - low)
        axis.set_xlim(low - margin, high + margin)
    elif low >= 0:
        least = float(x[x > 0][0])
        axis.set_xscale("log")
        axis.set_xlim(least / 1.5, high * 1.5)
    else:
        small = min((abs(cut) for cut in cuts if cut), default=1.0)
        exponent = min(0, max(-4, math.floor(math.log10(small))))
        axis.set_xscale("symlog", linthresh=10.0**exponent, linscale=0.5)
        axis.set_xlim(low * 1.5, high * 1.5 if high > 0 else high / 1.5)
        _symmetric_ticks(axis.xaxis, exponent, low, high)


def _symmetric_ticks(ruler: Any, exponent: int, low: float, high: float) -> None:
    """Mark each power of ten; or each second one, and none beside 0, if there were more than would fit."""
    ticker = _module("matplotlib.ticker")
    exponents = list(range(exponent, 5))
    if len(exponents) > 6:
        exponents = [e for e in exponents[1:] if e % 2 == 0]
    ticks = [sign * 10.0**e for sign in (-1, 1) for e in exponents]
    ruler.set_major_locator(ticker.FixedLocator(sorted([0.0, *(tick for tick in ticks if low <= tick <= high)])))
    ruler.set_major_formatter(ticker.FuncFormatter(lambda value, _: _power(value)))
    ruler.set_minor_locator(ticker.NullLocator())


def _power(value: float) -> str:
    """Write 1000 as it is, 0.0001 as a power."""
    if value == 0 or 0.01 <= abs(value) < 10_000:
        return f"{value:g}".replace("-", "\N{MINUS SIGN}")
    sign = "-" if value < 0 else ""
    return f"${sign}10^{{{round(math.log10(abs(value)))}}}$"


def _scale_y(axis: Any, y: Array) -> None:
    """Scales y logarithmically above 1 where y needs it, and everywhere if x is and y is positive."""
    low, high = float(y.min()), float(y.max())
    if max(-low, high) <= 100:
        return
    if axis.get_xscale() == "log" and low > 0:
        axis.set_yscale("log")
        return
    axis.set_yscale("symlog", linthresh=1.0)
    transform = axis.yaxis.get_transform()
    ends = transform.transform(np.array([low, high]))
    margin = 0.04 * (ends[1] - ends[0])
    axis.set_ylim(*transform.inverted().transform([ends[0] - margin, ends[1] + margin]))
    _symmetric_ticks(axis.yaxis, 0, low, high)


def _along(axis: Any, x: Array) -> Array:
    """Points that are close to each other on the axis: x itself is, but for the gap around 0 and for few numbers."""
    low, high = float(x[0]), float(x[-1])
    transform = axis.xaxis.get_transform()
    ends = transform.transform(np.array([low if low > 0 or axis.get_xscale() != "log" else float(x[x > 0][0]), high]))
    even = transform.inverted().transform(np.linspace(ends[0], ends[1], 2001))
    return np.asarray(np.clip(even, low, high))


def _draw_errors(axis: Any, measured: Accuracy, errors: Errors, top: Any) -> None:
    """Draw the largest and the mean error of each small stretch of the axis."""
    low, high = top.get_xlim()
    inside = (measured.x >= low) & (measured.x <= high)
    place, worst, mean = (np.array(column) for column in zip(*_stretches(top, measured, errors, inside), strict=True))
    axis.fill_between(place, _LEAST_ERROR, np.maximum(mean, _LEAST_ERROR), color=_MEAN, lw=0, label="mean nearby")
    axis.plot(place, np.maximum(worst, _LEAST_ERROR), color=_WORST, lw=1.0, label="max nearby")
    axis.axhline(_HALF_UNIT, color="0.35", lw=0.9, ls=":", label=r"rounding to fp16, at most $2^{-11}$")
    visible = worst[worst > _LEAST_ERROR]
    bottom = max(_LEAST_ERROR, float(visible.min()) / 3, float(visible.max()) * 1e-5) if len(visible) else _LEAST_ERROR
    axis.set_yscale("log")
    axis.set_ylim(bottom, 3 * max(float(worst.max()), _HALF_UNIT))
    axis.set_xlabel("x")
    axis.set_ylabel("relative error")
    axis.grid(True, axis="y", lw=0.4, color="0.88")
    _legend(axis)


def _legend(axis: Any) -> None:
    """Put the legend above the panel, where no curve is."""
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=10, borderaxespad=0.1)


def _stretches(top: Any, measured: Accuracy, errors: Errors, inside: Array) -> Iterator[tuple[float, float, float]]:
    """Yield (x, largest, mean) of the errors in each stretch that has fp16 numbers."""
    transform = top.xaxis.get_transform()
    x, each = measured.x[inside], errors.each[inside]
    with np.errstate(all="ignore"):
        at = transform.transform(x)
    finite = np.isfinite(at)
    x, each, at = x[finite], each[finite], at[finite]
    edges = np.linspace(at.min(), at.max(), _BINS + 1)
    bins = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, _BINS - 1)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    for first, end in zip(starts, [*starts[1:], len(x)], strict=True):
        yield float(x[(first + end - 1) // 2]), float(each[first:end].max()), float(each[first:end].mean())
