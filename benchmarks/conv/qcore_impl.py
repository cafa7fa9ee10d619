"""qcore.conv2d, through its public interface."""

from __future__ import annotations

from typing import Any

import numpy as np

import qcore

from ..implementation import OURS, Array, Bound, Built, Implementation, Scheme
from ..static.problem import Layer, channels_last
from .problem import Floats

BITS = (8, 4)
BLOCK_SIZES = (32, 64, 128)
MEMORY = ("channels_last", "nchw")


def implementations(layer: Layer) -> list[Implementation]:
    """Yield calls in both memory orders."""
    return [
        _implementation(layer, bits, block_size, memory)
        for bits in BITS
        for block_size in BLOCK_SIZES
        for memory in MEMORY
    ]


def name(bits: int, block_size: int, memory: str) -> str:
    return f"{OURS} w{bits} g{block_size} {memory}"


def _implementation(layer: Layer, bits: int, block_size: int, memory: str) -> Implementation:
    def bind(floats: Floats) -> Bound:
        weight = qcore.quantize(floats.weight, bits=bits, block_size=block_size, method="rtn", scale_dtype="float32")
        x = channels_last(floats.x) if memory == "channels_last" else floats.x

        def call(x: Array) -> Any:
            return qcore.conv2d(x, weight, stride=layer.stride, padding=layer.padding, groups=layer.groups)

        call(x)
        return Bound(
            lambda _: call(x),
            lambda: np.asarray(call(x)),
            lambda: _same_as_reference(layer, call, x),
            qcore.last_kernel("conv2d"),
        )

    scheme = Scheme(bits, "int8 per block", "int8", block_size)
    return Implementation(name(bits, block_size, memory), OURS, scheme, lambda: Built(layer.weights, 1, bind))


def _same_as_reference(layer: Layer, call: Any, x: Array) -> bool:
    """Return whether the first row of the first image has the reference's bits, which gets only what that row reads."""
    needed = min(layer.x[2], max(1, layer.weight[2] - layer.padding))
    with qcore.force_kernel("conv2d", "reference"):
        expected = np.asarray(call(x[:1, :, :needed]))
    return bool(np.array_equal(np.asarray(call(x))[:1, :, :1], expected[:, :, :1]))
