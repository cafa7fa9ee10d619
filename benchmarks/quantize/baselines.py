"""Quantization as expressions in torch and NumPy, a code in a byte, by ggml, and their copies of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from qcore.formats.gguf_blocks import tensor_of

from .. import libraries
from ..copying import NUMPY, TORCH, numpy_copy, torch_copy
from ..implementation import Array, Bound, Implementation
from ..linear.baselines.ggml import FORMATS
from ..linear.baselines.ggml_library import ggml
from .problem import BLOCK_SIZE, Data, Problem

_OTHERS = ("rotate", "encode")  # for which torch and NumPy have no short expression
_GGML_BLOCK = 256


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

    return [
        *([] if problem.way in _OTHERS else [problem.implementation("torch expression", "torch", bind)]),
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
        *([] if problem.way in _OTHERS else [problem.implementation(name, "numpy", bind)]),
        problem.implementation(NUMPY, "numpy", lambda _: _nothing(numpy_copy(problem.moved_bytes // 2))),
    ]


def _ggml(problem: Problem) -> list[Implementation]:
    """Return ggml's quantizer, which runs on one thread for each piece of the rows, without importance and with 1."""
    if problem.way != "encode" or problem.k % _GGML_BLOCK:
        return []
    library = ggml()
    number, *_, unit_bytes, unit, _activations = FORMATS[f"q{problem.bits}_K"]
    pool = ThreadPoolExecutor(libraries.threads())

    def address(importance: Array | None) -> int | None:
        return None if importance is None else importance.ctypes.data

    def bind(importance: Array | None) -> Callable[[Data], Bound]:
        def bound(data: Data) -> Bound:
            rows = np.empty((problem.n, problem.k // unit * unit_bytes), np.uint8)
            pieces = np.array_split(np.arange(problem.n), 4 * libraries.threads())

            def quantize(piece: Array) -> None:
                if len(piece):
                    x, to = data.x[piece[0] :], rows[piece[0] :]
                    library.quantize_chunk(
                        number, x.ctypes.data, to.ctypes.data, 0, len(piece), problem.k, address(importance)
                    )

            def run(_: int) -> None:
                list(pool.map(quantize, pieces))

            def result() -> Array:
                run(0)
                return np.asarray(tensor_of(f"Q{problem.bits}_K", rows, "ggml").dequantize())

            return Bound(run, result)

        return bound

    return [
        problem.implementation("ggml_quantize_chunk", "ggml", bind(None)),
        problem.implementation("with importance 1", "ggml", bind(np.ones(problem.k, np.float32))),
    ]


def _nothing(run: Callable[[int], object]) -> Bound:
    return Bound(run, lambda: np.empty(0))


SOURCES: dict[str, Callable[[Problem], list[Implementation]]] = {"torch": _torch, "numpy": _numpy, "ggml": _ggml}
