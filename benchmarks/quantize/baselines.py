"""Quantization as expressions in torch and NumPy, a code in a byte, and their copies of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import libraries
from ..copying import NUMPY, TORCH, numpy_copy, torch_copy
from ..implementation import Array, Bound, Implementation
from .problem import BLOCK_SIZE, Data, Problem


def _torch(problem: Problem) -> list[Implementation]:
    torch = libraries.torch()

    def bind(data: Data) -> Bound:
        blocks = torch.from_numpy(data.x).reshape(problem.n, -1, BLOCK_SIZE)
        codes, scales = (torch.from_numpy(part) for part in data.rounded)

        def rounded() -> tuple[Any, Any]:
            scales = blocks.abs().amax(-1, keepdim=True) / data.largest
            return (blocks / scales).round_().to(torch.int8), scales

        def back(codes: Any, scales: Any) -> Any:
            return (codes * scales).reshape(problem.n, -1)

        if problem.way == "dequantize":
            return Bound(lambda _: back(codes, scales), lambda: back(codes, scales).numpy())
        return Bound(lambda _: rounded(), lambda: back(*rounded()).numpy())

    expressions = [] if problem.way == "rotate" else [problem.implementation("torch expression", "torch", bind)]
    return [
        *expressions,
        problem.implementation(TORCH, "torch", lambda _: _nothing(torch_copy(problem.moved_bytes // 2))),
    ]


def _numpy(problem: Problem) -> list[Implementation]:
    def bind(data: Data) -> Bound:
        blocks = data.x.reshape(problem.n, -1, BLOCK_SIZE)

        def rounded() -> tuple[Array, Array]:
            scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(data.largest)
            scaled = blocks / scales
            return np.rint(scaled, out=scaled).astype(np.int8), scales

        def back(codes: Array, scales: Array) -> Array:
            return np.asarray((codes * scales).reshape(problem.n, -1))

        if problem.way == "dequantize":
            return Bound(lambda _: back(*data.rounded), lambda: back(*data.rounded))
        return Bound(lambda _: rounded(), lambda: back(*rounded()))

    name = "numpy expression (1 thread)"
    return [
        *([] if problem.way == "rotate" else [problem.implementation(name, "numpy", bind)]),
        problem.implementation(NUMPY, "numpy", lambda _: _nothing(numpy_copy(problem.moved_bytes // 2))),
    ]


def _nothing(run: Callable[[int], object]) -> Bound:
    return Bound(run, lambda: np.empty(0))


SOURCES: dict[str, Callable[[Problem], list[Implementation]]] = {"torch": _torch, "numpy": _numpy}
