"""qcore.gru and qcore.lstm, through their public interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import qcore
from qcore.gru.formats import Pipeline

from ..implementation import OURS, Arithmetic, Array, Bound, Built, Implementation, Scheme
from .problem import Cell, Layer, Sequences

_ARITHMETIC: dict[int, Arithmetic] = {8: "int8", 16: "int16"}
_CHECKED_STEPS, _CHECKED_ROWS = 8, 2


def implementations(layer: Layer, widths: list[tuple[int, Pipeline | None]]) -> list[Implementation]:
    return [_implementation(layer, bits, pipeline) for bits, pipeline in widths]


def _implementation(layer: Layer, bits: int, pipeline: Pipeline | None) -> Implementation:
    def build() -> Built:
        made = _quantized(layer, bits, pipeline)
        return Built(layer.weights * bits // 8, 1, lambda data: _bind(made, data))

    name = f"{OURS} int{bits}" + (f" {pipeline}" if pipeline else "")
    return Implementation(name, OURS, Scheme(bits, f"int{bits}", _ARITHMETIC[bits]), build)


def _quantized(layer: Layer, bits: int, pipeline: Pipeline | None) -> Any:
    from qcore import gru, lstm

    samples = layer.sequences(50, 16, seed=1)
    if layer.cell == "lstm":
        return (
            lstm.Calibrator(lstm.LstmWeights.from_arrays(*layer.arrays)).observe(samples).finish(lstm.Config(bits=bits))
        )
    calibrator = gru.Calibrator(gru.GruWeights.from_arrays(*layer.arrays)).observe(samples)
    return calibrator.finish(gru.Config(bits=bits, pipeline=pipeline or "fused"))


def _bind(made: Any, data: Sequences) -> Bound:
    run, result = (_streamed if data.streamed else _whole)(made, data.x)
    run(0)
    cell = data.layer.cell
    return Bound(run, result, lambda: _same_as_reference(cell, made, data.x, result()), qcore.last_kernel(cell))


def _whole(made: Any, x: Array) -> tuple[Callable[[int], object], Callable[[], Array]]:
    return lambda _: made(x), lambda: np.asarray(made(x)[0])


def _streamed(made: Any, x: Array) -> tuple[Callable[[int], object], Callable[[], Array]]:
    steps = [np.ascontiguousarray(x_t) for x_t in x]
    state, at = None, 0

    def run(_: int) -> object:
        nonlocal state, at
        at = (at + 1) % len(steps)
        y, state = made.step(steps[at], state)
        return y

    def result() -> Array:
        carried, found = None, []
        for x_t in steps:
            y, carried = made.step(x_t, carried)
            found.append(np.asarray(y))
        return np.stack(found)

    return run, result


def _same_as_reference(cell: Cell, made: Any, x: Array, result: Array) -> bool:
    """Return whether the first steps of a few rows have the reference kernel's bits."""
    rows = np.unique(np.linspace(0, x.shape[1] - 1, _CHECKED_ROWS).astype(int))
    with qcore.force_kernel(cell, "reference"):
        expected = np.asarray(made(np.ascontiguousarray(x[:_CHECKED_STEPS, rows]))[0])
    return bool(np.array_equal(result[:_CHECKED_STEPS, rows], expected))
