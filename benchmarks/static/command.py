"""`python -m benchmarks static`."""

from __future__ import annotations

from ..options import Run, benchmark
from ..session import measure
from .summary import OPERATOR
from .workloads import LAYERS, QUICK, Selection, workloads


@benchmark(cases="1x64x56x56 w64x64x3x3 s1", ours="qcore nchw out=", peers="ort QLinearConv", quick="Two layers")
def static(run: Run) -> None:
    """Measure static int8 convolutions beside other libraries': layers of ResNets and a MobileNet, codes in and out.

    Layers are packed before. All are sampled in turn in one run, on the same number of threads; all codes are
    compared with the exact ones first. The status is 1 if a result of qcore has other codes than its reference
    kernel's.

    \b
    Examples:
      python -m benchmarks static --quick
      python -m benchmarks static --json static.json --plot static.svg
      python -m benchmarks static --cases g256 --ours channels_last
    """
    selection = run.choose(Selection(layers=LAYERS), Selection(layers=QUICK))
    measure(run, OPERATOR, selection, workloads(selection))
