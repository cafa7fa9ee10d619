"""`qcore bench conv`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..patterns import pattern

if TYPE_CHECKING:
    from ..static.workloads import Selection


def conv(
    cases: Annotated[str, typer.Option(metavar="REGEX", help="Only cases such as '1x64x56x56 w64x64x3x3 s1'.")] = "",
    ours: Annotated[str, typer.Option(metavar="REGEX", help="Only these of qcore's, as 'w8 g64'.")] = "",
    peers: Annotated[str, typer.Option(metavar="REGEX", help="Only these peers, as 'torch bf16'.")] = "",
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Import and measure no other library.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="For every library.")] = 2,
    isa: Annotated[str | None, typer.Option(help="Cap instruction sets: avx2, avxvnni or avx512vnni.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Per implementation and case.")] = 15,
    seconds: Annotated[float, typer.Option(min=1, help="For the whole run; what is left over is reported.")] = 1800,
    wait: Annotated[float, typer.Option(min=0, help="Seconds in all to wait while others use the CPUs.")] = 300,
    quick: Annotated[bool, typer.Option("--quick", help="Two layers, few samples.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything here after each case.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the rates: .png, .svg or .pdf.")] = None,
) -> None:
    """Convolutions with per-block weights beside other libraries' of floats: layers of ResNets and of a MobileNet.

    Weights are quantised before. All are sampled in turn in one run, on the same number of threads; everybody's results
    are compared with the exact ones first. The status is 1 if a result of qcore has other bits than its reference
    kernel's.

    \b
    Examples:
      qcore bench conv --quick
      qcore bench conv --json conv.json --plot conv.svg
      qcore bench conv --cases g256 --ours channels_last
    """
    from ..session import Session
    from ..static.workloads import Selection
    from .workloads import LAYERS, QUICK, workloads

    selection = Selection(
        layers=QUICK if quick else LAYERS,
        cases=pattern(cases, "--cases"),
        ours=pattern(ours, "--ours"),
        peers=None if no_peers else pattern(peers, "--peers"),
    )
    chosen = workloads(selection)
    if not chosen:
        raise typer.BadParameter(f"{cases!r} is in no case's name", param_hint="--cases")
    session = Session(
        "conv", _settings(selection), threads=threads, isa=isa, samples=min(samples, 5) if quick else samples,
        seconds=seconds, wait=wait, json=json, plot=plot,
    )  # fmt: skip
    session.run(chosen)


def _settings(selection: Selection) -> dict[str, object]:
    return {
        "layers": [layer.name for layer in selection.layers],
        "cases": selection.cases.pattern,
        "ours": selection.ours.pattern,
        "peers": None if selection.peers is None else selection.peers.pattern,
    }
