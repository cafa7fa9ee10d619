"""Tables of recurrent layers, and the figures that their goals are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..results import Case, Document, Row
from ..tables import Columns, Goal, Operator, goals_table, percent, plain_table, rows_table
from .plot import times

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LEGEND = (
    "ms: median of a whole call, floats in and out; step: of one step of a stream, its state carried. us/step: of it, "
    "per time step of the whole batch. GOP/s: of the two products. dot: of the peak of its arithmetic (int8 dot "
    "products; fp32 multiply-adds; the others have no probe). error: relative, L2, against float64. n: samples. ~ most "
    "of its samples were disturbed by other work on the machine. != its results differ from the reference kernel's."
)


def summarize(document: Document) -> list[RenderableType]:
    """Return the fastest of each kind, ratios, and the goals."""
    cases = [case for case in document.cases if case.rows]
    return [_fastest_table(cases), goals_table(_goals(cases))]


def case_table(case: Case, most: int | None = None) -> Table:
    """Return all rows of a case, fastest first, or the first `most` and ours."""
    peaks = ", ".join(f"{name} {rate:.0f} GOP/s" for name, rate in case.limits.items() if rate and name != "read")
    columns: Columns = {
        "us/step": lambda row: f"{1e3 * row.milliseconds / case.parameters['T']:.4g}",
        "GOP/s": lambda row: f"{row.gops:.3g}",
        "dot": lambda row: percent(row.dot_fraction),
    }
    return rows_table(case, f"{case.name} (peaks here: {peaks})" if peaks else case.name, columns, most)


def _fastest(case: Case, wanted: Callable[[Row], bool]) -> Row | None:
    return min((row for row in case.rows if wanted(row)), key=lambda row: row.milliseconds, default=None)


def int8(case: Case) -> Row | None:
    """Return qcore's fastest."""
    return _fastest(case, lambda row: row.ours and row.weight_bits == 8)


def int16(case: Case) -> Row | None:
    return _fastest(case, lambda row: row.ours and row.weight_bits == 16)


def peer(case: Case) -> Row | None:
    """Return the fastest of all."""
    return _fastest(case, lambda row: not row.ours)


def fp32_peer(case: Case) -> Row | None:
    return _fastest(case, lambda row: not row.ours and row.weight_bits == 32)


def _ratio(other: Row | None, ours: Row | None) -> float | None:
    return other.milliseconds / ours.milliseconds if other and ours else None


def _fastest_table(cases: list[Case]) -> Table:
    table = plain_table("fastest, ms")
    table.add_column("case", no_wrap=True)
    for heading in ("qcore int8", "qcore int16", "fp32 peer", "fastest peer", "peer / int8", "fp32 peer / int16"):
        table.add_column(heading, justify="right")
    for case in cases:
        eight, sixteen, fp32, other = int8(case), int16(case), fp32_peer(case), peer(case)
        ratios = (_ratio(other, eight), _ratio(fp32, sixteen))
        table.add_row(
            case.name,
            *(f"{row.milliseconds:.4g}" if row else "-" for row in (eight, sixteen)),
            *(f"{row.name} {row.milliseconds:.4g}" if row else "-" for row in (fp32, other)),
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )
    return table


def _goals(cases: list[Case]) -> list[Goal]:
    whole = Goal("a call: fastest peer / qcore int8", 2.0)
    step = Goal("a step of a stream: fastest peer / qcore int8", 2.0)
    sixteen = Goal("fastest fp32 peer / qcore int16", 1.0)
    for case in cases:
        (step if case.parameters["step"] else whole).add(case.name, _ratio(peer(case), int8(case)))
        sixteen.add(case.name, _ratio(fp32_peer(case), int16(case)))
    return [whole, step, sixteen]


GRU = Operator("gru", ("gru",), summarize, case_table, LEGEND, times)
LSTM = Operator("lstm", ("lstm",), summarize, case_table, LEGEND, times)
