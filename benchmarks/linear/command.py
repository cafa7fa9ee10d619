"""`python -m benchmarks linear`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ..options import Run, benchmark, check_known
from ..session import measure
from .summary import OPERATOR
from .workloads import ALL_BITS, ALL_BLOCK_SIZES, QUICK, Selection, workloads

_SHAPE = re.compile(r"(\d+)x(\d+)")


def parse_shape(text: str) -> tuple[int, int]:
    """Return N and K of "NxK"."""
    match = _SHAPE.fullmatch(text)
    if match is None or int(match[1]) < 1 or int(match[2]) < 128 or int(match[2]) % 128:
        raise typer.BadParameter(
            f"{text!r} is not NxK with K a positive multiple of 128, e.g. 4096x4096", param_hint="--shape"
        )
    return int(match[1]), int(match[2])


@benchmark(
    cases="4096x4096 M=16",
    ours="qcore 4b g64 int8",
    peers="ort MatMulNBits",
    quick="Two small layers, M = 1 and 16",
    seconds=3600,
    wait=600,
)
def linear(
    run: Run,
    shape: Annotated[list[str] | None, typer.Option(metavar="NxK", help="Layers; repeatable.")] = None,
    m: Annotated[list[int] | None, typer.Option("--m", min=1, help="Rows of activations; repeatable.")] = None,
    bits: Annotated[
        list[int] | None, typer.Option(min=2, max=8, help="2 to 6, 8; by default 4 and 8; repeatable.")
    ] = None,
    block_size: Annotated[
        list[int] | None, typer.Option(min=1, help="16 to 128; by default from 32 on; repeatable.")
    ] = None,
) -> None:
    """Measure linear layers: qcore's forms and the peers that are installed, the machine's limits and every error.

    All are sampled in turn in one run, on the same number of threads. Weights are rotated through copies, so that
    small M read memory. The status is 1 if a result of qcore has other bits than its reference kernel's.

    \b
    Examples:
      python -m benchmarks linear --quick
      python -m benchmarks linear --json linear.json --plot roofline.png
      python -m benchmarks linear --shape 4096x4096 --m 1 --m 16 --peers 'MatMulNBits 4b'
    """
    check_known(bits, ALL_BITS, "--bits")
    check_known(block_size, ALL_BLOCK_SIZES, "--block-size")
    shapes = [parse_shape(text) for text in shape or []]
    selection = run.choose(Selection(), QUICK, shapes=shapes, rows=m, bits=bits, block_sizes=block_size)
    measure(run, OPERATOR, selection, workloads(selection))
