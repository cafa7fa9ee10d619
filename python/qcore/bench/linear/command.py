"""`qcore bench linear`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..patterns import pattern

if TYPE_CHECKING:
    from .workloads import Selection

_SHAPE = re.compile(r"(\d+)x(\d+)")


def _shape(text: str) -> tuple[int, int]:
    match = _SHAPE.fullmatch(text)
    if match is None or int(match[1]) < 1 or int(match[2]) < 128 or int(match[2]) % 128:
        raise typer.BadParameter(
            f"{text!r} is not NxK with K a positive multiple of 128, e.g. 4096x4096", param_hint="--shape"
        )
    return int(match[1]), int(match[2])


def linear(
    shape: Annotated[list[str] | None, typer.Option(metavar="NxK", help="Layers; repeatable.")] = None,
    m: Annotated[list[int] | None, typer.Option("--m", min=1, help="Rows of activations; repeatable.")] = None,
    bits: Annotated[list[int] | None, typer.Option(min=4, max=8, help="4, 8 or both; repeatable.")] = None,
    block_size: Annotated[list[int] | None, typer.Option(min=1, help="32, 64, 128; repeatable.")] = None,
    cases: Annotated[str, typer.Option(metavar="REGEX", help="Only cases such as '4096x4096 M=16'.")] = "",
    ours: Annotated[str, typer.Option(metavar="REGEX", help="Only these of qcore's, as 'qcore 4b g64 int8'.")] = "",
    peers: Annotated[str, typer.Option(metavar="REGEX", help="Only these peers, as 'ort MatMulNBits'.")] = "",
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Import and measure no other library.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="For every library.")] = 2,
    isa: Annotated[str | None, typer.Option(help="Cap instruction sets: avx2, avxvnni or avx512vnni.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Per implementation and case.")] = 15,
    seconds: Annotated[float, typer.Option(min=1, help="For the whole run; what is left over is reported.")] = 3600,
    wait: Annotated[float, typer.Option(min=0, help="Seconds in all to wait while others use the CPUs.")] = 600,
    quick: Annotated[bool, typer.Option("--quick", help="Two small layers, M = 1 and 16, few samples.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything here after each case.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the roofline: .png, .svg or .pdf.")] = None,
) -> None:
    """Linear layers: qcore's forms and the peers that are installed, with this machine's limits and every error.

    All are sampled in turn in one run, on the same number of threads. Weights are rotated through copies, so that
    small M read memory. The status is 1 if a result of qcore has other bits than its reference kernel's.

    \b
    Examples:
      qcore bench linear --quick
      qcore bench linear --json linear.json --plot roofline.png
      qcore bench linear --shape 4096x4096 --m 1 --m 16 --peers 'MatMulNBits 4b'
    """
    from ..session import Session
    from .workloads import BITS, BLOCK_SIZES, QUICK, ROWS, SHAPES, Selection, workloads

    for value in bits or []:
        if value not in BITS:
            raise typer.BadParameter(f"{value} is not 4 or 8", param_hint="--bits")
    for value in block_size or []:
        if value not in BLOCK_SIZES:
            raise typer.BadParameter(f"{value} is not 32, 64 or 128", param_hint="--block-size")
    default_shapes, default_rows = (QUICK.shapes, QUICK.rows) if quick else (SHAPES, ROWS)
    selection = Selection(
        shapes=[_shape(text) for text in shape] if shape else default_shapes,
        rows=m or default_rows,
        bits=bits or BITS,
        block_sizes=block_size or BLOCK_SIZES,
        cases=pattern(cases, "--cases"),
        ours=pattern(ours, "--ours"),
        peers=None if no_peers else pattern(peers, "--peers"),
    )
    chosen = workloads(selection)
    if not chosen:
        raise typer.BadParameter(f"{cases!r} is in no case's name", param_hint="--cases")
    session = Session(
        "linear", _settings(selection), threads=threads, isa=isa, samples=min(samples, 5) if quick else samples,
        seconds=seconds, wait=wait, json=json, plot=plot,
    )  # fmt: skip
    session.run(chosen)


def _settings(selection: Selection) -> dict[str, object]:
    return {
        "shapes": [f"{n}x{k}" for n, k in selection.shapes],
        "rows": list(selection.rows),
        "bits": list(selection.bits),
        "block_sizes": list(selection.block_sizes),
        "cases": selection.cases.pattern,
        "ours": selection.ours.pattern,
        "peers": None if selection.peers is None else selection.peers.pattern,
        "rotated_bytes": selection.rotated_bytes,
    }
