"""Ranges of a float network's tensors on samples, and the parameters that follow from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from qcore import _core
from qcore._options import RangeMethod
from qcore._recurrent.direction import Doubles, finite
from qcore._recurrent.formats import Format, choose_format
from qcore._recurrent.ranges import Range

_NARROW = 4  # bits of weights up to which clipping may pay


class ObserverBase(ABC):
    """Runs a float network on samples and keeps the range of every tensor.

    Args:
        weights: its float weights.
        method: how ranges follow from values. "mse": the exponent with the smallest squared error, for up to 8 bits;
            "minmax": everything seen; "ema": a moving average over steps of x and h, "minmax" of the rest;
            "percentile": without 0.01% of the values at each end.

    Raises:
        QcoreTypeError: other weights.
    """

    op: ClassVar[str]
    seen: tuple[str, ...]
    """Names of the tensors whose ranges are kept."""
    tensors: tuple[str, ...]
    """Names of the tensors that have a format."""
    weights_type: ClassVar[Any]

    def __init__(self, weights: Any, method: RangeMethod = "mse") -> None:
        if not isinstance(weights, self.weights_type):
            raise _core.QcoreTypeError(
                f"{self.op} calibration: weights is a {type(weights).__name__}, expected {self.weights_type.__name__}, "
                "as of from_torch"
            )
        self.weights: Any = weights
        self.method = method
        # The average over time steps is for what comes from outside the step.
        methods = {name: method if method != "ema" or name in ("x", "h") else "minmax" for name in self.seen}
        self._ranges = [
            [{name: Range(each, self.op) for name, each in methods.items()} for _ in layer]
            for layer in self.weights.layers
        ]
        self._last_batch: tuple[Doubles | None, ...] | None = None

    @abstractmethod
    def _quantize_direction(
        self, direction: Any, ranges: dict[str, Range], config: Any, shared: dict[str, Format]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the core's object and what it was made of; ``shared`` has the formats of x and of the states."""

    def _observe(self, x: Any, states: Sequence[Any], progress: Callable[[float], None] | None) -> None:
        batch = self._checked(x, *states)
        self._last_batch = batch
        inputs, *given = batch
        assert inputs is not None
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

                row = number * self.weights.directions + side
                initial = [None if state is None else state[row] for state in given]
                reverse = (side == 1) != self.weights.reverse
                outputs.append(self.weights._run_float(direction, inputs, initial, reverse=reverse, watch=watch))
            inputs = np.concatenate(outputs, axis=2)

    def _checked(self, x: Any, *states: Any) -> tuple[Doubles | None, ...]:
        """Return x as [T, B, C] and the states, float64."""
        inputs = finite(x, f"{self.op} calibration: x")
        if inputs.ndim != 3 or inputs.shape[2] != self.weights.input_size or 0 in inputs.shape:
            raise _core.QcoreValueError(
                f"{self.op} calibration: x has shape {list(inputs.shape)}, expected [T, B, C] with "
                f"C = {self.weights.input_size}"
            )
        if self.weights.batch_first:
            inputs = inputs.transpose(1, 0, 2)
        checked: list[Doubles | None] = [inputs]
        rows = len(self.weights.layers) * self.weights.directions
        for name, given in zip(self.weights._states, states, strict=True):
            state = None if given is None else finite(given, f"{self.op} calibration: {name}0")
            expected = (rows, inputs.shape[1], self.weights._state_size(name))
            if state is not None and state.shape != expected:
                raise _core.QcoreValueError(
                    f"{self.op} calibration: {name}0 has shape {list(state.shape)}, expected {list(expected)}"
                )
            checked.append(state)
        return tuple(checked)

    def _quantize_layers(self, config: Any) -> list[list[tuple[Any, dict[str, Any]]]]:
        """Return the parameters of all layers and directions.

        Args:
            config: widths, pipeline and rules.

        Raises:
            QcoreValueError: nothing was observed, or the formats would need sums of more than 64 bits.
        """
        if self._last_batch is None:
            raise _core.QcoreValueError(
                f"{self.op} calibration: finish() before any observe(x), expected at least one batch"
            )
        layers: list[list[tuple[Any, dict[str, Any]]]] = []
        inputs: Format | None = None
        for layer, ranges in zip(self.weights.layers, self._ranges, strict=True):

            def union(name: str, ranges: list[dict[str, Range]] = ranges) -> Format:
                # Directions share the formats of states, so that their outputs are one array for the next layer.
                seen = Range.union([each[name] for each in ranges])
                return seen.format(config.width(name), config.rule, zero_point=name != "c")

            shared = {name: union(name) for name in self.weights._states}
            shared["x"] = inputs or union("x")
            layers.append(
                [
                    self._quantize_direction(direction, seen, config, shared)
                    for direction, seen in zip(layer, ranges, strict=True)
                ]
            )
            inputs = shared["h"]
        return layers

    @property
    def _order(self) -> dict[str, bool]:
        """Options of the quantized layers that come from the weights."""
        return {"batch_first": self.weights.batch_first, "reverse": self.weights.reverse}


def quantize_rows(
    weights: Doubles, bits: int, granularity: str, gates: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return codes and one exponent per row.

    An exponent covers the row; with up to 4 bits it may be the next larger one, which clips the largest weights, if the
    squared error is smaller so.
    """
    rows = weights.reshape(len(weights), -1)
    size = len(rows) // gates
    group = {"channel": 1, "gate": size, "tensor": gates * size}[granularity]
    exponents = np.empty(len(rows), np.int32)
    for first in range(0, len(rows), group):
        part = rows[first : first + group]
        form = choose_format(float(part.min()), float(part.max()), bits, zero_point=False)
        exponents[first : first + group] = form.exponent
    if bits <= _NARROW:

        def errors(exponents: Any) -> Doubles:
            rounded = np.ldexp(_row_codes(rows, exponents[:, None], bits), -exponents[:, None])
            summed: Doubles = np.square(rounded - rows).reshape(len(rows) // group, -1).sum(1)
            return summed

        exponents += np.repeat(errors(exponents + 1) < errors(exponents), group).astype(np.int32)
    return _row_codes(rows, exponents[:, None], bits).reshape(weights.shape), exponents


def _row_codes(rows: Doubles, exponents: Any, bits: int) -> Doubles:
    highest = (1 << (bits - 1)) - 1
    codes: Doubles = np.clip(np.rint(np.ldexp(rows, exponents)), -highest - 1, highest)
    return codes
