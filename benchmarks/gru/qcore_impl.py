"""qcore.gru, through its public interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import qcore
from qcore.gru.formats import Pipeline

from ..implementation import OURS, Arithmetic, Array, Bound, Built, Implementation, Scheme
from .problem import Layer, Sequences

_ARITHMETIC: dict[int, Arithmetic] = {8: "int8", 16: "int16"}
_CHECKED_STEPS, _CHECKED_ROWS = 8, 2


def implementations(layer: Layer, widths: list[tuple[int, Pipeline]]) -> list[Implementation]:
    return [_implementation(layer, bits, pipeline) for bits, pipeline in widths]


def _implementation(layer: Layer, bits: int, pipeline: Pipeline) -> Implementation:
    def build() -> Built:
        from qcore.gru import Calibrator, Config, GruWeights

        calibrator = Calibrator(GruWeights.from_arrays(*layer.arrays)).observe(layer.sequences(50, 16, seed=1))
        gru = calibrator.finish(Config(bits=bits, pipeline=pipeline))
        return Built(layer.weights * bits // 8, 1, lambda data: _bind(gru, data))

    return Implementation(f"{OURS} int{bits} {pipeline}", OURS, Scheme(bits, f"int{bits}", _ARITHMETIC[bits]), build)


def _bind(gru: Any, data: Sequences) -> Bound:
    run, result = (_streamed if data.streamed else _whole)(gru, data.x)
    run(0)
    kernel = qcore.last_kernel("gru")
    return Bound(run, result, lambda: _same_as_reference(gru, data.x, result()), kernel)


def _whole(gru: Any, x: Array) -> tuple[Callable[[int], object], Callable[[], Array]]:
    return lambda _: gru(x), lambda: np.asarray(gru(x)[0])


def _streamed(gru: Any, x: Array) -> tuple[Callable[[int], object], Callable[[], Array]]:
    steps = [np.ascontiguousarray(x_t) for x_t in x]
    state, at = None, 0

    def run(_: int) -> object:
        nonlocal state, at
        at = (at + 1) % len(steps)
        y, state = gru.step(steps[at], state)
        return y

    def result() -> Array:
        carried, found = None, []
        for x_t in steps:
            y, carried = gru.step(x_t, carried)
            found.append(np.asarray(y))
        return np.stack(found)

    return run, result


def _same_as_reference(gru: Any, x: Array, result: Array) -> bool:
    """Return whether the first steps of a few rows have the reference kernel's bits."""
    rows = np.unique(np.linspace(0, x.shape[1] - 1, _CHECKED_ROWS).astype(int))
    with qcore.force_kernel("gru", "reference"):
        expected = np.asarray(gru(np.ascontiguousarray(x[:_CHECKED_STEPS, rows]))[0])
    return bool(np.array_equal(result[:_CHECKED_STEPS, rows], expected))
