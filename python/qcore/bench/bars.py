"""Rates of all cases: a group of bars per case, the fastest of each kind of contender."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .contender import OURS
from .plot import drawing

if TYPE_CHECKING:
    from .results import Document, Row

_MOST_WORDS_BELOW = 12  # with more cases their names stand upright


def by_memory(row: Row) -> str:
    """Convolutions: by library and order of memory."""
    return f"{row.library} {'nchw' if 'nchw' in row.name else 'channels_last'}"


def by_library(row: Row) -> str:
    """Copies apart: they compute nothing."""
    return row.library + (" copy" if row.error is None else "")


def operations(kind: Callable[[Row], str]) -> Callable[[Document, Path], None]:
    return lambda document, path: _bars(document, path, kind, lambda row: row.gops, "GOP/s")


def bytes_moved(kind: Callable[[Row], str]) -> Callable[[Document, Path], None]:
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
