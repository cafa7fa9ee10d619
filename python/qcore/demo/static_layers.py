"""Layers of qcore.static between float arrays: codes go in and out, with formats from samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

import qcore

from .data import Floats
from .layers import Calibrated

if TYPE_CHECKING:
    from qcore.static import QConv2d, QLinear

Make = Callable[[float, int, float, int], "QConv2d | QLinear"]
"""From x_scale, x_zero_point, y_scale and y_zero_point."""


def format_of(values: Floats) -> tuple[float, int]:
    """Scale and zero point of uint8 codes that reach from the least to the largest value; 0 has a code of its own."""
    lo, hi = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = max((hi - lo) / 255, float(np.finfo(np.float32).tiny))
    return scale, round(-lo / scale)


class StaticLayer(Calibrated):
    """A layer of qcore.static. ``reference`` is the float layer, whose results on the samples give y's format."""

    def __init__(self, make: Make, reference: Callable[[Floats], Floats]) -> None:
        self._make = make
        self._reference = reference
        self._layer: QConv2d | QLinear | None = None

    def calibrate(self, x: Floats) -> None:
        self._layer = self._make(*format_of(x), *format_of(self._reference(x)))

    def __call__(self, x: Floats) -> Floats:
        layer = self._layer
        if layer is None:
            raise qcore.QcoreValueError("demo: a static layer was called before calibrate(x), expected samples first")
        steps = np.rint(x * np.float32(1 / layer.x_scale)) + np.float32(layer.x_zero_point)
        codes = layer(np.clip(steps, 0, 255, out=steps).astype(np.uint8))
        y: Floats = (codes.astype(np.float32) - np.float32(layer.y_zero_point)) * np.float32(layer.y_scale)
        return y
