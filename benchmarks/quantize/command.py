"""`python -m benchmarks quantize`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ..options import Run, benchmark
from ..session import measure
from .summary import OPERATOR
from .workloads import QUICK, Selection, workloads

_SHAPE = re.compile(r"([1-9]\d*)x([1-9]\d*)")


def _shape(text: str) -> tuple[int, int]:
    match = _SHAPE.fullmatch(text)
    if match is None or int(match[2]) % 64:
        raise typer.BadParameter(f"{text!r} is not NxK with K a multiple of 64, e.g. 4096x4096", param_hint="--shape")
    return int(match[1]), int(match[2])


@benchmark(cases="quantize 4096x4096 4b", ours="qcore", peers="copy", quick="One small array")
def quantize(
    run: Run,
    shape: Annotated[list[str] | None, typer.Option(metavar="NxK", help="Arrays; repeatable.")] = None,
) -> None:
    """Measure quantizing of weights and activations, dequantizing and rotating, beside torch, NumPy, ggml and a copy.

    In blocks of 64 or into k-quants, from and to float32. All are sampled in turn in one run, on the same number of
    threads. The status is 1 if a weight that qcore quantized has other bits than the reference kernel's.

    \b
    Examples:
      python -m benchmarks quantize --quick
      python -m benchmarks quantize --json quantize.json --plot quantize.svg
      python -m benchmarks quantize --shape 11008x4096 --cases '4b'
    """
    selection = run.choose(Selection(), QUICK, shapes=[_shape(text) for text in shape or []])
    measure(run, OPERATOR, selection, workloads(selection))
