"""The command line of the harness: `python -m benchmarks`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

import qcore

from .awq.command import awq
from .conv.command import conv
from .decoder.command import decoder
from .documents import tables
from .gpu.command import gpu
from .linear.amx import amx
from .linear.command import linear
from .lut.command import lut
from .models.decode import models
from .operators import operator_of
from .options import BENCHMARKS, Run
from .overhead import overhead
from .quantize.command import quantize
from .recurrent.command import gru, lstm
from .results import load, merge
from .static.command import static
from .tables import make_console, print_summary

app = typer.Typer(
    name="benchmarks",
    help="""Measure qcore's operators beside all other libraries that are installed, in one interleaved run.

    \b
    Examples:
      python -m benchmarks linear --quick
      python -m benchmarks gru --json gru.json --plot gru.svg
      python -m benchmarks gpu linear --quick
      python -m benchmarks all --folder results
      python -m benchmarks report linear.json
    """,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def all_(
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write NAME.json of each and, with matplotlib, NAME.svg here.")
    ] = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Import and measure no other library.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="For every library.")] = 2,
    samples: Annotated[int, typer.Option(min=1, help="Per implementation and case, at most 5.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="For each operator.")] = 300,
    wait: Annotated[float, typer.Option(min=0, help="Seconds for each to wait while others use the CPUs.")] = 30,
) -> None:
    """Measure all operators one after the other, as with --quick. The status is 1 if a result of qcore was wrong.

    \b
    Examples:
      python -m benchmarks all
      python -m benchmarks all --folder results --no-peers
    """
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


def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="What --json wrote. A later file's cases win.")
    ],
    top: Annotated[int | None, typer.Option(min=0, help="Rows per case besides qcore's; all by default.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
) -> None:
    """Show the tables and the summary of earlier runs again, and draw them.

    \b
    Examples:
      python -m benchmarks report linear.json
      python -m benchmarks report linear.json --top 5 --plot roofline.svg
    """
    document = merge([load(file) for file in files])
    operator = operator_of(document)
    if plot is not None:
        if operator.draw is None:
            raise qcore.QcoreValueError(f"benchmarks report: there is no plot of {document.operator}")
        operator.draw(document, plot)
    console = make_console()
    for case in document.cases:
        console.print(operator.case_table(case, top))
    print_summary(document, operator, console)


for command in (quantize, linear, conv, static, gru, lstm, lut, awq):
    app.command(command.__name__)(command)
for command in (amx, decoder, models, overhead):
    app.command(command.__name__)(command)
app.add_typer(gpu)
app.command("all")(all_)
app.command("report")(report)
app.command("tables")(tables)
