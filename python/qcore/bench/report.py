"""Prints what was measured: tables, summary, conditions, what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .operators import OPERATORS
from .results import Document
from .tables import conditions, omissions

if TYPE_CHECKING:
    from rich.console import Console


def print_cases(document: Document, console: Console, top: int | None) -> None:
    for case in document.cases:
        console.print(OPERATORS[document.operator].case_table(case, top))


def print_summary(document: Document, console: Console) -> None:
    operator = OPERATORS[document.operator]
    for part in operator.summarise(document):
        console.print(part)
    for text in (operator.legend, omissions(document), conditions(document)):
        if text:
            console.print(text, style="dim")
    mismatches = document.mismatches()
    if mismatches:
        console.print("not the reference kernel's bits: " + "; ".join(mismatches), style="bold red")
