"""Baselines of AWQ: copies, dequantization as a torch expression, and ONNX Runtime's product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import libraries
from ..copying import NUMPY, TORCH, numpy_copy, torch_copy
from ..implementation import Array, Bound, Built, Implementation, Scheme
from ..linear.baselines import onnxruntime_nbits
from .problem import COLUMNS_OF_NIBBLES, Data, Layer, Problem
from .qcore_impl import scheme


def torch(layer: Layer, problem: Problem, rotated_bytes: int) -> list[Implementation]:
    if problem.m is not None:
        return []
    libraries.torch()
    return [
        _implementation(problem, "torch expression", "torch", _expression),
        _copy(problem, TORCH, "torch", lambda: torch_copy(problem.moved_bytes // 2)),
    ]


def numpy(layer: Layer, problem: Problem, rotated_bytes: int) -> list[Implementation]:
    if problem.m is not None:
        return []
    return [_copy(problem, NUMPY, "numpy", lambda: numpy_copy(problem.moved_bytes // 2))]


def onnxruntime(layer: Layer, problem: Problem, rotated_bytes: int) -> list[Implementation]:
    """MatMulNBits with the same codes, zeros and scales, in fp32 and with activations in int8."""
    if problem.m is None:
        return []
    libraries.onnxruntime()

    def implementation(level: int) -> Implementation:
        one = onnxruntime_nbits.implementation(layer, rotated_bytes, 4, problem.shape.group_size, level, offsets=True)

        def build() -> Built:
            built = one.build()
            return replace(built, bind=lambda data: built.bind(data.x))

        return replace(one, build=build)

    return [implementation(0), implementation(4)]


SOURCES: dict[str, Callable[[Layer, Problem, int], list[Implementation]]] = {
    "torch": torch,
    "numpy": numpy,
    "onnxruntime": onnxruntime,
}


def _implementation(problem: Problem, name: str, library: str, bind: Callable[[Data], Bound]) -> Implementation:
    return Implementation(name, library, scheme(problem), lambda: Built(problem.moved_bytes, 1, bind))


def _copy(problem: Problem, name: str, library: str, make: Callable[[], Callable[[int], object]]) -> Implementation:
    return Implementation(
        name,
        library,
        Scheme(8, "-", "fp32"),
        lambda: Built(problem.moved_bytes, 1, lambda _: Bound(make(), lambda: np.empty(0))),
    )


def _expression(data: Data) -> Bound:
    """(u - z) * s in fp16."""
    torch = libraries.torch()
    qweight, scales, qzeros = (torch.from_numpy(array) for array in data.layer.arrays)
    shifts = torch.tensor([4 * COLUMNS_OF_NIBBLES.index(column) for column in range(8)], dtype=torch.int32)
    groups, n = scales.shape

    def codes(words: Any) -> Any:
        return ((words[..., None] >> shifts) & 15).to(torch.int8)

    def run(_: int) -> Any:
        difference = codes(qweight).view(groups, -1, n) - codes(qzeros).view(groups, 1, n)
        return (difference.half() * scales[:, None]).view(-1, n)

    def result() -> Array:
        values: Array = run(0).numpy()
        return values

    return Bound(run, result)
