"""Times of all cases: a panel per layer, microseconds per time step, the fastest of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import qcore

from ..plot import check, load_pyplot
from ..results import Case, Document, Row

_FORMS = {
    "qcore int8": {"color": "C0", "marker": "o"},
    "qcore int16": {"color": "C1", "marker": "s"},
    "torch fp32": {"color": "C2", "marker": "^"},
    "torch bf16": {"color": "C4", "marker": "v"},
    "torch int8 dynamic": {"color": "C3", "marker": "D"},
    "onnxruntime fp32": {"color": "C5", "marker": "X"},
}


def _kind(row: Row) -> str:
    if row.ours:
        return f"qcore int{row.weight_bits}"
    return f"{row.library} {row.arithmetic}" + (" dynamic" if row.arithmetic == "int8" else "")


def times(document: Document, path: Path) -> None:
    """Draw a document's medians."""
    check(path)
    plt = load_pyplot()
    panels: dict[str, list[Case]] = {}
    for case in document.cases:
        if case.rows:
            panels.setdefault(case.workload, []).append(case)
    if not panels:
        raise qcore.QcoreValueError("bench: there are no results to plot")
    figure, axes = plt.subplots(1, len(panels), figsize=(2 + 4.2 * len(panels), 4.8), squeeze=False, sharey=True)
    handles: dict[str, Any] = {}
    for axis, (name, cases) in zip(axes.flat, panels.items(), strict=True):
        _panel(axis, name, cases, handles)
    axes[0, 0].set_ylabel("us per time step of the whole batch")
    machine = document.machine
    title = f"{document.operator}: {machine['cpu']}, {machine['threads']} threads, {machine['date'][:10]}"
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    known = [kind for kind in _FORMS if kind in handles]
    figure.legend(
        [handles[kind] for kind in known], known, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=len(known),
        fontsize=8, frameon=False,
    )  # fmt: skip
    figure.savefig(path, dpi=140, bbox_inches="tight")
    plt.close(figure)


def _panel(axis: Any, name: str, cases: list[Case], handles: dict[str, Any]) -> None:
    points: dict[str, list[tuple[int, float]]] = {}
    for place, case in enumerate(cases):
        fastest: dict[str, Row] = {}
        for row in case.rows:
            fastest.setdefault(_kind(row), row)
        for kind, row in fastest.items():
            points.setdefault(kind, []).append((place, 1e3 * row.milliseconds / case.parameters["T"]))
    for kind, found in points.items():
        ours = kind.startswith("qcore")
        (line,) = axis.plot(
            *zip(*found, strict=True), ms=9 if ours else 6, ls="none",
            zorder=3 if ours else 2, **_FORMS[kind],
        )  # fmt: skip
        handles.setdefault(kind, line)
    axis.set(title=name, yscale="log")
    labels = [case.name.removeprefix(f"{name} ").replace(" ", "\n") for case in cases]
    axis.set_xticks(range(len(cases)), labels, fontsize=7)
    axis.grid(True, axis="y", which="both", lw=0.3)
