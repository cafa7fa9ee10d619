"""Shows progress and tables of commands, and writes their JSON files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qcore._files import write_whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_UNBOUNDED = 10_000
"""Columns where the output is not a terminal. Other programs read it, and would not find a name that is split."""


def make_console(stderr: bool = False) -> Console:
    """Return a console that neither highlights nor interprets what it prints, and folds for terminals only."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def make_table(headings: Sequence[str]) -> Table:
    """Return an empty table; a heading that begins with > is that of a column of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        number = heading.startswith(">")
        table.add_column(heading.removeprefix(">"), justify="right" if number else "left", overflow="fold")
    return table


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, if that is a terminal; yields a function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, advance=done)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file that appears when it is whole. NaN and infinities are errors."""
    import json

    write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
