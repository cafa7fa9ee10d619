"""`python -m benchmarks gru` and `lstm`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import Run, benchmark, check_known
from ..session import measure
from .summary import GRU, LSTM
from .workloads import BITS, PIPELINES, QUICK, Selection, workloads

Steps = Annotated[list[int] | None, typer.Option(min=1, help="T, steps of a sequence; repeatable.")]
Batch = Annotated[list[int] | None, typer.Option(min=1, help="B, sequences of a call; repeatable.")]
Hidden = Annotated[list[int] | None, typer.Option(min=1, help="H, size of the state; repeatable.")]
Inputs = Annotated[int, typer.Option(min=1, help="C, size of an input.")]
Bits = Annotated[list[int] | None, typer.Option(help="8 or 16, of qcore's presets; repeatable.")]
NoStep = Annotated[bool, typer.Option("--no-step", help="Leave out the stream of single steps.")]
_QUICK = "One small layer, short sequences"


@benchmark(cases="C=128 H=256 T=50 B=8", ours="qcore int8 fused", peers="torch GRU bf16", quick=_QUICK)
def gru(
    run: Run,
    steps: Steps = None,
    batch: Batch = None,
    hidden: Hidden = None,
    inputs: Inputs = 128,
    bits: Bits = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(help="fused or staged, of qcore; repeatable; fused by default.")
    ] = None,
    no_step: NoStep = False,
) -> None:
    """Measure GRU layers beside other libraries' own: whole calls from floats to floats, and single steps of a stream.

    All are sampled in turn in one run, on the same number of threads; every result is compared with float64
    first. The status is 1 if a result of qcore has other integers than its reference kernel's.

    \b
    Examples:
      python -m benchmarks gru --quick
      python -m benchmarks gru --json gru.json --plot gru.svg
      python -m benchmarks gru --hidden 256 --cases 'step|T=50' --pipeline fused --pipeline staged
    """
    check_known(bits, BITS, "--bits")
    check_known(pipeline, PIPELINES, "--pipeline")
    selection = run.choose(
        Selection(), QUICK, steps=steps, batches=batch, hidden=hidden, inputs=inputs, streaming=not no_step, bits=bits,
        pipelines=pipeline,
    )  # fmt: skip
    measure(run, GRU, selection, workloads(selection))


@benchmark(cases="C=128 H=256 T=50 B=8", ours="qcore int8", peers="torch LSTM bf16", quick=_QUICK)
def lstm(
    run: Run,
    steps: Steps = None,
    batch: Batch = None,
    hidden: Hidden = None,
    inputs: Inputs = 128,
    bits: Bits = None,
    no_step: NoStep = False,
) -> None:
    """Measure LSTM layers beside other libraries' own: whole calls from floats to floats, and single steps of a stream.

    All are sampled in turn in one run, on the same number of threads; every result is compared with float64
    first. The status is 1 if a result of qcore has other integers than its reference kernel's.

    \b
    Examples:
      python -m benchmarks lstm --quick
      python -m benchmarks lstm --json lstm.json --plot lstm.svg
    """
    check_known(bits, BITS, "--bits")
    selection = run.choose(
        Selection(), QUICK, cell="lstm", steps=steps, batches=batch, hidden=hidden, inputs=inputs,
        streaming=not no_step, bits=bits,
    )  # fmt: skip
    measure(run, LSTM, selection, workloads(selection))
