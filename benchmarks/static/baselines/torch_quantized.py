"""torch's quantized.conv2d, channels_last, by each of its engines."""

from __future__ import annotations

from typing import Any

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation
from ..problem import Codes, Layer
from ..qcore_impl import SCHEME

_LIBRARY = "torch"
_ENGINES = ("onednn", "x86", "fbgemm")


def implementations(layer: Layer) -> list[Implementation]:
    supported = libraries.torch().backends.quantized.supported_engines
    return [_implementation(layer, engine) for engine in _ENGINES if engine in supported]


def _implementation(layer: Layer, engine: str) -> Implementation:
    def bind(codes: Codes) -> Bound:
        torch = libraries.torch()
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = engine
        try:
            packed = _packed(torch, layer, codes)
        finally:
            torch.backends.quantized.engine = before
        # A packed layer knows its engine.
        x = torch._make_per_tensor_quantized_tensor(torch.from_numpy(codes.x), codes.x_scale, codes.x_zero_point)
        x = x.contiguous(memory_format=torch.channels_last)
        convolve = torch.ops.quantized.conv2d

        def run(_: int) -> Any:
            return convolve(x, packed, codes.y_scale, codes.y_zero_point)

        def result() -> Array:
            values: Array = run(0).int_repr().numpy()
            return values

        return Bound(run, result)

    return Implementation(f"torch quantized.conv2d {engine}", _LIBRARY, SCHEME, lambda: Built(layer.weights, 1, bind))


def _packed(torch: Any, layer: Layer, codes: Codes) -> Any:
    zeros = torch.zeros(len(codes.w_scale), dtype=torch.long)
    weight = torch._make_per_channel_quantized_tensor(
        torch.from_numpy(codes.weight), torch.from_numpy(codes.w_scale).double(), zeros, 0
    )
    bias = torch.from_numpy((codes.bias * (codes.w_scale.astype(float) * codes.x_scale)).astype("float32"))
    return torch.ops.quantized.conv2d_prepack(
        weight, bias, [layer.stride] * 2, [layer.padding] * 2, [1, 1], layer.groups
    )
