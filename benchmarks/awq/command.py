"""`python -m benchmarks awq`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ..options import Run, benchmark
from ..session import measure
from .summary import OPERATOR
from .workloads import QUICK, Selection, workloads

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


@benchmark(cases="512x512 g128 M=1", ours="transposed", peers="copy", quick="Two small weights, M = 1 and 16")
def awq(
    run: Run,
    shape: Annotated[list[str] | None, typer.Option(metavar="KxNxg", help="g is 128 if left out; repeatable.")] = None,
    m: Annotated[list[int] | None, typer.Option("--m", min=1, help="Rows of activations; repeatable.")] = None,
) -> None:
    """Measure dequantization of AWQ weights beside a copy, and products beside ONNX Runtime, with every error.

    All are sampled in turn in one run, on the same number of threads. The status is 1 if a dequantized weight has
    other bits than the reference kernel's.

    \b
    Examples:
      python -m benchmarks awq --quick
      python -m benchmarks awq --json awq.json
      python -m benchmarks awq --shape 4096x14336x64 --m 1 --isa avx2
    """
    shapes = [_shape(text) for text in shape or []]
    selection = run.choose(Selection(), QUICK, shapes=shapes, rows=m)
    measure(run, OPERATOR, selection, workloads(selection))
