"""torch.ao.quantization.quantize_dynamic of a GRU or an LSTM, with each of torch's engines.

Weights are int8, x and h are quantized in every step, gates are float.
"""

from __future__ import annotations

from ... import libraries
from ...implementation import Built, Implementation, Scheme, Unavailable
from ..problem import Layer
from .torch_modules import bind, kind, module

_ENGINES = ("fbgemm", "x86", "onednn")


def implementations(layer: Layer) -> list[Implementation]:
    libraries.torch()
    return [_implementation(layer, engine) for engine in _ENGINES]


def _implementation(layer: Layer, engine: str) -> Implementation:
    def build() -> Built:
        library = libraries.torch()
        if engine not in library.backends.quantized.supported_engines:
            raise Unavailable(f"this torch has no engine {engine}")
        library.backends.quantized.engine = engine  # packed weights keep it
        inner = library.nn.Sequential(module(layer))
        made = library.ao.quantization.quantize_dynamic(inner, {kind(layer)}, dtype=library.qint8)[0]
        if type(made) is kind(layer):
            raise Unavailable("quantize_dynamic left the layer as it was")
        return Built(layer.weights, 1, lambda data: bind(made, data, library.float32))

    return Implementation(f"torch quantize_dynamic {engine}", "torch", Scheme(8, "int8 per tensor", "int8"), build)
