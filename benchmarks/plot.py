"""Draws results: the roofline of linear layers under the limits of the same run, and bars of rates per case."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import qcore

from .implementation import OURS
from .results import Case, Document, Row

_MARKERS = "os^Dv<>pP*Xhd8H"
_MOST_FAMILIES = 14
_LEAST_FRACTION = 200  # slower than the fastest by more is below the axis
_FORMATS = (".png", ".svg", ".pdf")
_MOST_WORDS_BELOW = 12  # with more cases their names stand upright


def check(path: Path) -> None:
    """Before hours of measurement: can this plot be drawn?"""
    if path.suffix.lower() not in _FORMATS:
        raise qcore.QcoreValueError(f"bench: plot is {path}, expected a name that ends in {', '.join(_FORMATS)}")
    load_pyplot()


def load_pyplot() -> Any:
    try:
        importlib.import_module("matplotlib").use("agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise qcore.QcoreValueError(f"bench: plots need matplotlib: pip install 'libqcore[plot]' ({error})") from error


@contextmanager
def drawing(document: Document, path: Path) -> Iterator[tuple[Any, list[Case]]]:
    """(pyplot, the cases that have results); the figure made inside gets a title and is written."""
    check(path)
    plt = load_pyplot()
    cases = [case for case in document.cases if case.rows]
    if not cases:
        raise qcore.QcoreValueError("bench: there are no results to plot")
    yield plt, cases
    figure, machine = plt.gcf(), document.machine
    title = f"{document.operator}: {machine['cpu']}, {machine['threads']} threads, {machine['date'][:10]}"
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=140, bbox_inches="tight")
    plt.close(figure)


def legend_below(figure: Any, handles: dict[str, Any], columns: int) -> None:
    figure.legend(
        handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, fontsize=8,
        frameon=False,
    )  # fmt: skip


def _family(row: Row) -> str:
    """Return the kind of a row; the fastest of each kind in a case is drawn."""
    if row.weight_bits > 8:
        return f"{row.library} {row.activations}"
    shared = "per block" if row.block_size else "per channel"
    multiplied = row.activations.split()[0].strip(",")
    return f"{row.library} {row.weight_bits}-bit {shared}" + ("" if "int8" in multiplied else f", x {multiplied}")


def _fastest_by_family(case: Case) -> dict[str, Row]:
    fastest: dict[str, Row] = {}
    for row in case.rows:
        fastest.setdefault(_family(row), row)
    return fastest


def _families(cases: Iterable[Case]) -> list[str]:
    """Ours first, then those that come closest to the fastest in some case."""
    closeness: dict[str, float] = {}
    for case in cases:
        for family, row in _fastest_by_family(case).items():
            ratio = row.milliseconds / case.rows[0].milliseconds
            closeness[family] = min(closeness.get(family, ratio), ratio)
    ordered = sorted(closeness, key=lambda family: (not family.startswith(OURS), closeness[family]))
    return ordered[:_MOST_FAMILIES]


def roofline(document: Document, path: Path) -> None:
    """One panel per workload; each family of implementations is a line of markers, left to right as M grows."""
    with drawing(document, path) as (plt, measured):
        panels: dict[str, list[Case]] = {}
        for case in measured:
            panels.setdefault(case.workload, []).append(case)
        families = _families(measured)
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure, axes = plt.subplots(rows, columns, figsize=(6.4 * columns, 4.6 * rows), squeeze=False)
        handles: dict[str, Any] = {}
        for axis, (name, cases) in zip(axes.flat, panels.items(), strict=False):
            _panel(axis, name, cases, families, handles)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        legend_below(figure, handles, columns + 1)


def _panel(axis: Any, name: str, cases: list[Case], families: list[str], handles: dict[str, Any]) -> None:
    ticker = importlib.import_module("matplotlib.ticker")
    points = {family: _points(cases, family) for family in families}
    low = min(x for line in points.values() for x, _ in line) / 1.5
    high = max(x for line in points.values() for x, _ in line) * 1.5
    _roofs(axis, cases, low, high)
    for number, family in enumerate(families):
        if not points[family]:
            continue
        ours = family.startswith(OURS)
        (line,) = axis.plot(
            *zip(*points[family], strict=True),
            marker=_MARKERS[number % len(_MARKERS)],
            color=f"C{number % 10}",
            ms=7 if ours else 5,
            lw=1.4 if ours else 0.5,
            alpha=1 if ours else 0.75,
            zorder=3 if ours else 2,
        )
        handles.setdefault(family, line)
    rates = [rate for line in points.values() for _, rate in line]
    bottom = max(min(rates), max(rates) / _LEAST_FRACTION) / 1.5
    axis.set(title=name, xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, 1.8 * _highest_roof(cases)))
    axis.set_xlabel("operations per byte of weights")
    axis.set_ylabel("GOP/s")
    for ruler in (axis.xaxis, axis.yaxis):
        ruler.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        ruler.set_major_formatter(ticker.FormatStrFormatter("%g"))
        ruler.set_minor_formatter(ticker.NullFormatter())
    axis.grid(True, which="major", lw=0.3)


def _peaks(case: Case) -> dict[str, float]:
    return {name: rate for name, rate in case.limits.items() if name != "read" and rate}


def _highest_roof(cases: list[Case]) -> float:
    rates = [row.gops for case in cases for row in case.rows]
    return float(max([rate for case in cases for rate in _peaks(case).values()] + rates))


def _roofs(axis: Any, cases: list[Case], low: float, high: float) -> None:
    """Return the read probe's range over the cases, up to each peak (the median over the cases)."""
    read = [rate for case in cases if (rate := case.limits["read"])]
    if not read:
        return
    least, most = min(read), max(read)
    for name in _peaks(cases[0]):
        peak = statistics.median(rate for case in cases if (rate := case.limits.get(name)))
        for rate in {least, most}:
            corner = min(max(peak / rate, low), high)
            axis.plot(
                [low, corner, high], [min(rate * low, peak), min(rate * corner, peak), peak], color="0.45", lw=0.9
            )
        axis.annotate(f"{name} peak {peak:.0f} GOP/s", (high, peak), fontsize=7, ha="right", va="bottom")
    axis.annotate(f"read {least:.0f} to {most:.0f} GB/s", (low, most * low), fontsize=7, va="bottom")


def _points(cases: list[Case], family: str) -> list[tuple[float, float]]:
    found = []
    for case in cases:
        row = _fastest_by_family(case).get(family)
        if row:
            found.append((case.operations / row.weight_bytes, row.gops))
    return sorted(found)


def by_memory(row: Row) -> str:
    """Convolutions: by library and order of memory."""
    return f"{row.library} {'nchw' if 'nchw' in row.name else 'channels_last'}"


def by_library(row: Row) -> str:
    """Copy apart: they compute nothing."""
    return row.library + (" copy" if row.error is None else "")


def bars_of_operations(kind: Callable[[Row], str]) -> Callable[[Document, Path], None]:
    return lambda document, path: _bars(document, path, kind, lambda row: row.gops, "GOP/s")


def bars_of_bytes(kind: Callable[[Row], str]) -> Callable[[Document, Path], None]:
    return lambda document, path: _bars(document, path, kind, lambda row: row.weight_gbs, "GB/s")


def _bars(
    document: Document, path: Path, kind: Callable[[Row], str], value: Callable[[Row], float], label: str
) -> None:
    with drawing(document, path) as (plt, cases):
        fastest: dict[str, dict[int, Row]] = {}
        for place, case in enumerate(cases):
            for row in case.rows:
                fastest.setdefault(kind(row), {}).setdefault(place, row)
        upright = len(cases) > _MOST_WORDS_BELOW
        _, axis = plt.subplots(figsize=(2 + (0.4 if upright else 1.5) * len(cases), 4.8))
        width = 0.8 / len(fastest)
        for number, name in enumerate(sorted(fastest, key=lambda name: (not name.startswith(OURS), name))):
            places = [place + (number - (len(fastest) - 1) / 2) * width for place in fastest[name]]
            axis.bar(places, [value(row) for row in fastest[name].values()], width, label=name, color=f"C{number}")
        names = [case.name if upright else case.name.replace(" ", "\n") for case in cases]
        axis.set_xticks(range(len(cases)), names, fontsize=7, rotation=90 if upright else 0)
        axis.set_ylabel(label)
        axis.grid(True, axis="y", lw=0.3)
        axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
