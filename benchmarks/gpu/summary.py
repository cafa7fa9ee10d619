"""Tables of what was measured on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..results import Case, Document, Row
from ..tables import Operator, no_summary, percent, plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
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


def rivals(case: Case, ours: Row) -> list[Row]:
    """Return the public kernels that do the same job as a row of ours: weights, block size and activations agree."""
    form = (ours.weight_bits, ours.block_size, ours.activations)
    return [
        row
        for row in case.rows
        if not row.ours and "given" not in row.name and (row.weight_bits, row.block_size, row.activations) == form
    ]


def standing(document: Document) -> list[RenderableType]:
    """Compare qcore's choice of kernel with the fastest public kernel of the same job, and with torch in bf16."""
    chosen = [(case, row) for case in document.cases for row in case.rows if row.ours and row.kernel == "chosen"]
    rows = sorted({case.parameters["M"] for case, _ in chosen})
    tables: list[RenderableType] = []
    for other, of in (("the fastest public kernel for the same job", rivals), ("torch in bf16", _dense)):
        lines: dict[str, dict[int, str]] = {}
        for case, row in chosen:
            peer = min(of(case, row), key=lambda rival: rival.milliseconds, default=None)
            layer = f"{case.parameters['N']}x{case.parameters['K']}"
            cell = f"{peer.milliseconds / row.milliseconds:.2f}" if peer else "-"
            lines.setdefault(f"{layer} {row.name.removeprefix('qcore ')}", {})[case.parameters["M"]] = cell
        if lines:
            table = plain_table(f"qcore's speed, of {other}")
            table.add_column("layer", no_wrap=True)
            for m in rows:
                table.add_column(f"M={m}", justify="right", no_wrap=True)
            for name, cells in lines.items():
                table.add_row(name, *(cells.get(m, "") for m in rows))
            tables.append(table)
    return tables


def _dense(case: Case, _: Row) -> list[Row]:
    return [row for row in case.rows if row.name == "torch bf16"]


OPERATORS = {
    name: Operator(name, kernels, standing if name == "linear" else no_summary, case_table, LEGEND, None)
    for name, kernels in {
        "linear": ("linear",),
        "grouped": ("grouped_linear", "linear"),
        "activations": ("quantize_activations", "linear"),
        "conv": ("conv2d", "static"),
        "gru": ("gru",),
        "lstm": ("lstm",),
        "lut": ("lut", "softmax", "rms_norm"),
        "awq": ("awq",),
        "decoder": (),
    }.items()
}
