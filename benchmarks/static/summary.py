"""Tables of static int8 convolutions, and the figures that their goals are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plot import bars_of_operations, by_memory
from ..results import Case, Document, Row
from ..tables import Columns, Goal, Operator, goals_table, percent, plain_table, rows_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LEGEND = (
    "ms: median of a call, codes in and out. GOP/s: multiplications and additions. dot: of the peak of int8 dot "
    "products. error: mean distance of the codes from the exact ones. n: samples. ~ most of its samples were disturbed "
    "by other work on the machine. != its results differ from the reference kernel's."
)


def summarize(document: Document) -> list[RenderableType]:
    """Return the fastest of each kind, ratios, and the goals."""
    cases = [case for case in document.cases if case.rows]
    return [_fastest_table(cases), goals_table(_goals(cases))]


def case_table(case: Case, most: int | None = None) -> Table:
    """All rows of a case, fastest first, or the first `most` and ours."""
    peak = case.limits.get("int8")
    title = f"{case.name} (peak here: int8 {peak:.0f} GOP/s)" if peak else case.name
    columns: Columns = {"GOP/s": lambda row: f"{row.gops:.3g}", "dot": lambda row: percent(row.dot_fraction)}
    return rows_table(case, title, columns, most)


def last(case: Case) -> Row | None:
    """qcore's fastest from channels_last to channels_last."""
    return _fastest([row for row in case.rows if row.ours and "channels_last" in row.name])


def first(case: Case) -> Row | None:
    """qcore's fastest from NCHW to NCHW."""
    return _fastest([row for row in case.rows if row.ours and "nchw" in row.name])


def peer(case: Case) -> Row | None:
    return _fastest([row for row in case.rows if not row.ours])


def nchw_peer(case: Case) -> Row | None:
    return _fastest([row for row in case.rows if not row.ours and "nchw" in row.name])


def _fastest(rows: list[Row]) -> Row | None:
    return min(rows, key=lambda row: row.milliseconds, default=None)


def _ratio(other: Row | None, ours: Row | None) -> float | None:
    return other.milliseconds / ours.milliseconds if other and ours else None


def _fastest_table(cases: list[Case]) -> Table:
    table = plain_table("fastest, ms")
    table.add_column("case", no_wrap=True)
    for heading in ("qcore channels_last", "qcore nchw", "fastest peer", "peer / channels_last", "nchw peer / nchw"):
        table.add_column(heading, justify="right")
    for case in cases:
        rows = (last(case), first(case))
        other = peer(case)
        ratios = (_ratio(other, rows[0]), _ratio(nchw_peer(case), rows[1]))
        table.add_row(
            case.name,
            *(f"{row.milliseconds:.4g}" if row else "-" for row in rows),
            f"{other.name} {other.milliseconds:.4g}" if other else "-",
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )
    return table


def _goals(cases: list[Case]) -> list[Goal]:
    goal = Goal("fastest peer / qcore channels_last", 1.0)
    nchw = Goal("fastest NCHW peer / qcore NCHW", 1.0)
    for case in cases:
        goal.add(case.name, _ratio(peer(case), last(case)))
        nchw.add(case.name, _ratio(nchw_peer(case), first(case)))
    return [goal, nchw]


OPERATOR = Operator("static", ("static",), summarize, case_table, LEGEND, bars_of_operations(by_memory))
