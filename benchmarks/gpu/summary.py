"""Tables of what was measured on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..results import Case, Row
from ..tables import Operator, no_summary, percent, plain_table

if TYPE_CHECKING:
    from rich.table import Table

LEGEND = (
    "us: median of a call from a CUDA graph. copy: of a copy's bandwidth. int8: of the rate of torch's large int8 "
    "products. torch: of the speed of torch's fastest row that computes something. error: relative, L2, against "
    "float64. != its results differ from the reference's: `simt` or the CPU."
)


def torch_row(case: Case) -> Row | None:
    """Return torch's fastest row that computes something, with weights that were given."""
    rows = [row for row in case.rows if row.library == "torch" and "copy" not in row.name and "given" not in row.name]
    return min(rows, key=lambda row: row.milliseconds, default=None)


def case_table(case: Case, most: int | None = None) -> Table:
    """Show all rows of a case, fastest first, or the first `most` and ours."""
    peer = torch_row(case)
    columns: dict[str, Callable[[Row], str]] = {
        "us": lambda row: f"{1e3 * row.milliseconds:.2f}",
        "copy": lambda row: percent(row.read_fraction),
        "int8": lambda row: percent(row.dot_fraction),
        "torch": lambda row: "-" if peer is None else f"{peer.milliseconds / row.milliseconds:.2f}",
        "error": lambda row: "-" if row.error is None else f"{row.error:.2e}",
    }
    table = plain_table(case.name)
    table.add_column("implementation", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, row in enumerate(case.rows):
        if most is None or number < most or row.ours:
            name = row.name + (" !=" if row.same_as_reference is False else "")
            table.add_row(name, *(cell(row) for cell in columns.values()), style="bold" if row.ours else None)
    return table


OPERATORS = {
    name: Operator(name, kernels, no_summary, case_table, LEGEND, None)
    for name, kernels in {
        "linear": ("linear",),
        "conv": ("conv2d", "static"),
        "gru": ("gru",),
        "lut": ("lut", "softmax", "rms_norm"),
        "awq": ("awq",),
        "decoder": (),
    }.items()
}
