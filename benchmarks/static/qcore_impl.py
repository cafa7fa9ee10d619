"""qcore.static.QConv2d, and QLinear where a layer is one, through their public interfaces."""

from __future__ import annotations

from typing import Any

import numpy as np

import qcore
from qcore.static import QConv2d, QLinear

from ..implementation import OURS, Array, Bound, Built, Implementation, Scheme
from .problem import Codes, Layer, channels_last

SCHEME = Scheme(8, "uint8 per tensor", "int8")

_CHECKED_ROWS = 2


def implementations(layer: Layer) -> list[Implementation]:
    """In both memory orders, with and without `out`; a layer of single pixels as rows of a QLinear too."""
    made = [_implementation(layer, last, with_out) for last in (True, False) for with_out in (True, False)]
    if layer.weight[2:] == (1, 1) and (layer.stride, layer.padding, layer.groups) == (1, 0, 1):
        made.append(Implementation(f"{OURS} QLinear", OURS, SCHEME, lambda: Built(layer.weights, 1, _linear)))
    return made


def _linear(codes: Codes) -> Bound:
    scale, zero_point, weight, *rest = codes.parts
    made = QLinear(scale, zero_point, weight[:, :, 0, 0], *rest)
    pixels = channels_last(codes.x).transpose(0, 2, 3, 1)

    def run(_: int) -> Any:
        return made(pixels)

    def same_as_reference() -> bool:
        with qcore.force_kernel("static", "reference"):
            expected = made(pixels[:1, :1])
        return bool(np.array_equal(made(pixels)[:1, :1], expected))

    run(0)
    return Bound(run, lambda: run(0).transpose(0, 3, 1, 2), same_as_reference, qcore.last_kernel("static"))


def _implementation(layer: Layer, last: bool, with_out: bool) -> Implementation:
    name = f"{OURS} {'channels_last' if last else 'nchw'}{' out=' if with_out else ''}"

    def bind(codes: Codes) -> Bound:
        made = QConv2d(*codes.parts, stride=layer.stride, padding=layer.padding, groups=layer.groups)
        x = channels_last(codes.x) if last else codes.x
        out = np.zeros(layer.y, np.uint8)
        out = channels_last(out) if last else out

        def run(_: int) -> Any:
            return made(x, out=out) if with_out else made(x)

        run(0)
        return Bound(
            run, lambda: np.asarray(run(0)), lambda: _same_as_reference(layer, made, x), qcore.last_kernel("static")
        )

    return Implementation(name, OURS, SCHEME, lambda: Built(layer.weights, 1, bind))


def _same_as_reference(layer: Layer, made: QConv2d, x: Array) -> bool:
    """Return whether the first rows of the first image have the reference's bits, which gets only what they read."""
    rows = min(_CHECKED_ROWS, layer.y[2])
    needed = min(layer.x[2], (rows - 1) * layer.stride + layer.weight[2])
    with qcore.force_kernel("static", "reference"):
        expected = np.asarray(made(x[:1, :, :needed]))
    whole = rows if needed == layer.x[2] else (needed + layer.padding - layer.weight[2]) // layer.stride + 1
    rows = min(rows, whole)
    return rows > 0 and bool(np.array_equal(np.asarray(made(x))[:1, :, :rows], expected[:, :, :rows]))
