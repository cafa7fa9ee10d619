"""Reads the kept results for the documents, and writes tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..results import Case, Document, Row, load

ROOT = Path(__file__).resolve().parents[2]


def results(name: str) -> Document:
    """Return the results of a file, named without folder and suffix: "zen4/linear"."""
    return load(ROOT / "benchmarks" / "results" / f"{name}.json")


def named(case: Case, name: str) -> Row:
    """Return the row of a name."""
    return next(row for row in case.rows if row.name == name)


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table."""
    first = list(headings)
    lines = [first, *(list(row) for row in rows)]
    text = ["| " + " | ".join(cells) + " |\n" for cells in lines]
    return "".join([text[0], "|---" * len(first) + "|\n", *text[1:]])


def digits(value: float) -> str:
    """Return a number with two or three digits, or all of those before the point."""
    if value < 1:
        return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
