"""How a quantized layer's tensors compare with the float ones: clipping, bits in use, signal to quantization noise."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qcore import _core
from qcore._recurrent.direction import DirectionBase, Doubles, finite, sigmoid
from qcore._recurrent.formats import Format
from qcore._recurrent.integers import CellBase, replay
from qcore._recurrent.layers import RecurrentLayers
from qcore._recurrent.plot import plot_report
from qcore._recurrent.trace import Trace, is_codes, readable, trace
from qcore._recurrent.weights import WeightsBase

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = {"w": "weights W", "r": "weights R", "projection": "weights W_hr"}


@dataclasses.dataclass(frozen=True)
class ReportRow:
    """Describes one tensor of one layer and direction.

    Args:
        layer: 0 is the first.
        direction: 0 is forward, 1 backward.
        tensor: a name of ``TENSORS``, "weights W", "weights R", "weights W_hr", "peepholes", or a bias: "bx" or
            "br", an LSTM's "b".
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
    """Holds the result of ``report`` of a quantized GRU or LSTM.

    Args:
        rows: in the order of computation.
        states: h [T, B, H] of the last layer's first direction in float64, and as quantized.
        op: "gru" or "lstm".
    """

    rows: tuple[ReportRow, ...]
    states: tuple[Doubles, Doubles] = dataclasses.field(repr=False, compare=False)
    op: str = dataclasses.field(repr=False, compare=False)

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
            f"{self.op} report: there is no {tensor!r} of layer {layer}, direction {direction}, expected one of {names}"
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
        return plot_report(self.rows, self.states, path, f"{self.op} plot")


def _decibels(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _rate(value: float) -> str:
    return "0" if value == 0 else f"{value:.2%}" if value >= 1e-4 else "<0.01%"


def sqnr(exact: Doubles, got: Doubles) -> float | None:
    signal, noise = float(np.square(exact).sum()), float(np.square(got - exact).sum())
    return None if signal == 0 or noise == 0 else 10 * math.log10(signal / noise)


def make_report(model: RecurrentLayers, x: Any, states: Sequence[Any], weights: WeightsBase | None = None) -> Report:
    """Measure as ``report`` of a quantized layer; `states` are its initial states, or None for zeros."""
    floats = _weights_of(model, weights)
    layers = trace(model, x, states)
    if is_codes(x):
        inputs = model.format("x").decode(layers[0][0].x)
    else:
        inputs = finite(readable(x), f"{model.op}: x")
        inputs = inputs.transpose(1, 0, 2) if model.batch_first else inputs
    form, codes = model.format("x"), layers[0][0].x
    rows = [_row((0, 0, "x"), form, codes, _outside(form, inputs), inputs)]
    for number, layer in enumerate(layers):
        outputs = []
        for side, each in enumerate(layer):
            direction, cell = floats.layers[number][side], each.cell
            rows += _parameter_rows((number, side), direction, cell)
            initial = [
                _float_state(name, given, codes, cell, number * model.directions + side)
                for name, given, codes in zip(cell.states, states, each.states, strict=True)
            ]
            exact = _float_tensors(floats, direction, inputs, initial, cell, reverse=side == 1)
            clipped = _clipped(cell, each, reverse=side == 1)
            for name in cell.tensors:
                values = each.tensors[name]
                clips = clipped[name] / values.size
                rows.append(_row((number, side, name), cell.format(name), values, clips, exact[name]))
            outputs.append(exact["h"])
        inputs = np.concatenate(outputs, axis=2)
    last = len(layers) - 1
    quantized = model.format("h", last).decode(layers[last][0].tensors["h"])
    return Report(tuple(rows), (inputs[:, :, : model.output_size], quantized), model.op)


def _float_state(name: str, given: Any, codes: NDArray[Any], cell: CellBase, row: int) -> Doubles | None:
    """Return the initial state of one direction in float64, None for zeros."""
    if given is None:
        return None
    return cell.format(name).decode(codes) if is_codes(given) else finite(readable(given), f"{cell.op}: {name}0")[row]


def _weights_of(model: RecurrentLayers, weights: WeightsBase | None) -> WeightsBase:
    found = model.float_weights if weights is None else weights
    kind = model.weights_type.__name__
    if found is None:
        raise _core.QcoreValueError(
            f"{model.op} report: weights is None, expected the {kind} that were quantized: files do not have them"
        )
    if not isinstance(found, model.weights_type):
        raise _core.QcoreTypeError(f"{model.op} report: weights is a {type(found).__name__}, expected {kind}")
    sizes = (found.input_size, found.hidden_size, found.output_size, len(found.layers), found.directions)
    expected = (model.input_size, model.hidden_size, model.output_size, model.num_layers, model.directions)
    if sizes != expected:
        raise _core.QcoreValueError(
            f"{model.op} report: weights have C, H, outputs, layers and directions {sizes}, expected {expected}"
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


def _parameter_rows(place: tuple[int, int], direction: DirectionBase, cell: CellBase) -> list[ReportRow]:
    rows, parts = [], cell.parts
    widths: dict[str, int] = dict.fromkeys(cell.matrices, parts["weight_bits"])
    widths |= dict.fromkeys(cell.biases, parts["bias_bits"])
    widths |= dict.fromkeys(cell.others, 16)
    for name, bits in widths.items():
        exact, codes = getattr(direction, name), parts[name]
        exponents = parts[f"{name}_exponents"].reshape(-1, *[1] * (codes.ndim - 1))
        form = Format(bits, True, 0)
        scaled = np.ldexp(exact, exponents)
        got = np.ldexp(codes.astype(np.float64), -exponents)
        shown = _SHOWN.get(name, name)  # r is a gate, too
        rows.append(ReportRow(*place, shown, bits, _used(codes), _outside(form, scaled), sqnr(exact, got)))
    return rows


def _float_tensors(
    weights: WeightsBase,
    direction: DirectionBase,
    x: Doubles,
    states: list[Doubles | None],
    cell: CellBase,
    *,
    reverse: bool,
) -> dict[str, Doubles]:
    """Return [T, B, ...] by name, as the cell defines them."""
    seen: dict[str, list[Doubles]] = {}

    def watch(name: str, step: int, values: Doubles) -> None:
        seen.setdefault(name, []).append(values)

    weights._run_float(direction, x, states, reverse=reverse, watch=watch)
    for name, state in zip(cell.states, states, strict=True):
        if state is not None:
            del seen[name][0]  # the initial one
    found = {name: cell.float_steps(name, seen) for name in cell.tensors}
    return {name: np.stack(steps[::-1] if reverse else steps) for name, steps in found.items()}


def _clipped(cell: CellBase, each: Trace, *, reverse: bool) -> dict[str, int]:
    """Return how many values of each tensor were clamped."""
    counts = dict.fromkeys(cell.tensors, 0)
    for _, name, unclamped, _ in replay(cell, each.x, each.states, each.tensors, reverse=reverse):
        form = cell.format(name)
        counts[name] += int(((unclamped < form.lowest) | (unclamped > form.highest)).sum())
    for name, (argument, function) in cell.functions.items():  # their tables are clamped already
        given = cell.format(argument).decode(each.tensors[argument])
        values = np.tanh(given) if function == "tanh" else sigmoid(given)
        counts[name] = round(_outside(cell.format(name), values) * values.size)
    return counts
