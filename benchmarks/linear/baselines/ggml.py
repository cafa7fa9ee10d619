"""ggml's mul_mat on its CPU backend, with plain and with interleaved ("repack") weights."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation, Scheme, Unavailable, copies_for
from ..weight import Weight
from .ggml_library import Ggml, ggml

_F32 = 0
_GRAPH_NODES = 4
# Format: its number in GGUF files, bits, weights that share a scale, offsets, bytes and weights of its unit, and what
# its kernels quantize activations to.
_FORMATS = {
    "q4_0": (2, 4, 32, False, 18, 32, "int8 per 32"),
    "q8_0": (8, 8, 32, False, 34, 32, "int8 per 32"),
    "q4_K": (12, 4, 32, True, 144, 256, "int8 per 256"),
}


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    library = ggml()
    return [
        _implementation(library, weight, rotated_bytes, name, interleaved)
        for name in _FORMATS
        for interleaved in (False, True)
        if weight.k % _FORMATS[name][5] == 0
    ]


def _implementation(library: Ggml, weight: Weight, rotated_bytes: int, name: str, interleaved: bool) -> Implementation:
    number, bits, block_size, offsets, unit_bytes, unit, activations = _FORMATS[name]

    def build() -> Built:
        nbytes = weight.n * weight.k // unit * unit_bytes
        layers = _Layers(library, weight, number, copies_for(nbytes, rotated_bytes), interleaved)
        return Built(nbytes, len(layers.weights), layers.bind, close=layers.close)

    scheme = Scheme(bits, activations, "int8", block_size, offsets)
    return Implementation(f"ggml {name}{' repack' if interleaved else ''}", "ggml", scheme, build)


class _Layers:
    """Copies of one weight; all products are written to one output."""

    def __init__(self, library: Ggml, weight: Weight, number: int, copies: int, interleaved: bool) -> None:
        self._ggml, self._weight = library, weight
        buffers = library.interleaved_buffers() if interleaved else library.backend_cpu_buffer_type()
        if not buffers:
            raise Unavailable("this ggml has no interleaved kernels")
        self._context = library.context(copies)
        self.weights = [library.new_tensor_2d(self._context, number, weight.k, weight.n) for _ in range(copies)]
        self._buffer = library.backend_alloc_ctx_tensors_from_buft(self._context, buffers)
        self._backend = library.backend_cpu_init()
        library.backend_cpu_set_n_threads(self._backend, libraries.threads())
        self._inputs: list[tuple[Any, Any]] = []
        if interleaved and not self._has_kernel():
            self.close()
            raise Unavailable("this ggml has no interleaved kernel of that format for this processor")
        self._fill(number)

    def _has_kernel(self) -> bool:
        context = self._ggml.context(4)
        x = self._ggml.new_tensor_2d(context, _F32, self._weight.k, 1)
        product = self._ggml.mul_mat(context, self.weights[0], x)
        supported = bool(self._ggml.backend_dev_supports_op(self._ggml.device(), product))
        self._ggml.free(context)
        return supported

    def _fill(self, number: int) -> None:
        nbytes = self._ggml.nbytes(self.weights[0])
        packed = ctypes.create_string_buffer(nbytes)
        values = self._weight.values.ctypes.data
        self._ggml.quantize_chunk(number, values, packed, 0, self._weight.n, self._weight.k, None)
        for tensor in self.weights:
            self._ggml.backend_tensor_set(tensor, packed, 0, nbytes)

    def bind(self, x: Array) -> Bound:
        self._free_inputs()
        library, m = self._ggml, len(x)
        context = library.context(2 * len(self.weights) + 2, _GRAPH_NODES)
        given = library.new_tensor_2d(context, _F32, self._weight.k, m)
        out = library.new_tensor_2d(context, _F32, self._weight.n, m)
        buffer = library.backend_alloc_ctx_tensors_from_buft(context, library.backend_cpu_buffer_type())
        self._inputs.append((context, buffer))
        library.backend_tensor_set(given, x.ctypes.data, 0, x.nbytes)
        values = np.empty((m, self._weight.n), np.float32)
        graphs = []
        for weight in self.weights:
            product = library.mul_mat(context, weight, given)
            library.backend_tensor_alloc(buffer, product, library.get_data(out))
            graph = library.new_graph_custom(context, _GRAPH_NODES, False)
            library.build_forward_expand(graph, product)
            graphs.append((graph, product))

        def run(copy: int) -> object:
            return library.backend_graph_compute(self._backend, graphs[copy][0])

        def result() -> Array:
            if run(0) != 0:
                raise Unavailable("ggml_backend_graph_compute failed")
            library.backend_tensor_get(graphs[0][1], values.ctypes.data, 0, values.nbytes)
            return values

        return Bound(run, result)

    def _free_inputs(self) -> None:
        for context, buffer in self._inputs:
            self._ggml.backend_buffer_free(buffer)
            self._ggml.free(context)
        self._inputs.clear()

    def close(self) -> None:
        self._free_inputs()
        self._ggml.backend_buffer_free(self._buffer)
        self._ggml.free(self._context)
        self._ggml.backend_free(self._backend)
