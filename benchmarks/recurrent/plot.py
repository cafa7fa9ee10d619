"""Times of all cases: a panel per layer, microseconds per time step, the fastest of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..plot import drawing, legend_below
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
    with drawing(document, path) as (plt, measured):
        panels: dict[str, list[Case]] = {}
        for case in measured:
            panels.setdefault(case.workload, []).append(case)
        figure, axes = plt.subplots(1, len(panels), figsize=(2 + 4.2 * len(panels), 4.8), squeeze=False, sharey=True)
        handles: dict[str, Any] = {}
        for axis, (name, cases) in zip(axes.flat, panels.items(), strict=True):
            _panel(axis, name, cases, handles)
        axes[0, 0].set_ylabel("us per time step of the whole batch")
        legend_below(figure, {kind: handles[kind] for kind in _FORMS if kind in handles}, len(handles))


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
