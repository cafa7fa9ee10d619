"""qcore.awq, through its public interface."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import qcore

from ..implementation import OURS, Array, Bound, Built, Implementation, Scheme, copies_for
from .problem import Data, Layer, Problem


def implementations(layer: Layer, problem: Problem, rotated_bytes: int) -> list[Implementation]:
    """Both orders of the dequantized weight; products with the weight as it lies, and packed once."""
    if problem.m is None:
        return [_dequantize(problem, transpose) for transpose in (False, True)]
    return [_raw(layer, problem, rotated_bytes), _packed(layer, problem, rotated_bytes)]


def scheme(problem: Problem) -> Scheme:
    return Scheme(4, "fp32", "fp32", problem.shape.group_size, offsets=True)


def _dequantize(problem: Problem, transpose: bool) -> Implementation:
    def bind(data: Data) -> Bound:
        arrays = data.layer.arrays
        # Aligned to 64 bytes, where np.empty is to 16.
        out: Array = qcore.awq.dequantize(*arrays, transpose=transpose)

        def run(_: int) -> object:
            return qcore.awq.dequantize(*arrays, transpose=transpose, out=out)

        def result() -> Array:
            run(0)
            return out.T if transpose else out

        run(0)
        return Bound(run, result, lambda: _same_as_reference(data.layer, result()), qcore.last_kernel("awq"))

    name = f"{OURS} out={', transposed' if transpose else ''}"
    return Implementation(name, OURS, scheme(problem), lambda: Built(problem.moved_bytes, 1, bind))


def _same_as_reference(layer: Layer, result: Array) -> bool:
    """Return whether the first and the last group have the reference kernel's bits."""
    qweight, scales, qzeros = layer.arrays
    size = layer.shape.group_size
    for group in {0, len(scales) - 1}:
        rows, one = slice(group * size, (group + 1) * size), slice(group, group + 1)
        with qcore.force_kernel("awq", "reference"):
            expected = qcore.awq.dequantize(qweight[rows], scales[one], qzeros[one])
        if not np.array_equal(result[rows], expected):
            return False
    return True


def _raw(layer: Layer, problem: Problem, rotated_bytes: int) -> Implementation:
    def build() -> Built:
        weights = layer.copies(copies_for(problem.shape.nbytes, rotated_bytes))

        def bind(data: Data) -> Bound:
            out = np.empty((len(data.x), problem.shape.n), np.float32)
            return _linear(lambda copy: qcore.awq.linear(data.x, *weights[copy], out=out), "awq_linear")

        return Built(problem.moved_bytes, len(weights), bind)

    return Implementation(f"{OURS} arrays", OURS, scheme(problem), build)


def _packed(layer: Layer, problem: Problem, rotated_bytes: int) -> Implementation:
    def build() -> Built:
        count = copies_for(problem.shape.nbytes, rotated_bytes)
        weights = [qcore.awq.Weight(*layer.arrays) for _ in range(count)]

        def bind(data: Data) -> Bound:
            out = np.empty((len(data.x), problem.shape.n), np.float32)
            return _linear(lambda copy: weights[copy](data.x, out=out), "linear")

        return Built(problem.moved_bytes, count, bind)

    return Implementation(f"{OURS} Weight", OURS, scheme(problem), build)


def _linear(run: Callable[[int], Array], operator: str) -> Bound:
    """Sum in fp32 differ in their last bits from kernel to kernel; the error says whether they are right."""
    run(0)
    return Bound(run, lambda: run(0), None, qcore.last_kernel(operator) or "")
