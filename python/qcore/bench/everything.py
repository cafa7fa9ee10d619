"""`qcore bench all`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from .options import BENCHMARKS, Run


def everything(
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write NAME.json of each and, with matplotlib, NAME.svg here.")
    ] = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Import and measure no other library.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="For every library.")] = 2,
    samples: Annotated[int, typer.Option(min=1, help="Per implementation and case, at most 5.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="For each operator.")] = 300,
    wait: Annotated[float, typer.Option(min=0, help="Seconds for each to wait while others use the CPUs.")] = 30,
) -> None:
    """All operators one after the other, as with --quick. The status is 1 if a result of qcore was wrong.

    \b
    Examples:
      qcore bench all
      qcore bench all --folder results --no-peers
    """
    import qcore

    if folder is not None and not folder.is_dir():
        raise qcore.QcoreValueError(f"bench all: there is no folder {folder}")
    draws = folder is not None and importlib.util.find_spec("matplotlib") is not None
    status = 0
    for name, body in BENCHMARKS.items():
        run = Run(
            name, no_peers=no_peers, threads=threads, samples=samples, seconds=seconds, wait=wait, quick=True,
            json=folder / f"{name}.json" if folder is not None else None,
            plot=folder / f"{name}.svg" if folder is not None and draws else None,
        )  # fmt: skip
        try:
            body(run)
        except typer.Exit as ended:
            status = max(status, ended.exit_code)
    if status:
        raise typer.Exit(status)
