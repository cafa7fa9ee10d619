"""`qcore bench` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .awq.command import awq
from .conv.command import conv
from .gru.command import gru
from .linear.command import linear
from .lut.command import lut
from .static.command import static

bench = typer.Typer(
    name="bench",
    help="""Measure operators beside the libraries that are installed, in one interleaved run.

    \b
    Examples:
      qcore bench linear --quick
      qcore bench lut --quick
      qcore bench awq --quick
      qcore bench gru --quick
      qcore bench conv --quick
      qcore bench static --quick
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
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it (linear, gru, conv, static): .png, .svg or .pdf.")
    ] = None,
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
        draw = OPERATORS[document.operator].draw
        if draw is None:
            raise typer.BadParameter(f"there is no plot of {document.operator!r}", param_hint="--plot")
        draw(document, plot)
    console = make_console()
    print_cases(document, console, top)
    print_summary(document, console)


bench.command("linear")(linear)
bench.command("lut")(lut)
bench.command("awq")(awq)
bench.command("gru")(gru)
bench.command("conv")(conv)
bench.command("static")(static)
bench.command("report")(report)
