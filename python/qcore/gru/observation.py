"""Ranges of a float GRU's tensors on samples, and the parameters that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from qcore import _core
from qcore._options import RangeMethod
from qcore.gru import float_cell
from qcore.gru.core import Layer, make
from qcore.gru.direction import Direction, Doubles, finite
from qcore.gru.formats import TENSORS, UNSIGNED, ZERO_FREE, Config, Format, choose_format
from qcore.gru.ranges import Range
from qcore.gru.weights import GruWeights

_SEEN = (*TENSORS, "wx_with_bias", "rh_with_bias")

_ADDED_TO = {"rrh": "g_pre", "old_part": "h", "new_part": "h"}
"""Tensors that are shifted to the scale of another and go nowhere else: a finer scale than that would only round twice,
and every shift by one bit has a tie for each odd code."""


class Observer:
    """Runs the float GRU on samples and keeps the range of every tensor.

    Args:
        weights: :class:`GruWeights`.
        method: how ranges follow from values. "mse": the exponent with the smallest squared error, for up to 8 bits;
            "minmax": everything seen; "ema": a moving average over steps of x and h, "minmax" of the rest;
            "percentile": without 0.01% of the values at each end.

    Raises:
        QcoreTypeError: other weights.
    """

    def __init__(self, weights: GruWeights, method: RangeMethod = "mse") -> None:
        if not isinstance(weights, GruWeights):
            raise _core.QcoreTypeError(
                f"gru calibration: weights is a {type(weights).__name__}, expected GruWeights, as of from_torch"
            )
        self.weights = weights
        self.method = method
        # The average over time steps is for what comes from outside the step.
        methods = {name: method if method != "ema" or name in ("x", "h") else "minmax" for name in _SEEN}
        self._ranges = [
            [{name: Range(each) for name, each in methods.items()} for _ in layer] for layer in weights.layers
        ]
        self._last_batch: tuple[Doubles, Doubles | None] | None = None

    def observe(self, x: Any, h0: Any = None, *, progress: Callable[[float], None] | None = None) -> Self:
        """Look at one batch.

        Args:
            x: [T, B, C] ([B, T, C] if the weights are batch_first), numbers.
            h0: [layers * directions, B, H], or None for zeros. It is part of h's range.
            progress: called with the part done, 0 to 1, after every step.

        Returns:
            The object itself.

        Raises:
            QcoreValueError, QcoreTypeError: another shape, a NaN or an infinity, or no numbers.
        """
        inputs, states = self._checked(x, h0)
        self._last_batch = inputs, states
        done, steps = 0, len(inputs) * len(self.weights.layers) * self.weights.directions
        for number, (layer, ranges) in enumerate(zip(self.weights.layers, self._ranges, strict=True)):
            outputs = []
            for side, (direction, seen) in enumerate(zip(layer, ranges, strict=True)):

                def watch(name: str, step: int, values: Doubles, seen: dict[str, Range] = seen) -> None:
                    nonlocal done
                    seen[name].observe(values)
                    if name == "x":  # once per step
                        done += 1
                        if progress is not None:
                            progress(done / steps)

                state = None if states is None else states[number * self.weights.directions + side]
                outputs.append(float_cell.run(direction, inputs, state, reverse=side == 1, watch=watch)[0])
            inputs = np.concatenate(outputs, axis=2)
        return self

    def _checked(self, x: Any, h0: Any) -> tuple[Doubles, Doubles | None]:
        """Return x as [T, B, C] and h0, float64."""
        inputs = finite(x, "gru calibration: x")
        if inputs.ndim != 3 or inputs.shape[2] != self.weights.input_size or 0 in inputs.shape:
            raise _core.QcoreValueError(
                f"gru calibration: x has shape {list(inputs.shape)}, expected [T, B, C] with "
                f"C = {self.weights.input_size}"
            )
        if self.weights.batch_first:
            inputs = inputs.transpose(1, 0, 2)
        states = None
        if h0 is not None:
            states = finite(h0, "gru calibration: h0")
            expected = (len(self.weights.layers) * self.weights.directions, inputs.shape[1], self.weights.hidden_size)
            if states.shape != expected:
                raise _core.QcoreValueError(
                    f"gru calibration: h0 has shape {list(states.shape)}, expected {list(expected)}"
                )
        return inputs, states

    def _quantize_layers(self, config: Config) -> list[Layer]:
        """Return the parameters of all layers and directions.

        Args:
            config: widths, pipeline and rules.

        Raises:
            QcoreValueError: nothing was observed, or the formats would need sums of more than 64 bits.
        """
        if self._last_batch is None:
            raise _core.QcoreValueError("gru calibration: finish() before any observe(x), expected at least one batch")
        layers: list[Layer] = []
        inputs: Format | None = None
        for layer, ranges in zip(self.weights.layers, self._ranges, strict=True):
            # Directions share the format of h, so that their outputs are one array for the next layer.
            state = Range.union([seen["h"] for seen in ranges])
            shared = state.format(config.width("h"), config.rule)
            inputs = inputs or Range.union([seen["x"] for seen in ranges]).format(config.width("x"), config.rule)
            layers.append(
                [
                    quantize_direction(direction, seen, config, inputs, shared)
                    for direction, seen in zip(layer, ranges, strict=True)
                ]
            )
            inputs = shared
        return layers


def _rows(weights: Doubles, bits: int, granularity: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return codes and one exponent per row of 3H."""
    rows = weights.reshape(len(weights), -1)
    size = len(rows) // 3
    group = {"channel": 1, "gate": size, "tensor": 3 * size}[granularity]
    exponents = np.empty(len(rows), np.int32)
    for first in range(0, len(rows), group):
        part = rows[first : first + group]
        form = choose_format(float(part.min()), float(part.max()), bits, zero_point=False)
        exponents[first : first + group] = form.exponent
    highest = (1 << (bits - 1)) - 1
    codes = np.clip(np.rint(np.ldexp(rows, exponents[:, None])), -highest - 1, highest)
    return codes.reshape(weights.shape), exponents


def quantize_direction(
    weights: Direction, ranges: dict[str, Range], config: Config, x: Format, h: Format
) -> tuple[_core.QuantizedGru, dict[str, Any]]:
    """Return the core's object and what it was made of, for files and reports."""
    formats: dict[str, Format] = {"x": x, "h": h}
    fused = config.pipeline == "fused"
    for name in TENSORS[2:]:
        seen = ranges[f"{name[0]}{name[1]}_with_bias"] if fused and name in ("wx", "rh") else ranges[name]
        formats[name] = seen.format(
            config.width(name), config.rule, signed=name not in UNSIGNED, zero_point=name in ZERO_FREE
        )
    for name, target in _ADDED_TO.items():
        finest = formats[target].exponent
        if formats[name].exponent > finest:
            formats[name] = ranges[name].format(config.width(name), config.rule, exponent=finest)
    parts: dict[str, Any] = {
        "formats": np.array([formats[name].row() for name in TENSORS], np.int32),
        "sizes": (weights.input_size, weights.hidden_size),
        "weight_bits": config.width("weights"),
        "bias_bits": config.width("biases"),
    }
    for name, dtype, bits in (
        ("w", np.int16, config.width("weights")),
        ("r", np.int16, config.width("weights")),
        ("bx", np.int32, config.width("biases")),
        ("br", np.int32, config.width("biases")),
    ):
        codes, exponents = _rows(getattr(weights, name), bits, config.granularity)
        parts[name], parts[f"{name}_exponents"] = codes.astype(dtype), exponents
    return make(parts, config), parts
