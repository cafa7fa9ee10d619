"""The figures that the goals of linear layers are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..plot import roofline
from ..results import Case, Document, Row
from ..tables import LEGEND, Goal, Operator, case_table, goals_table, plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_SMALL_WEIGHTS = 1 << 22  # such a layer stays in the caches of most processors
_OURS = [(bits, block_size) for bits in (4, 8) for block_size in (32, 64, 128)]


def summarize(document: Document) -> list[RenderableType]:
    """Return the fastest of each kind, ratios to them, and the goals."""
    cases = [case for case in document.cases if case.rows]
    parts: list[RenderableType] = [_fastest_table(cases)]
    if any(not row.ours for case in cases for row in case.rows):
        parts.append(_ratio_table(cases, "fastest peer of any scheme / qcore int8", lambda row: True))
        parts.append(_ratio_table(cases, "fastest peer with per-block scales / qcore int8", _per_block))
    parts.append(_fraction_table(cases))
    parts.append(goals_table(_goals(cases)))
    return parts


def _per_block(row: Row) -> bool:
    return row.block_size is not None


def _fastest(case: Case, wanted: Callable[[Row], bool]) -> Row | None:
    return min((row for row in case.rows if wanted(row)), key=lambda row: row.milliseconds, default=None)


def _fastest_peer(case: Case, wanted: Callable[[Row], bool]) -> Row | None:
    return _fastest(case, lambda row: not row.ours and wanted(row))


def _ours(case: Case, bits: int, block_size: int, compute: str = "int8") -> Row | None:
    return next((row for row in case.rows if row.name == f"qcore {bits}b g{block_size} {compute}"), None)


def _ratio(peer: Row | None, ours: Row | None) -> float | None:
    return peer.milliseconds / ours.milliseconds if peer and ours else None


def _table(title: str, headings: list[str]) -> Table:
    table = plain_table(title)
    table.add_column("case", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _fastest_table(cases: list[Case]) -> Table:
    kinds: list[tuple[str, Callable[[Row], bool]]] = [
        ("qcore", lambda row: row.ours),
        ("peer", lambda row: not row.ours),
        ("4-bit per-block peer", lambda row: not row.ours and _per_block(row) and row.weight_bits == 4),
        ("8-bit per-block peer", lambda row: not row.ours and _per_block(row) and row.weight_bits == 8),
    ]
    table = _table("fastest, ms", [heading for heading, _ in kinds])
    for case in cases:
        found = [_fastest(case, wanted) for _, wanted in kinds]
        table.add_row(case.name, *(f"{row.name} {row.milliseconds:.4g}" if row else "-" for row in found))
    return table


def _ratio_table(cases: list[Case], title: str, wanted: Callable[[Row], bool]) -> Table:
    table = _table(title, [f"{bits}b g{block_size}" for bits, block_size in _OURS])
    for case in cases:
        peer = _fastest_peer(case, wanted)
        ratios = [_ratio(peer, _ours(case, *form)) for form in _OURS]
        table.add_row(case.name, *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios))
    return table


def _fraction_table(cases: list[Case]) -> Table:
    table = _table(
        "qcore int8: fraction of the read probe's bandwidth / of the dot-product peak",
        [f"{bits}b g{block_size}" for bits, block_size in _OURS],
    )
    for case in cases:
        rows = [_ours(case, *form) for form in _OURS]
        table.add_row(case.name, *(_fractions(row) if row else "-" for row in rows))
    return table


def _fractions(row: Row) -> str:
    parts = ("-" if part is None else f"{part:.2f}" for part in (row.read_fraction, row.dot_fraction))
    return " / ".join(parts)


def _goals(cases: list[Case]) -> list[Goal]:
    small = [case for case in cases if _weights(case) < _SMALL_WEIGHTS]
    large = [case for case in cases if _weights(case) >= _SMALL_WEIGHTS]
    return [
        *_decode_goals([case for case in large if case.parameters["M"] == 1]),
        *_speed_goals("", [case for case in large if case.parameters["M"] > 1], middle=1.3, prefill=1.0),
        *_speed_goals("small layers, ", small, middle=1.0, prefill=1.0),
        *_error_goals(cases),
    ]


def _weights(case: Case) -> int:
    return int(case.parameters["N"] * case.parameters["K"])


def _decode_goals(cases: list[Case]) -> list[Goal]:
    bandwidth = Goal("M = 1: fraction of the read probe", 0.95)
    same_width = Goal("M = 1: fastest peer as wide, with no more bits per weight / qcore", 1.0)
    no_wider = Goal("M = 1: fastest peer of any width with no more bits per weight / qcore", 1.0)
    for case in cases:
        for bits, block_size in _OURS:
            ours = _ours(case, bits, block_size)
            if ours is None:
                continue
            where = f"{case.name} {bits}b g{block_size}"
            bandwidth.add(where, ours.read_fraction)
            same_width.add(where, _ratio(_fastest_peer(case, partial(_no_larger, ours, bits)), ours))
            no_wider.add(where, _ratio(_fastest_peer(case, partial(_no_larger, ours, None)), ours))
    return [bandwidth, same_width, no_wider]


def _no_larger(ours: Row, bits: int | None, row: Row) -> bool:
    """No more bits per weight than ours, with scales; and as wide without them, if that is asked."""
    return bool(row.bits_per_weight <= ours.bits_per_weight + 0.01) and bits in (None, row.weight_bits)


def _speed_goals(prefix: str, cases: list[Case], *, middle: float, prefill: float) -> list[Goal]:
    few = Goal(f"{prefix}M <= 16: fastest peer / qcore 4b g64", middle)
    many = Goal(f"{prefix}M >= 128: fastest peer / qcore 8b g64, g128", prefill)
    many_32 = Goal(f"{prefix}M >= 128: fastest peer / qcore 8b g32", prefill)
    blocks = Goal(f"{prefix}M >= 128: fastest per-block peer / qcore 8b g64, g128", 2.0)
    for case in cases:
        peer, block_peer = _fastest_peer(case, lambda row: True), _fastest_peer(case, _per_block)
        if case.parameters["M"] <= 16:
            few.add(case.name, _ratio(peer, _ours(case, 4, 64)))
        elif case.parameters["M"] >= 128:
            many_32.add(case.name, _ratio(peer, _ours(case, 8, 32)))
            for block_size in (64, 128):
                ours = _ours(case, 8, block_size)
                many.add(f"{case.name} g{block_size}", _ratio(peer, ours))
                blocks.add(f"{case.name} g{block_size}", _ratio(block_peer, ours))
    return [few, many, many_32, blocks]


def _error_goals(cases: list[Case]) -> list[Goal]:
    form = "of the same bits, block size and kind of offsets"
    integers = Goal(f"error: qcore int8 / each peer {form} with int8 activations", 1.0, at_least=False)
    floats = Goal(f"error: qcore int8 / each peer {form} with floating-point activations", 1.0, at_least=False)
    int16 = Goal("error: qcore int16 / float", 1.05, at_least=False)
    outliers = Goal("error with outlier channels: qcore int16 / float", 1.05, at_least=False)
    for case in cases:
        for row in case.rows:
            if row.ours and row.name.endswith(" int8"):
                for peer in case.rows:
                    if not peer.ours and _same_form(row, peer) and row.error and peer.error:
                        goal = integers if peer.arithmetic == "int8" else floats
                        goal.add(f"{case.name} {row.name} against {peer.name}", row.error / peer.error)
        for bits in (4, 8):
            precise, exact = _ours(case, bits, 64, "int16"), _ours(case, bits, 64, "float")
            if precise and exact:
                int16.add(f"{case.name} {bits}b", _quotient(precise.error, exact.error))
                outliers.add(f"{case.name} {bits}b", _quotient(precise.error_outliers, exact.error_outliers))
    return [integers, floats, int16, outliers]


def _same_form(row: Row, peer: Row) -> bool:
    return (row.weight_bits, row.block_size, row.offsets) == (peer.weight_bits, peer.block_size, peer.offsets)


def _quotient(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


OPERATOR = Operator("linear", ("linear",), summarize, case_table, LEGEND, roofline)
