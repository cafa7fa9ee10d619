"""Report of the measurements, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import qcore

from .operators import CONV_BLOCK_SIZE
from .run import BLOCK_SIZE, Measurement, Result

_BAR = 12
"""Columns of the longest bar."""

if TYPE_CHECKING:
    from rich.table import Table


def table(result: Result) -> Table:
    from rich import box
    from rich.table import Table

    rows = Table(
        title=f"Handwritten digits: {result.images} test images that training never saw",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    rows.add_column("weights", no_wrap=True)
    for heading in ("right", "accuracy", "bytes", "bits", "us/img", "speed"):
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("", no_wrap=True)
    reference, shown = result.measurements[0], shown_rows(result)
    most = max(reference.microseconds_per_image / row.microseconds_per_image for row in shown)
    for row in shown:
        speed = reference.microseconds_per_image / row.microseconds_per_image
        rows.add_row(
            row.name,
            f"{row.correct}/{result.images}",
            f"{row.correct / result.images:.2%}",
            f"{row.weight_bytes:,}",
            f"{row.bits_per_weight:.2f}",
            f"{row.microseconds_per_image:.1f}",
            f"{speed:.2f}x",
            "\u2588" * max(1, round(_BAR * speed / most)),
        )
    return rows


def shown_rows(result: Result) -> list[Measurement]:
    """Return the float model and what was not slower here; the JSON file has all."""
    reference = result.measurements[0]
    return [row for row in result.measurements if row.microseconds_per_image <= reference.microseconds_per_image]


def explanation(result: Result) -> str:
    """Return three lines: what was compared, what it gained, and what is not shown."""
    reference = result.measurements[0]
    best = min(shown_rows(result), key=lambda row: row.microseconds_per_image)
    smaller, faster = (
        reference.weight_bytes / best.weight_bytes,
        reference.microseconds_per_image / best.microseconds_per_image,
    )
    left = len(result.measurements) - len(shown_rows(result))
    more = f"; not shown, because slower than float: {left} (--json has all)" if left else ""
    return (
        "float: NumPy. 8-bit, 4-bit: a scale for every 32 weights, activations in int8. static: int8 throughout.\n"
        f"{best.name}: {smaller:.1f}x smaller, {faster:.2f}x as fast, {best.correct - reference.correct:+d} right of "
        f"{result.images}.\n"
        f"us/img: median of {result.repeats} passes, batches of {result.batch}, {result.threads} thread(s){more}."
    )


def to_json(result: Result) -> str:
    def entry(row: Measurement) -> dict[str, object]:
        derived: dict[str, object] = {"accuracy": row.correct / result.images, "bits_per_weight": row.bits_per_weight}
        derived["quantised"] = row.quantized  # the key of files of 0.1
        return asdict(row) | derived

    report = asdict(result) | {
        "qcore": qcore.__version__,
        "block_size": BLOCK_SIZE,
        "conv_block_size": CONV_BLOCK_SIZE,
        "measurements": [entry(row) for row in result.measurements],
    }
    return json.dumps(report, indent=2) + "\n"
