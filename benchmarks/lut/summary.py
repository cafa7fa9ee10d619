"""Tables of functions, and the figures that their goals are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plot import bars_of_bytes, by_library
from ..results import Case, Document, Row
from ..tables import Columns, Goal, Operator, goals_table, percent, plain_table, rows_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LEGEND = (
    "ms: median. Gelem/s: 10^9 elements per second. GB/s: read and written. copy: of the speed of a copy of the same "
    "size and dtype beside the same samples, torch's on as many threads or else NumPy's. error: mean of "
    "|y - f| / max(|f|, 2^-14), f in float64. n: samples. ~ most of its samples were disturbed by other work on the "
    "machine. != its results differ from the reference kernel's."
)

_LARGE = 1 << 20


def summarize(document: Document) -> list[RenderableType]:
    """Return the fastest of each case, ratios, and the goals."""
    cases = [case for case in document.cases if case.rows]
    return [_fastest_table(cases), goals_table(_goals(cases))]


def case_table(case: Case, most: int | None = None) -> Table:
    """All rows of a case, fastest first, or the first `most` and ours."""
    copy = case.limits.get("copy")
    columns: Columns = {
        "Gelem/s": lambda row: f"{row.gops:.3g}",
        "GB/s": lambda row: f"{row.weight_gbs:.1f}",
        "copy": lambda row: percent(row.read_fraction),
    }
    return rows_table(case, f"{case.name} (limit here: copy {copy:.0f} GB/s)" if copy else case.name, columns, most)


def fastest(case: Case, ours: bool) -> Row | None:
    """Return the rows that compute something."""
    rows = [row for row in case.rows if row.ours == ours and row.error is not None]
    return min(rows, key=lambda row: row.milliseconds, default=None)


def _fastest_table(cases: list[Case]) -> Table:
    table = plain_table("fastest, ms")
    table.add_column("case", no_wrap=True)
    for heading in ("qcore", "copy", "error", "peer", "error", "peer / qcore"):
        table.add_column(heading, justify="right")
    for case in cases:
        row, peer = fastest(case, True), fastest(case, False)
        cells = ["-"] * 6
        if row is not None:
            cells[:3] = [f"{row.milliseconds:.4g}", percent(row.read_fraction), f"{row.error:.1e}"]
        if peer is not None:
            cells[3:5] = [f"{peer.name} {peer.milliseconds:.4g}", f"{peer.error:.1e}"]
        if row is not None and peer is not None:
            cells[5] = f"{peer.milliseconds / row.milliseconds:.2f}"
        table.add_row(case.name, *cells)
    return table


def _goals(cases: list[Case]) -> list[Goal]:
    large = Goal("2^20 elements and more: fastest peer / qcore", 1.0)
    small = Goal("fewer elements: fastest peer / qcore", 1.0)
    for case in cases:
        row, peer = fastest(case, True), fastest(case, False)
        if row is not None and peer is not None:
            goal = large if case.parameters["elements"] >= _LARGE else small
            goal.add(case.name, peer.milliseconds / row.milliseconds)
    return [large, small]


OPERATOR = Operator("lut", ("lut", "softmax", "rms_norm"), summarize, case_table, LEGEND, bars_of_bytes(by_library))
