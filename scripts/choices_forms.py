"""The formats and methods that scripts/choices.py measures: each turns a layer's weight into a QuantizedTensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import qcore
from qcore import WeightEncoding, _options

Array = np.ndarray[Any, Any]
BLOCKS = (16, 32, 64, 128, 0)  # 0 is one block per row
METHODS = ("rtn", "mse", "awq", "gptq")
NAMES = (
    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q5_0", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "nf4",
)  # fmt: skip
GGUF = ("Q4_0", "Q8_0")  # plain weights, as the package gguf rounds them


@dataclass(frozen=True)
class Layer:
    """Holds a weight [N, K] of a data set, inputs [M, K] that methods get, and others that the error is measured on."""

    weight: Array
    samples: Array
    tested: Array


@dataclass(frozen=True)
class Form:
    """Names one way to store weights.

    Attributes:
        name: of the format, for tables.
        method: "rtn", "mse", "awq" or "gptq".
        made: turns a layer and its Hessian into the stored weight.
        scales: dtype of the scales, where there is a choice.
    """

    name: str
    method: str
    made: Callable[[Layer, qcore.Hessian], qcore.QuantizedTensor]
    scales: str = ""


def plain(bits: int, scheme: str, size: int, method: str, scales: str) -> Form:
    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        options: dict[str, Any] = {"bits": bits, "scheme": scheme, "method": method, "scale_dtype": scales}
        if method == "awq":
            options["samples"] = layer.samples
        if method == "gptq":
            options["hessian"] = hessian
        return qcore.quantize(layer.weight, block_size=size or layer.weight.shape[1], **options)

    return Form(f"{bits} bits, {scheme}, g = {size or 'K'}", method, made, scales)


def encoded(name: str, encoding: str | WeightEncoding, size: int | None, method: str) -> Form:
    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        samples = layer.samples if method == "awq" else None
        return qcore.quantize_encoded(layer.weight, encoding, size, method=method, samples=samples)  # type: ignore[arg-type]

    return Form(name, method, made)


def of_gguf(name: str) -> Form:
    """Let the package gguf make blocks, and read them as a GGUF file's."""

    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        from gguf import GGMLQuantizationType, quants

        from qcore.formats import gguf_blocks

        raw = quants.quantize(layer.weight, GGMLQuantizationType[name])
        return gguf_blocks.tensor_of(name, raw, name)

    return Form(name, "rtn", made)


def forms() -> list[Form]:
    """Return all ways to store weights that are measured."""
    found = [
        plain(bits, scheme, size, method, scales)
        for bits in (2, 3, 4, 5, 6, 8)
        for scheme in ("symmetric", "asymmetric")
        for size in (BLOCKS if bits in (4, 8) else BLOCKS[1:4])
        for method in METHODS
        for scales in (("float16", "float32") if bits in (4, 8) and method in ("rtn", "mse") else ("float16",))
    ]
    encodings: list[tuple[str, str | WeightEncoding, int | None]] = [(name.upper(), name, None) for name in NAMES]
    for size in (32, 128):
        for bits in (3, 4):
            zero_points = WeightEncoding(bits, offsets="uint4 zero points")
            encodings.append((f"{bits} bits, zero points, g = {size}", zero_points, size))
    found += [encoded(*each, method) for each in encodings for method in METHODS[:3]]
    return [*found, *(of_gguf(name) for name in GGUF)]


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace(" --- ", "---")


def figure_of(error: float) -> str:
    return f"{error:.3f}" if error >= 0.1 else f"{error:.4f}" if error >= 0.01 else f"{error:.5f}"


def defaults_table(stories: list[Any], mini: list[Any]) -> str:
    """Make the table of the defaults beside what they were before, from the rows of two data sets."""
    found = [{(row.name, row.scales, row.method): row for row in each} for each in (stories, mini)]
    default = (_options.SCHEME, _options.BLOCK_SIZE, _options.SCALE_DTYPE, _options.METHOD)
    rows = []
    for bits in (_options.BITS, 8):
        for scheme, size, scales, method in (
            ("symmetric", 64, "float32", "rtn"),
            ("symmetric", 64, "float16", "mse"),
            default,
        ):
            name = f"{bits} bits, {scheme}, g = {size}"
            each = [rows_of[name, scales, method] for rows_of in found]
            nominal = bits + 8 * {"float16": 2, "float32": 4}[scales] / size
            shown = f"{name}, {scales} scales, `{method}`"
            is_default = (scheme, size, scales, method) == default
            cells = [f"**{shown}**" if is_default else shown, f"{nominal:g}"]
            rows.append([*cells, *(figure_of(value) for row in each for value in (row.weight, row.output))])
    headings = [f"{what}, {name}" for name in ("stories15M", "MiniLM") for what in ("weight", "output")]
    return table(["form", "bits per weight", *headings], rows)
