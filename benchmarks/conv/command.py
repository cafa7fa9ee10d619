"""`python -m benchmarks conv`."""

from __future__ import annotations

from ..options import Run, benchmark
from ..session import measure
from ..static.workloads import Selection
from .summary import OPERATOR
from .workloads import LAYERS, QUICK, workloads


@benchmark(cases="1x64x56x56 w64x64x3x3 s1", ours="w8 g64", peers="torch bf16", quick="Two layers")
def conv(run: Run) -> None:
    """Convolutions with per-block weights beside other libraries' of floats: layers of ResNets and of a MobileNet.

    Weights are quantized before. All are sampled in turn in one run, on the same number of threads; all results
    are compared with the exact ones first. The status is 1 if a result of qcore has other bits than its reference
    kernel's.

    \b
    Examples:
      python -m benchmarks conv --quick
      python -m benchmarks conv --json conv.json --plot conv.svg
      python -m benchmarks conv --cases g256 --ours channels_last
    """
    selection = run.choose(Selection(layers=LAYERS), Selection(layers=QUICK))
    measure(run, OPERATOR, selection, workloads(selection))
