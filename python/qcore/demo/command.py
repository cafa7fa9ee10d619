"""`qcore demo` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qcore import _files

from .report import explanation, table, to_json
from .run import DEFAULT_BATCH, DEFAULT_REPEATS, run


def demo(
    batch: Annotated[int, typer.Option(min=1, help="Images per call.")] = DEFAULT_BATCH,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes over the test images.")] = DEFAULT_REPEATS,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the measurements here.")] = None,
) -> None:
    """Quantize a small trained model, run it on real images, and show accuracy, size and time.

    The model (two convolutions, a GRU, linear layers) and its held-out images of handwritten digits are part of
    the package: nothing is downloaded. What was slower than float on this machine is in the file of --json only.

    \b
    Examples:
      qcore demo
      qcore demo --batch 1
      qcore demo --json measured.json
    """
    from qcore._display.terminal import make_console

    if json is not None:
        _files.check_place(json)
    result = run(batch=batch, repeats=repeats)
    if json is not None:
        _files.write_whole(json, to_json(result).encode())
    console = make_console()
    console.print(table(result))
    console.print(explanation(result), soft_wrap=True)
