"""The command `python -m benchmarks decoder`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import qcore
from qcore.linear import COMPUTE

from .. import libraries
from ..options import check_known
from ..results import Case, Document
from ..tables import Operator, make_console, no_summary, plain_table, print_summary
from .stack import SHAPES
from .step import measure_step

if TYPE_CHECKING:
    from rich.table import Table

LEGEND = "ms: the smallest of several runs. step: the whole call; rest: what remains of it without the other rows."


def case_table(case: Case, most: int | None = None) -> Table:
    """Show the parts of a step in its order."""
    table = plain_table(case.name)
    for heading in ("part", "ms"):
        table.add_column(heading, justify="right" if heading == "ms" else "left")
    for row in case.rows:
        table.add_row(row.name, f"{row.milliseconds:.3f}")
    return table


OPERATOR = Operator("decoder", (), no_summary, case_table, LEGEND, None)


def decoder(
    model: Annotated[str, typer.Argument(help="qwen2.5-0.5b, tinyllama-1.1b, llama-3.1-8b or tiny.")],
    length: Annotated[int, typer.Option(min=0, help="Tokens in the caches before the call.")] = 128,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the call: 1 for a decoding step.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    bits: Annotated[int, typer.Option(help="4 or 8.")] = 4,
    block: Annotated[int, typer.Option(min=1, help="Block size.")] = 32,
    compute: Annotated[str, typer.Option(help="As for qcore.linear.")] = "int8",
    cache: Annotated[str, typer.Option(help="dtype of the caches.")] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, help="One per CPU by default.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Of which the fastest counts.")] = 20,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results.")] = None,
) -> None:
    """Measure a call of qcore.decoder.Decoder with random weights: a decoding step or a prompt, whole and in parts.

    \b
    Examples:
      python -m benchmarks decoder qwen2.5-0.5b --length 512 --threads 2
    """
    check_known([model], SHAPES, "MODEL")
    check_known([bits], (4, 8), "--bits")
    check_known([compute], COMPUTE, "--compute")
    if threads is not None:
        qcore.set_num_threads(threads)
    form = {"bits": bits, "block": block, "compute": compute, "cache": cache}
    case = measure_step(model, length=length, tokens=tokens, batch=batch, runs=runs, **form)
    about = libraries.describe(qcore.get_num_threads())
    document = Document("decoder", {"runs": runs}, about, cases=[case])
    if json is not None:
        document.save(json)
    console = make_console()
    console.print(case_table(case))
    print_summary(document, OPERATOR, console)
