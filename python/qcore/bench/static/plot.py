"""Rates of all cases: a group of bars per layer, the fastest of each library and memory order."""

from __future__ import annotations

from pathlib import Path

import qcore

from ..plot import check, load_pyplot
from ..results import Document, Row


def _kind(row: Row) -> str:
    if row.ours:
        return "qcore channels_last" if "channels_last" in row.name else "qcore nchw"
    return row.library + (" nchw" if "nchw" in row.name else " channels_last")


def rates(document: Document, path: Path) -> None:
    """Draw a document's medians."""
    check(path)
    plt = load_pyplot()
    cases = [case for case in document.cases if case.rows]
    if not cases:
        raise qcore.QcoreValueError("bench: there are no results to plot")
    fastest: dict[str, dict[int, Row]] = {}
    for place, case in enumerate(cases):
        for row in case.rows:
            fastest.setdefault(_kind(row), {}).setdefault(place, row)
    figure, axis = plt.subplots(figsize=(2 + 1.5 * len(cases), 4.8))
    width = 0.8 / len(fastest)
    for number, kind in enumerate(sorted(fastest, key=lambda kind: (not kind.startswith("qcore"), kind))):
        places = [place + (number - (len(fastest) - 1) / 2) * width for place in fastest[kind]]
        axis.bar(places, [row.gops for row in fastest[kind].values()], width, label=kind, color=f"C{number}")
    axis.set_xticks(range(len(cases)), [case.name.replace(" ", "\n") for case in cases], fontsize=7)
    axis.set_ylabel("GOP/s")
    axis.grid(True, axis="y", lw=0.3)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    machine = document.machine
    axis.set_title(
        f"{document.operator}: {machine['cpu']}, {machine['threads']} threads, {machine['date'][:10]}", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, dpi=140, bbox_inches="tight")
    plt.close(figure)
