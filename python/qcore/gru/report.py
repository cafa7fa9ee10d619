"""How a quantized GRU's tensors compare with the float ones: clipping, bits in use, signal to quantization noise."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore._recurrent.direction import Doubles, finite, sigmoid
from qcore._recurrent.formats import Format
from qcore._recurrent.trace import is_codes, readable
from qcore.gru import float_cell
from qcore.gru.core import GruCore
from qcore.gru.direction import Direction
from qcore.gru.integers import replay
from qcore.gru.plot import plot_report
from qcore.gru.trace import Trace, cell_of, trace
from qcore.gru.weights import GruWeights

if TYPE_CHECKING:
    from rich.table import Table

_PARAMETERS = ("w", "r", "bx", "br")


@dataclasses.dataclass(frozen=True)
class ReportRow:
    """One tensor of one layer and direction.

    Args:
        layer: 0 is the first.
        direction: 0 is forward, 1 backward.
        tensor: a name of :data:`qcore.gru.TENSORS`, "weights W", "weights R", "bx" or "br".
        bits: of its format.
        used_bits: log2 of the number of codes from the lowest to the highest that occurred.
        clip_rate: the part of the values that lay outside the format and were clamped.
        sqnr: signal to quantization noise ratio against float64 in dB; None if the noise or the signal is zero. Of what
            a step computes it contains the noise of everything before it, earlier steps included.
        by_step: the same for each time step; empty for weights and biases.
    """

    layer: int
    direction: int
    tensor: str
    bits: int
    used_bits: float
    clip_rate: float
    sqnr: float | None
    by_step: tuple[float | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of :meth:`QuantGRU.report`.

    Args:
        rows: in the order of computation.
        states: h [T, B, H] of the last layer's first direction in float64, and as quantized.
    """

    rows: tuple[ReportRow, ...]
    states: tuple[Doubles, Doubles] = dataclasses.field(repr=False, compare=False)

    def row(self, tensor: str, layer: int = 0, direction: int = 0) -> ReportRow:
        """Return the row of one tensor.

        Args:
            tensor: its name, as in :class:`ReportRow`.
            layer: 0 is the first.
            direction: 0 is forward, 1 backward.

        Raises:
            QcoreValueError: there is none.
        """
        for row in self.rows:
            if (row.tensor, row.layer, row.direction) == (tensor, layer, direction):
                return row
        names = ", ".join(dict.fromkeys(row.tensor for row in self.rows))
        raise _core.QcoreValueError(
            f"gru report: there is no {tensor!r} of layer {layer}, direction {direction}, expected one of {names}"
        )

    def to_json(self) -> str:
        """Return the rows as JSON."""
        return json.dumps({"rows": [dataclasses.asdict(row) for row in self.rows]}, indent=2) + "\n"

    def table(self) -> Table:
        """Make a table for a rich console; the last columns are the SQNR of the first, middle and last step."""
        from rich import box
        from rich.table import Table

        directions = {row.direction for row in self.rows}
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("layer")
        table.add_column("tensor", no_wrap=True)
        for heading in ("bits", "used", "clipped", "SQNR dB", "first", "middle", "last"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            steps = row.by_step
            shown = [_decibels(steps[t]) for t in (0, len(steps) // 2, -1)] if steps else ["", "", ""]
            layer = f"{row.layer}" + (f" {'<' if row.direction else '>'}" if len(directions) == 2 else "")
            cells = [layer, row.tensor, str(row.bits), f"{row.used_bits:.1f}", _rate(row.clip_rate)]
            table.add_row(*cells, _decibels(row.sqnr), *shown)
        return table

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw float against quantized state, SQNR by tensor and by step; needs matplotlib.

        Args:
            path: .png, .svg or .pdf to write, whole or not at all; None writes nothing.

        Returns:
            matplotlib's Figure, for Agg.

        Raises:
            QcoreValueError, QcoreTypeError: another ending, or matplotlib is not installed.
            OSError: the file can't be written.
        """
        return plot_report(self, path)


def _decibels(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _rate(value: float) -> str:
    return "0" if value == 0 else f"{value:.2%}" if value >= 1e-4 else "<0.01%"


def sqnr(exact: Doubles, got: Doubles) -> float | None:
    signal, noise = float(np.square(exact).sum()), float(np.square(got - exact).sum())
    return None if signal == 0 or noise == 0 else 10 * math.log10(signal / noise)


def make_report(gru: GruCore, x: Any, h0: Any = None, weights: GruWeights | None = None) -> Report:
    """Measure as :meth:`QuantGRU.report`."""
    floats = _weights_of(gru, weights)
    layers = trace(gru, x, h0)
    if is_codes(x):
        first = gru.format("x").decode(layers[0][0].x)
    else:
        first = finite(readable(x), "gru: x")
        first = first.transpose(1, 0, 2) if gru.batch_first else first
    rows: list[ReportRow] = []
    inputs = first
    for number, layer in enumerate(layers):
        outputs = []
        if number == 0:
            form = gru.format("x")
            rows.append(_row((0, 0, "x"), form, layer[0].x, _outside(form, inputs), inputs))
        for side, each in enumerate(layer):
            direction, cell = floats.layers[number][side], cell_of(gru, number, side)
            rows += _parameter_rows((number, side), direction, cell.parts)
            start = None
            if h0 is not None:
                row = number * gru.directions + side
                start = cell.format("h").decode(each.h0) if is_codes(h0) else finite(readable(h0), "gru: h0")[row]
            exact = _float_tensors(direction, inputs, start, cell.fused, reverse=side == 1)
            clipped = _clipped(cell, each, reverse=side == 1)
            for name in cell.tensors:
                values = each.tensors[name]
                clips = clipped[name] / values.size
                rows.append(_row((number, side, name), cell.format(name), values, clips, exact[name]))
            outputs.append(exact["h"])
        inputs = np.concatenate(outputs, axis=2)
    last = len(layers) - 1
    quantized = gru.format("h", last).decode(layers[last][0].tensors["h"])
    return Report(tuple(rows), (inputs[:, :, : gru.hidden_size], quantized))


def _weights_of(gru: GruCore, weights: GruWeights | None) -> GruWeights:
    found = gru.float_weights if weights is None else weights
    if found is None:
        raise _core.QcoreValueError(
            "gru report: weights is None, expected the GruWeights that were quantized: files do not have them"
        )
    if not isinstance(found, GruWeights):
        raise _core.QcoreTypeError(f"gru report: weights is a {type(found).__name__}, expected GruWeights")
    sizes = (found.input_size, found.hidden_size, len(found.layers), found.directions)
    expected = (gru.input_size, gru.hidden_size, gru.num_layers, gru.directions)
    if sizes != expected:
        raise _core.QcoreValueError(
            f"gru report: weights have C, H, layers and directions {sizes}, expected {expected}"
        )
    return found


def _row(place: tuple[int, int, str], form: Format, codes: NDArray[Any], clip_rate: float, exact: Doubles) -> ReportRow:
    got = form.decode(codes)
    by_step = tuple(sqnr(a, b) for a, b in zip(exact, got, strict=True))
    return ReportRow(*place, form.bits, _used(codes), clip_rate, sqnr(exact, got), by_step)


def _used(codes: NDArray[Any]) -> float:
    return math.log2(int(codes.max()) - int(codes.min()) + 1)


def _outside(form: Format, values: Doubles) -> float:
    """Return the part of numbers whose code had to be clamped."""
    codes = np.rint(np.ldexp(values, form.exponent)) + form.zero_point
    return float(((codes < form.lowest) | (codes > form.highest)).mean())


def _parameter_rows(place: tuple[int, int], direction: Direction, parts: Any) -> list[ReportRow]:
    rows = []
    for name in _PARAMETERS:
        exact, codes = getattr(direction, name), parts[name]
        bits = parts["weight_bits"] if name in ("w", "r") else parts["bias_bits"]
        exponents = parts[f"{name}_exponents"].reshape(-1, *[1] * (codes.ndim - 1))
        form = Format(bits, True, 0)
        scaled = np.ldexp(exact, exponents)
        got = np.ldexp(codes.astype(np.float64), -exponents)
        shown = {"w": "weights W", "r": "weights R"}.get(name, name)  # r is a gate, too
        rows.append(ReportRow(*place, shown, bits, _used(codes), _outside(form, scaled), sqnr(exact, got)))
    return rows


def _float_tensors(
    direction: Direction, x: Doubles, h0: Doubles | None, fused: bool, *, reverse: bool
) -> dict[str, Doubles]:
    """Return [T, B, ...] by name, as a cell of the pipeline defines them."""
    seen: dict[str, list[Doubles]] = {}

    def watch(name: str, step: int, values: Doubles) -> None:
        seen.setdefault(name, []).append(values)

    float_cell.run(direction, x, h0, reverse=reverse, watch=watch)
    if h0 is not None:
        del seen["h"][0]  # the initial state
    if fused:
        seen["wx"], seen["rh"] = seen["wx_with_bias"], seen["rh_with_bias"]
    return {name: np.stack(steps[::-1] if reverse else steps) for name, steps in seen.items()}


def _clipped(cell: Any, each: Trace, *, reverse: bool) -> dict[str, int]:
    """Return how many values of each tensor were clamped."""
    counts = dict.fromkeys(cell.tensors, 0)
    for _, name, unclamped, _ in replay(cell, each.x, each.h0, each.tensors, reverse=reverse):
        form = cell.format(name)
        counts[name] += int(((unclamped < form.lowest) | (unclamped > form.highest)).sum())
    for name in ("z", "r", "g"):  # their tables are clamped already
        argument = cell.format(f"{name}_pre").decode(each.tensors[f"{name}_pre"])
        values = np.tanh(argument) if name == "g" else sigmoid(argument)
        counts[name] = round(_outside(cell.format(name), values) * values.size)
    return counts
