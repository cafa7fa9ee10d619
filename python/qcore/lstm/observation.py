"""Ranges of a float LSTM's tensors on samples, and the parameters that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from qcore._options import RangeMethod
from qcore._recurrent.formats import Format
from qcore._recurrent.observation import ObserverBase, quantize_rows
from qcore._recurrent.ranges import Range
from qcore.lstm.core import make
from qcore.lstm.direction import Direction
from qcore.lstm.formats import UNSIGNED, ZERO_FREE, Config
from qcore.lstm.weights import LstmWeights


class Observer(ObserverBase):
    """Runs the float LSTM on samples and keeps the range of every tensor; arguments as for :class:`Calibrator`."""

    op = "lstm"
    weights_type = LstmWeights

    def __init__(self, weights: LstmWeights, method: RangeMethod = "mse") -> None:
        if isinstance(weights, LstmWeights):
            self.seen = self.tensors = weights.tensors
        super().__init__(weights, method)

    def observe(
        self, x: Any, h0: Any = None, c0: Any = None, *, progress: Callable[[float], None] | None = None
    ) -> Self:
        """Look at one batch.

        Args:
            x: [T, B, C] ([B, T, C] if the weights are batch_first), numbers.
            h0, c0: [layers * directions, B, S] and [layers * directions, B, H] with S the ``output_size``, or None for
                zeros. They are part of the ranges of h and c.
            progress: called with the part done, 0 to 1, after every step.

        Returns:
            The object itself.

        Raises:
            QcoreValueError, QcoreTypeError: another shape, a NaN or an infinity, or no numbers.
        """
        self._observe(x, [h0, c0], progress)
        return self

    def _quantize_direction(
        self, direction: Direction, ranges: dict[str, Range], config: Config, shared: dict[str, Format]
    ) -> tuple[Any, dict[str, Any]]:
        formats = dict(shared)
        for name in self.tensors:
            if name not in formats:
                formats[name] = ranges[name].format(
                    config.width(name), config.rule, signed=name not in UNSIGNED, zero_point=name in ZERO_FREE
                )
        parts: dict[str, Any] = {
            "formats": np.array([formats[name].row() for name in self.tensors], np.int32),
            "sizes": (direction.input_size, direction.hidden_size),
            "weight_bits": config.width("weights"),
            "bias_bits": config.width("biases"),
        }
        weights = ("w", "r") if direction.projection is None else ("w", "r", "projection")
        for name, dtype, bits in (
            *((name, np.int16, config.width("weights")) for name in weights),
            ("b", np.int32, config.width("biases")),
        ):
            gates = 1 if name == "projection" else direction.gates
            codes, exponents = quantize_rows(getattr(direction, name), bits, config.granularity, gates)
            parts[name], parts[f"{name}_exponents"] = codes.astype(dtype), exponents
        if direction.peepholes is not None:
            codes, exponents = quantize_rows(direction.peepholes, 16, config.granularity, len(direction.peepholes))
            parts["peepholes"], parts["peepholes_exponents"] = codes.astype(np.int16), exponents
        return make(parts, config), parts
