"""Results as tables for people."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .results import Case, Document, Row

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_LEAST_WIDTH = 132

LEGEND = (
    "ms: median. GB/s: of weights, scales included. read: of the read probe's bandwidth beside the same samples. "
    "dot: of the peak of its arithmetic (int8 dot products; fp32 multiply-adds; bf16 has no probe). bound: of the "
    "roofline, the longer of the two least times. error: relative, L2, against float64; outliers: with 1% of the input "
    "channels 30 times larger. bits: per weight, scales included. n: samples. ~ most of its samples were disturbed by "
    "other work on the machine. != its results differ from the reference kernel's."
)


def make_console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, width=max(console.width, _LEAST_WIDTH))


def show_progress(text: str) -> None:
    """Show progress in one line of a terminal, without a thread that would disturb the timing."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text[:100]}", end="", file=sys.stderr, flush=True)


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.0%}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def plain_table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


Columns = dict[str, Callable[[Row], str]]

_COMMON: Columns = {
    "ms": lambda row: ("~" if row.disturbed > row.samples / 2 else "") + f"{row.milliseconds:.4g}",
    "error": lambda row: _number(row.error, ".2e"),
    "spread": lambda row: percent(row.spread),
    "n": lambda row: str(row.samples),
}


def rows_table(case: Case, title: str, columns: Columns, most: int | None) -> Table:
    """Return the rows of a case, fastest first: all, or the first `most` and ours."""
    columns = {"ms": _COMMON["ms"]} | columns
    columns |= {heading: cell for heading, cell in _COMMON.items() if heading not in columns}
    table = plain_table(title)
    table.add_column("implementation", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, row in enumerate(case.rows):
        if most is None or number < most or row.ours:
            name = row.name + (" !=" if row.same_as_reference is False else "")
            table.add_row(name, *(cell(row) for cell in columns.values()), style="bold" if row.ours else None)
    return table


def case_table(case: Case, most: int | None = None) -> Table:
    """Return tables of linear layers."""
    limits = ", ".join(
        f"{name} {rate:.0f} {'GB/s' if name == 'read' else 'GOP/s'}" for name, rate in case.limits.items() if rate
    )
    columns: Columns = {
        "activations": lambda row: row.activations,
        "GOP/s": lambda row: _number(row.gops, ".0f"),
        "GB/s": lambda row: _number(row.weight_gbs, ".1f"),
        "read": lambda row: percent(row.read_fraction),
        "dot": lambda row: percent(row.dot_fraction),
        "bound": lambda row: percent(row.bound_fraction),
        "error": _COMMON["error"],
        "outliers": lambda row: _number(row.error_outliers, ".2e"),
        "bits": lambda row: _number(row.bits_per_weight, ".2f"),
    }
    return rows_table(case, f"{case.name} (limits here: {limits})", columns, most)


def conditions(document: Document) -> str:
    """Say on what the results were measured, as far as the file knows it."""
    machine = document.machine
    about = {
        "cpu": "{}",
        "cpus": "{} CPUs",
        "device": "{}",
        "cuda": "CUDA {}",
        "threads": "{} threads for each library",
        "date": "{}",
        "qcore": "qcore {}",
        "commit": "commit {}",
    }
    known = [form.format(machine[name]) for name, form in about.items() if machine.get(name)]
    if machine.get("qcore_isa"):
        known.append(" ".join(machine["qcore_isa"]))
    known += [f"{name} {version}" for name, version in machine.get("libraries", {}).items()]
    lines = [", ".join(known)]
    if document.seconds:
        waited = f"{document.waited_seconds:.0f} s waiting for a quiet machine"
        lines.append(f"took {document.seconds:.0f} s, of which {waited}")
    return "\n".join(lines)


def omissions(document: Document) -> str:
    """Return what was not measured, and why."""
    lines = [f"not measured: {name}: {why}" for name, why in document.unavailable.items()]
    reasons: dict[tuple[str, str], list[str]] = {}
    for case in document.cases:
        for name, why in case.skipped.items():
            reasons.setdefault((name, why), []).append(case.name)
    lines += [f"skipped: {name} at {', '.join(cases)}: {why}" for (name, why), cases in reasons.items()]
    if document.unfinished:
        lines.append("out of time: " + ", ".join(document.unfinished))
    return "\n".join(lines)


@dataclass
class Goal:
    text: str
    wanted: float
    at_least: bool = True
    values: list[tuple[str, float]] = field(default_factory=list)  # where, value

    def add(self, where: str, value: float | None) -> None:
        if value is not None:
            self.values.append((where, value))

    def met(self, value: float) -> bool:
        return value >= self.wanted if self.at_least else value <= self.wanted

    def worst(self) -> tuple[str, float]:
        return (min if self.at_least else max)(self.values, key=lambda pair: pair[1])


def goals_table(goals: list[Goal]) -> Table:
    """Print the goals; those without a measurement are left out."""
    table = plain_table("goals")
    table.add_column("goal", overflow="fold")
    for heading in ("wanted", "met", "worst"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for goal in goals:
        if not goal.values:
            continue
        where, worst = goal.worst()
        met = sum(goal.met(value) for _, value in goal.values)
        sign = ">=" if goal.at_least else "<="
        table.add_row(goal.text, f"{sign} {goal.wanted:.2f}", f"{met}/{len(goal.values)}", f"{worst:.3f}", where)
    return table


@dataclass(frozen=True)
class Operator:
    """How an operator's results are shown."""

    name: str
    kernels: tuple[str, ...]  # the operators of the kernel table that it measures
    summarize: Callable[[Document], list[RenderableType]]  # what ends a report: the figures that its goals are about
    case_table: Callable[[Case, int | None], RenderableType]  # all rows of a case, or the first so many and ours
    legend: str
    draw: Callable[[Document, Path], None] | None  # None: there is no plot


def no_summary(document: Document) -> list[RenderableType]:
    """Return nothing, for operators whose tables say all."""
    return []


def print_summary(document: Document, operator: Operator, console: Console) -> None:
    """Print what follows the cases: summary, conditions, what is missing or wrong."""
    for part in operator.summarize(document):
        console.print(part)
    for text in (operator.legend, omissions(document), conditions(document)):
        if text:
            console.print(text, style="dim")
    mismatches = document.mismatches()
    if mismatches:
        console.print("not the reference kernel's bits: " + "; ".join(mismatches), style="bold red")
