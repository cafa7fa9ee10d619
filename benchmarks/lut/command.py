"""`python -m benchmarks lut`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import Run, benchmark, check_known
from ..session import measure
from .problem import FUNCTION_NAMES
from .summary import OPERATOR
from .workloads import DTYPES, QUICK, Selection, workloads


@benchmark(
    cases="silu fp16 1024", ours="qcore out=", peers="torch out=", quick="Three functions on 2^20 and 2^10 elements"
)
def lut(
    run: Run,
    function: Annotated[
        list[str] | None, typer.Option(help="silu, gelu, tanh, sigmoid, exp, softmax or rms_norm; repeatable.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="fp32, fp16 or bf16; repeatable.")] = None,
    size: Annotated[list[int] | None, typer.Option(min=1, help="Elements; repeatable.")] = None,
) -> None:
    """Measure functions by look-up tables beside other libraries' own, with the speed of a copy and every error.

    All are sampled in turn in one run, on the same number of threads. The status is 1 if a result of qcore has other
    bits than its reference kernel's.

    \b
    Examples:
      python -m benchmarks lut --quick
      python -m benchmarks lut --json lut.json
      python -m benchmarks lut --function silu --function exp --dtype fp16 --size 16777216
    """
    check_known(function, FUNCTION_NAMES, "--function")
    check_known(dtype, DTYPES, "--dtype")
    selection = run.choose(Selection(), QUICK, functions=function, dtypes=dtype, sizes=size)
    measure(run, OPERATOR, selection, workloads(selection))
