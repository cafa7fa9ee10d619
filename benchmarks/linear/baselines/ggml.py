"""ggml's mul_mat on its CPU backend, with plain and with interleaved ("repack") weights."""

from __future__ import annotations

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
FORMATS = {
    "q4_0": (2, 4, 32, False, 18, 32, "int8 per 32"),
    "q8_0": (8, 8, 32, False, 34, 32, "int8 per 32"),
    "q2_K": (10, 2, 16, True, 84, 256, "int8 per 256"),
    "q3_K": (11, 3, 16, False, 110, 256, "int8 per 256"),
    "q4_K": (12, 4, 32, True, 144, 256, "int8 per 256"),
    "q5_K": (13, 5, 32, True, 176, 256, "int8 per 256"),
    "q6_K": (14, 6, 16, False, 210, 256, "int8 per 256"),
    "iq4_nl": (20, 4, 32, False, 18, 32, "int8 per 32"),
    "iq4_xs": (23, 4, 32, False, 136, 256, "int8 per 256"),
    "mxfp4": (39, 4, 32, False, 17, 32, "int8 per 32"),
}


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    library = ggml()
    return [
        _implementation(library, weight, rotated_bytes, name, interleaved)
        for name in FORMATS
        for interleaved in (False, True)
        if weight.k % FORMATS[name][5] == 0
    ]


def quantized(weight: Weight, name: str) -> Array:
    """Return the rows of a weight in one of :data:`FORMATS`, by ggml's own quantizer: uint8 [N, bytes of a row]."""
    number, *_, unit_bytes, unit, _activations = FORMATS[name]
    rows = np.empty((weight.n, weight.k // unit * unit_bytes), np.uint8)
    ggml().quantize_chunk(number, weight.values.ctypes.data, rows.ctypes.data, 0, weight.n, weight.k, None)
    return rows


def _implementation(library: Ggml, weight: Weight, rotated_bytes: int, name: str, interleaved: bool) -> Implementation:
    _, bits, block_size, offsets, unit_bytes, unit, activations = FORMATS[name]

    def build() -> Built:
        nbytes = weight.n * weight.k // unit * unit_bytes
        layers = _Layers(library, weight, name, copies_for(nbytes, rotated_bytes), interleaved)
        return Built(nbytes, len(layers.weights), layers.bind, close=layers.close)

    scheme = Scheme(bits, activations, "int8", block_size, offsets)
    return Implementation(f"ggml {name}{' repack' if interleaved else ''}", "ggml", scheme, build)


class _Layers:
    """Copies of one weight; all products are written to one output."""

    def __init__(self, library: Ggml, weight: Weight, name: str, copies: int, interleaved: bool) -> None:
        self._ggml, self._weight = library, weight
        number = FORMATS[name][0]
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
        self._fill(name)

    def _has_kernel(self) -> bool:
        context = self._ggml.context(4)
        x = self._ggml.new_tensor_2d(context, _F32, self._weight.k, 1)
        product = self._ggml.mul_mat(context, self.weights[0], x)
        supported = bool(self._ggml.backend_dev_supports_op(self._ggml.device(), product))
        self._ggml.free(context)
        return supported

    def _fill(self, name: str) -> None:
        rows = quantized(self._weight, name)
        for tensor in self.weights:
            self._ggml.backend_tensor_set(tensor, rows.ctypes.data, 0, rows.nbytes)

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
