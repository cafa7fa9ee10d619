"""`qcore bench lut`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..patterns import pattern

if TYPE_CHECKING:
    from .workloads import Selection


def lut(
    function: Annotated[
        list[str] | None, typer.Option(help="silu, gelu, tanh, sigmoid, exp, softmax or rms_norm; repeatable.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="fp32, fp16 or bf16; repeatable.")] = None,
    size: Annotated[list[int] | None, typer.Option(min=1, help="Elements; repeatable.")] = None,
    cases: Annotated[str, typer.Option(metavar="REGEX", help="Only cases such as 'silu fp16 1024'.")] = "",
    ours: Annotated[str, typer.Option(metavar="REGEX", help="Only these of qcore's, as 'qcore out='.")] = "",
    peers: Annotated[str, typer.Option(metavar="REGEX", help="Only these peers, as 'torch out='.")] = "",
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Import and measure no other library.")] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="For every library.")] = 2,
    isa: Annotated[str | None, typer.Option(help="Cap instruction sets: avx2, avxvnni or avx512vnni.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Per implementation and case.")] = 15,
    seconds: Annotated[float, typer.Option(min=1, help="For the whole run; what is left over is reported.")] = 1800,
    wait: Annotated[float, typer.Option(min=0, help="Seconds in all to wait while others use the CPUs.")] = 300,
    quick: Annotated[bool, typer.Option("--quick", help="Three functions on 2^20 and 2^10 elements.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything here after each case.")] = None,
) -> None:
    """Functions by look-up tables beside other libraries' own, with the speed of a copy and every error.

    All are sampled in turn in one run, on the same number of threads. The status is 1 if a result of qcore has other
    bits than its reference kernel's.

    \b
    Examples:
      qcore bench lut --quick
      qcore bench lut --json lut.json
      qcore bench lut --function silu --function exp --dtype fp16 --size 16777216
    """
    from ..session import Session
    from .problem import FUNCTION_NAMES
    from .workloads import DTYPES, QUICK, Selection, workloads

    for values, known, option in ((function, FUNCTION_NAMES, "--function"), (dtype, DTYPES, "--dtype")):
        for value in values or []:
            if value not in known:
                raise typer.BadParameter(f"{value!r} is not one of {', '.join(known)}", param_hint=option)
    default = QUICK if quick else Selection()
    selection = Selection(
        functions=function or default.functions,
        dtypes=dtype or default.dtypes,
        sizes=size or default.sizes,
        cases=pattern(cases, "--cases"),
        ours=pattern(ours, "--ours"),
        peers=None if no_peers else pattern(peers, "--peers"),
    )
    chosen = workloads(selection)
    if not chosen:
        raise typer.BadParameter(f"{cases!r} is in no case's name", param_hint="--cases")
    session = Session(
        "lut", _settings(selection), threads=threads, isa=isa, samples=min(samples, 5) if quick else samples,
        seconds=seconds, wait=wait, json=json, plot=None,
    )  # fmt: skip
    session.run(chosen)


def _settings(selection: Selection) -> dict[str, object]:
    return {
        "functions": list(selection.functions),
        "dtypes": list(selection.dtypes),
        "sizes": list(selection.sizes),
        "cases": selection.cases.pattern,
        "ours": selection.ours.pattern,
        "peers": None if selection.peers is None else selection.peers.pattern,
    }
