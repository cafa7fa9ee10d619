"""Prints what was measured: tables, summary, conditions, what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .operators import SUMMARIES
from .results import Document
from .tables import LEGEND, case_table, conditions, omissions

if TYPE_CHECKING:
    from rich.console import Console


def print_cases(document: Document, console: Console, top: int | None) -> None:
    for case in document.cases:
        console.print(case_table(case, most=top))


def print_summary(document: Document, console: Console) -> None:
    for part in SUMMARIES[document.operator](document):
        console.print(part)
    for text in (LEGEND, omissions(document), conditions(document)):
        if text:
            console.print(text, style="dim")
    mismatches = document.mismatches()
    if mismatches:
        console.print("not the reference kernel's bits: " + "; ".join(mismatches), style="bold red")
