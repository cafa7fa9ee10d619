"""Report of the measurements, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import qcore

from .operators import CONV_BLOCK_SIZE
from .run import BLOCK_SIZE, CALIBRATION_IMAGES, Measurement, Result

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
    for heading in ("right", "accuracy", "as float", "error", "bytes", "bits", "us/img", "speed"):
        rows.add_column(heading, justify="right", no_wrap=True)
    reference = result.measurements[0]
    for row in result.measurements:
        rows.add_row(
            row.name,
            f"{row.correct}/{result.images}",
            f"{row.correct / result.images:.2%}",
            f"{row.same_as_float / result.images:.2%}",
            f"{row.logit_error:.1%}",
            f"{row.weight_bytes:,}",
            f"{row.bits_per_weight:.2f}",
            f"{row.microseconds_per_image:.1f}",
            f"{reference.microseconds_per_image / row.microseconds_per_image:.2f}x",
        )
    return rows


def conditions(result: Result) -> str:
    """Return the lines that say how to read the table."""
    per_block, static = (
        ", ".join(dict.fromkeys(row.kernel for row in result.measurements if row.quantized == kind))
        for kind in ("all", "all, static")
    )
    return (
        "as float: same class as the float model. error: of the logits, rms, relative to the float model's. "
        f"bits: per weight, with scales. us/img: median of {result.repeats} passes in batches of {result.batch}; NumPy "
        "cuts the image patches of float convolutions and adds up the gates of float GRUs. speed: against NumPy "
        "float.\n"
        "tables: float products, activations by qcore.lut's tables (kernel "
        f"{result.table_kernel}), as sigmoid and tanh of the rows in bits.\n"
        f"GRU: float but for the GRU, which is qcore.gru's in integers (kernel {result.gru_kernel}), formats chosen "
        f"on the first {CALIBRATION_IMAGES} images.\n"
        f"static: qcore.static's int8 convolutions and linear layers (kernel {static}) and the int8 GRU; a scale for "
        "each output channel, formats of activations chosen on the same images.\n"
        f"Rows in bits: qcore.conv2d (kernel {result.conv_kernel}), a scale for up to {CONV_BLOCK_SIZE} channels, and "
        f"qcore.linear (kernel {per_block}), a scale for {BLOCK_SIZE} weights; activations in int8 "
        f'(compute="int8"), {result.threads} thread(s).'
    )


def quantized(result: Result) -> list[Measurement]:
    """Return the rows in which all weights are quantized."""
    return [row for row in result.measurements if row.quantized.startswith("all")]


def conclusion(result: Result) -> str:
    """Return a sentence on what tables and quantization cost and gained."""
    reference = result.measurements[0]
    tables = result.measurements[1]

    def against_float(row: Measurement) -> str:
        smaller = reference.weight_bytes / row.weight_bytes
        faster = reference.microseconds_per_image / row.microseconds_per_image
        return f"{row.name}: {smaller:.1f}x smaller, {faster:.2f}x speed, {row.correct - reference.correct:+d} right"

    integers = ", ".join(
        f"{row.name.removeprefix('GRU ')} by {row.logit_error:.1e}, {row.correct - reference.correct:+d} right"
        for row in result.measurements
        if row.quantized == "GRU"
    )
    return (
        f"Tables alone change the logits by {tables.logit_error:.1e}, {tables.correct - reference.correct:+d} right; "
        f"the GRU in integers, {integers}. "
        "Against float, " + "; ".join(against_float(row) for row in quantized(result)) + "."
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
