"""Tables of AWQ weights, and the figures that their goals are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..copying import NUMPY, TORCH
from ..plot import bars_of_bytes, by_library
from ..results import Case, Document, Row
from ..tables import Columns, Goal, Operator, goals_table, percent, rows_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LEGEND = (
    "ms: median. ns: per weight. GB/s: read and written by a dequantization; of the weight in a product. copy: of the "
    "speed of a copy of as many bytes beside the same samples, torch's on as many threads or else NumPy's. error: "
    "relative, L2, against float64. n: samples. ~ most of its samples were disturbed by other work on the machine. != "
    "its results differ from the reference kernel's."
)

_BEYOND_CACHES = 1 << 23  # weights
_AS_EXACT = 10  # times the error: sums in fp32 in any order, not activations in int8


def summarize(document: Document) -> list[RenderableType]:
    """Return the table of the benchmark's goals."""
    return [goals_table(_goals([case for case in document.cases if case.rows]))]


def case_table(case: Case, most: int | None = None) -> Table:
    """All rows of a case, fastest first, or the first `most` and ours."""
    copy, weights = case.limits.get("copy"), case.parameters["K"] * case.parameters["N"]
    columns: Columns = {
        "ns": lambda row: f"{row.milliseconds * 1e6 / weights:.3f}",
        "GB/s": lambda row: f"{row.weight_gbs:.1f}",
        "copy": lambda row: percent(row.read_fraction),
    }
    return rows_table(case, f"{case.name} (limit here: copy {copy:.0f} GB/s)" if copy else case.name, columns, most)


def _as_exact(row: Row, than: Row | None) -> bool:
    if than is None or row.error is None or than.error is None:
        return False
    return row.error <= _AS_EXACT * than.error


def _goals(cases: list[Case]) -> list[Goal]:
    rows = Goal("dequantized beyond the caches: of the fastest copy's speed", 0.8)
    columns = Goal("dequantized and transposed beyond the caches: of the fastest copy's speed", 0.8)
    products = Goal("products: fastest peer that is as exact / qcore", 1.0)
    for case in cases:
        mine = [row for row in case.rows if row.ours]
        if case.parameters["M"]:
            fastest = min(mine, key=lambda row: row.milliseconds, default=None)
            peers = [row.milliseconds for row in case.rows if not row.ours and _as_exact(row, fastest)]
            if fastest is not None and peers:
                products.add(case.name, min(peers) / fastest.milliseconds)
        elif case.parameters["K"] * case.parameters["N"] >= _BEYOND_CACHES:
            fastest_copy = min((row.milliseconds for row in case.rows if row.name in (TORCH, NUMPY)), default=None)
            for row in mine:
                goal = columns if "transposed" in row.name else rows
                goal.add(case.name, fastest_copy / row.milliseconds if fastest_copy else row.read_fraction)
    return [rows, columns, products]


OPERATOR = Operator("awq", ("awq", "awq_linear"), summarize, case_table, LEGEND, bars_of_bytes(by_library))
