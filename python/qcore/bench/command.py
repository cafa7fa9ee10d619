"""`qcore bench` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qcore.language_model.bench_command import model

from .awq.command import awq
from .conv.command import conv
from .everything import everything
from .gru.command import gru
from .linear.command import linear
from .lut.command import lut
from .quantize.command import quantize
from .static.command import static

bench = typer.Typer(
    name="bench",
    help="""Measure operators and models beside the libraries that are installed, in one interleaved run.

    \b
    Examples:
      qcore bench linear --quick
      qcore bench gru --json gru.json --plot gru.svg
      qcore bench model llama-4bit/ --float llama/
      qcore bench all --folder results
      qcore bench report linear.json
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
)


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
      qcore bench report linear.json
      qcore bench report linear.json --top 5 --plot roofline.svg
    """
    from .operators import OPERATORS
    from .report import print_cases, print_summary
    from .results import load, merge
    from .tables import make_console

    document = merge([load(file) for file in files])
    if plot is not None:
        OPERATORS[document.operator].draw(document, plot)
    console = make_console()
    print_cases(document, console, top)
    print_summary(document, console)


for command in (quantize, linear, conv, static, gru, lut, awq):
    bench.command(command.__name__)(command)
bench.command("model")(model)
bench.command("all")(everything)
bench.command("report")(report)
