"""The figures that goals of quantization are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lut.summary import case_table, fastest
from ..plot import bars_of_bytes, by_library
from ..results import Document
from ..tables import Goal, Operator, goals_table

if TYPE_CHECKING:
    from rich.console import RenderableType

LEGEND = (
    "ms: median. Gelem/s: 10^9 floats per second. GB/s: floats, codes and parameters read and written. copy: of the "
    "speed of a copy of as many bytes beside the same samples, torch's on as many threads or else NumPy's. error: "
    "relative, L2, of the floats after rounding; of a dequantization against float64. n: samples. ~ most of its "
    "samples were disturbed by other work on the machine. != its results differ from the reference kernel's."
)


def summarize(document: Document) -> list[RenderableType]:
    """Return the table of the benchmark's goals."""
    goal = Goal("fastest expression of a peer / qcore", 1.0)
    for case in document.cases:
        row, peer = fastest(case, True), fastest(case, False)
        if row is not None and peer is not None:
            goal.add(case.name, peer.milliseconds / row.milliseconds)
    return [goals_table([goal])]


OPERATOR = Operator(
    "quantize",
    ("quantize", "quantize_encoded", "dequantize", "quantize_activations", "hadamard"),
    summarize,
    case_table,
    LEGEND,
    bars_of_bytes(by_library),
)
