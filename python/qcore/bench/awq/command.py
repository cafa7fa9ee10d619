"""`qcore bench awq`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..patterns import pattern

if TYPE_CHECKING:
    from .workloads import Selection

_SHAPE = re.compile(r"([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?")
_GROUP_SIZE, _COLUMNS = 128, 8  # by default; of a word


def _shape(text: str) -> tuple[int, int, int]:
    match = _SHAPE.fullmatch(text)
    k, n, group_size = (int(number or _GROUP_SIZE) for number in match.groups()) if match else (1, 1, 1)
    # MatMulNBits takes groups of 16, 32, 64, ...; ours would take any.
    if n % _COLUMNS or k % group_size or group_size < 16 or group_size & group_size - 1:
        raise typer.BadParameter(
            f"{text!r} is not KxN or KxNxg with N a multiple of 8, K of g, and g a power of two from 16, "
            "e.g. 4096x4096x128",
            param_hint="--shape",
        )
    return k, n, group_size


def awq(
    shape: Annotated[list[str] | None, typer.Option(metavar="KxNxg", help="g is 128 if left out; repeatable.")] = None,
    m: Annotated[list[int] | None, typer.Option("--m", min=1, help="Rows of activations; repeatable.")] = None,
    cases: Annotated[str, typer.Option(metavar="REGEX", help="Only cases such as '512x512 g128 M=1'.")] = "",
    ours: Annotated[str, typer.Option(metavar="REGEX", help="Only these of qcore's, as 'transposed'.")] = "",
    peers: Annotated[str, typer.Option(metavar="REGEX", help="Only these peers, as 'copy'.")] = "",
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Import and measure no other library.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="For every library.")] = 2,
    isa: Annotated[str | None, typer.Option(help="Cap instruction sets: avx2, avxvnni or avx512vnni.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Per implementation and case.")] = 15,
    seconds: Annotated[float, typer.Option(min=1, help="For the whole run; what is left over is reported.")] = 1800,
    wait: Annotated[float, typer.Option(min=0, help="Seconds in all to wait while others use the CPUs.")] = 300,
    quick: Annotated[bool, typer.Option("--quick", help="Two small weights, M = 1 and 16.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything here after each case.")] = None,
) -> None:
    """AWQ weights dequantised, beside a copy, and multiplied, beside ONNX Runtime's MatMulNBits; with every error.

    All are sampled in turn in one run, on the same number of threads. The status is 1 if a dequantised weight has
    other bits than the reference kernel's.

    \b
    Examples:
      qcore bench awq --quick
      qcore bench awq --json awq.json
      qcore bench awq --shape 4096x14336x64 --m 1 --isa avx2
    """
    from ..session import Session
    from .workloads import QUICK, Selection, workloads

    default = QUICK if quick else Selection()
    selection = Selection(
        shapes=[_shape(text) for text in shape] if shape else default.shapes,
        rows=m or default.rows,
        cases=pattern(cases, "--cases"),
        ours=pattern(ours, "--ours"),
        peers=None if no_peers else pattern(peers, "--peers"),
    )
    chosen = workloads(selection)
    if not chosen:
        raise typer.BadParameter(f"{cases!r} is in no case's name", param_hint="--cases")
    session = Session(
        "awq", _settings(selection), threads=threads, isa=isa, samples=min(samples, 5) if quick else samples,
        seconds=seconds, wait=wait, json=json, plot=None,
    )  # fmt: skip
    session.run(chosen)


def _settings(selection: Selection) -> dict[str, object]:
    return {
        "shapes": ["x".join(str(extent) for extent in shape) for shape in selection.shapes],
        "m": list(selection.rows),
        "cases": selection.cases.pattern,
        "ours": selection.ours.pattern,
        "peers": None if selection.peers is None else selection.peers.pattern,
        "rotated_bytes": selection.rotated_bytes,
    }
