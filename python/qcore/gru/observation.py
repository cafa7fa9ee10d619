"""Ranges of a float GRU's tensors on samples, and the parameters that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from qcore import _core
from qcore._recurrent.formats import Format
from qcore._recurrent.observation import ObserverBase, quantize_rows
from qcore._recurrent.ranges import Range
from qcore.gru.core import make
from qcore.gru.direction import Direction
from qcore.gru.formats import TENSORS, UNSIGNED, ZERO_FREE, Config
from qcore.gru.weights import GruWeights

_ADDED_TO = (
    {"rb": "g_pre", "old_part": "h", "new_part": "h"},
    {"rrh": "g_pre", "old_part": "h", "new_part": "h"},
)
"""Tensors that are shifted to the scale of another and go nowhere else: a finer scale than that would only round twice,
and every shift by one bit has a tie for each odd code. By linear_before_reset."""


class Observer(ObserverBase):
    """Runs the float GRU on samples and keeps the range of every tensor.

    Args:
        weights: :class:`GruWeights`.
        method: how ranges follow from values. "mse": the exponent with the smallest squared error, for up to 8 bits;
            "minmax": everything seen; "ema": a moving average over steps of x and h, "minmax" of the rest;
            "percentile": without 0.01% of the values at each end.

    Raises:
        QcoreTypeError: other weights.
    """

    op = "gru"
    tensors = TENSORS
    seen = (*TENSORS, "wx_with_bias", "rh_with_bias")
    weights_type = GruWeights

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
        self._observe(x, [h0], progress)
        return self

    def _quantize_direction(
        self, direction: Direction, ranges: dict[str, Range], config: Config, shared: dict[str, Format]
    ) -> tuple[Any, dict[str, Any]]:
        return quantize_direction(direction, ranges, config, shared)


def quantize_direction(
    weights: Direction, ranges: dict[str, Range], config: Config, shared: dict[str, Format]
) -> tuple[_core.QuantizedGru, dict[str, Any]]:
    """Return the core's object and what it was made of, for files and reports."""
    formats = dict(shared)
    fused, form = config.pipeline == "fused", weights.linear_before_reset
    # r * h is multiplied by R as h is, so that it has h's width.
    widths = {name: config.width(name) for name in TENSORS} | ({} if form else {"rrh": config.width("h")})
    widths |= {name: config.width(name) for name in TENSORS if name in config.widths}
    for name in TENSORS[2:]:
        seen = ranges[f"{name[0]}{name[1]}_with_bias"] if fused and name in ("wx", "rh") else ranges[name]
        formats[name] = seen.format(
            widths[name], config.rule, signed=name not in UNSIGNED, zero_point=name in ZERO_FREE
        )
    for name, target in _ADDED_TO[form].items():
        finest = formats[target].exponent
        if formats[name].exponent > finest:
            formats[name] = ranges[name].format(widths[name], config.rule, exponent=finest)
    parts: dict[str, Any] = {
        "formats": np.array([formats[name].row() for name in TENSORS], np.int32),
        "sizes": (weights.input_size, weights.hidden_size),
        "weight_bits": config.width("weights"),
        "bias_bits": config.width("biases"),
        "linear_before_reset": form,
    }
    for name, dtype, bits in (
        ("w", np.int16, config.width("weights")),
        ("r", np.int16, config.width("weights")),
        ("bx", np.int32, config.width("biases")),
        ("br", np.int32, config.width("biases")),
    ):
        codes, exponents = quantize_rows(getattr(weights, name), bits, config.granularity, weights.gates)
        parts[name], parts[f"{name}_exponents"] = codes.astype(dtype), exponents
    return make(parts, config), parts
