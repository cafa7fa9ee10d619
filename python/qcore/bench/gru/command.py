"""`qcore bench gru`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..patterns import pattern

if TYPE_CHECKING:
    from .workloads import Selection


def gru(
    steps: Annotated[list[int] | None, typer.Option(min=1, help="T, steps of a sequence; repeatable.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="B, sequences of a call; repeatable.")] = None,
    hidden: Annotated[list[int] | None, typer.Option(min=1, help="H, size of the state; repeatable.")] = None,
    inputs: Annotated[int, typer.Option(min=1, help="C, size of an input.")] = 128,
    bits: Annotated[list[int] | None, typer.Option(help="8 or 16, of qcore's presets; repeatable.")] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(help="fused or staged, of qcore; repeatable; fused by default.")
    ] = None,
    no_step: Annotated[bool, typer.Option("--no-step", help="Leave out the stream of single steps.")] = False,
    cases: Annotated[str, typer.Option(metavar="REGEX", help="Only cases such as 'C=128 H=256 T=50 B=8'.")] = "",
    ours: Annotated[str, typer.Option(metavar="REGEX", help="Only these of qcore's, as 'qcore int8 fused'.")] = "",
    peers: Annotated[str, typer.Option(metavar="REGEX", help="Only these peers, as 'torch GRU bf16'.")] = "",
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Import and measure no other library.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="For every library.")] = 2,
    isa: Annotated[str | None, typer.Option(help="Cap instruction sets: avx2, avxvnni or avx512vnni.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Per implementation and case.")] = 15,
    seconds: Annotated[float, typer.Option(min=1, help="For the whole run; what is left over is reported.")] = 1800,
    wait: Annotated[float, typer.Option(min=0, help="Seconds in all to wait while others use the CPUs.")] = 300,
    quick: Annotated[bool, typer.Option("--quick", help="One small layer, short sequences, few samples.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything here after each case.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the times: .png, .svg or .pdf.")] = None,
) -> None:
    """GRU layers beside other libraries' own: whole calls from floats to floats, and single steps of a stream.

    All are sampled in turn in one run, on the same number of threads; everybody's result is compared with float64
    first. The status is 1 if a result of qcore has other integers than its reference kernel's.

    \b
    Examples:
      qcore bench gru --quick
      qcore bench gru --json gru.json --plot gru.svg
      qcore bench gru --hidden 256 --cases 'step|T=50' --pipeline fused --pipeline staged
    """
    from ..session import Session
    from .workloads import BITS, PIPELINES, QUICK, Selection, workloads

    for values, known, option in ((bits, BITS, "--bits"), (pipeline, PIPELINES, "--pipeline")):
        for value in values or []:
            if value not in known:
                names = ", ".join(str(name) for name in known)
                raise typer.BadParameter(f"'{value}' is not one of {names}", param_hint=option)
    default = QUICK if quick else Selection()
    selection = Selection(
        steps=steps or default.steps,
        batches=batch or default.batches,
        hidden=hidden or default.hidden,
        inputs=inputs,
        streaming=not no_step,
        bits=bits or default.bits,
        pipelines=pipeline or default.pipelines,
        cases=pattern(cases, "--cases"),
        ours=pattern(ours, "--ours"),
        peers=None if no_peers else pattern(peers, "--peers"),
    )
    chosen = workloads(selection)
    if not chosen:
        raise typer.BadParameter(f"{cases!r} is in no case's name", param_hint="--cases")
    session = Session(
        "gru", _settings(selection), threads=threads, isa=isa, samples=min(samples, 5) if quick else samples,
        seconds=seconds, wait=wait, json=json, plot=plot,
    )  # fmt: skip
    session.run(chosen)


def _settings(selection: Selection) -> dict[str, object]:
    return {
        "steps": list(selection.steps),
        "batches": list(selection.batches),
        "hidden": list(selection.hidden),
        "inputs": selection.inputs,
        "streaming": selection.streaming,
        "bits": list(selection.bits),
        "pipelines": list(selection.pipelines),
        "cases": selection.cases.pattern,
        "ours": selection.ours.pattern,
        "peers": None if selection.peers is None else selection.peers.pattern,
    }
