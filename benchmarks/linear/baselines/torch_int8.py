"""torch's int8 linear layers: per-channel weights, one activation scale per tensor."""

from __future__ import annotations

from typing import Any

from ... import libraries
from ...implementation import Array, Bound, Built, Implementation, Scheme, Unavailable, copies_for
from ..weight import Weight

_ENGINES = ("x86", "onednn", "fbgemm")


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    torch = libraries.torch()
    made = [_dynamic(torch, engine, weight, rotated_bytes) for engine in _ENGINES]
    return [*made, _static(torch, weight, rotated_bytes)]


def _bytes(weight: Weight) -> int:
    return weight.n * weight.k + 4 * weight.n


def _dynamic(torch: Any, engine: str, weight: Weight, rotated_bytes: int) -> Implementation:
    """Quantize x in every call."""

    def build() -> Built:
        if engine not in torch.backends.quantized.supported_engines:
            raise Unavailable(f"this torch has no engine {engine}")
        torch.backends.quantized.engine = engine
        codes, scales = (torch.from_numpy(part) for part in weight.per_channel())
        zeros = torch.zeros(weight.n, dtype=torch.long)
        quantized = torch._make_per_channel_quantized_tensor(codes, scales.double(), zeros, 0)
        packed = [
            torch.ops.quantized.linear_prepack(quantized, None)
            for _ in range(copies_for(_bytes(weight), rotated_bytes))
        ]
        linear = torch.ops.quantized.linear_dynamic

        def bind(x: Array) -> Bound:
            given = torch.from_numpy(x)
            return Bound(lambda copy: linear(given, packed[copy]), lambda: linear(given, packed[0]).numpy())

        return Built(_bytes(weight), len(packed), bind)

    scheme = Scheme(8, "int8 per tensor", "int8")
    return Implementation(f"torch linear_dynamic {engine}", "torch", scheme, build)


def _static(torch: Any, weight: Weight, rotated_bytes: int) -> Implementation:
    """oneDNN's linear with a scale of x known beforehand; quantizing x to it is part of the call."""

    def build() -> Built:
        codes, scales = (torch.from_numpy(part) for part in weight.per_channel())
        prepack, linear = torch.ops.onednn.qlinear_prepack, torch.ops.onednn.qlinear_pointwise
        packed = [prepack(codes, None) for _ in range(copies_for(_bytes(weight), rotated_bytes))]
        zeros = torch.zeros(weight.n, dtype=torch.int32)

        def bind(x: Array) -> Bound:
            given = torch.from_numpy(x)
            low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
            scale = (high - low) / 255
            zero = round(-low / scale)

            def run(copy: int) -> Any:
                quantized = torch.quantize_per_tensor(given, scale, zero, torch.quint8).int_repr()
                return linear(
                    quantized, scale, zero, packed[copy], scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
                )

            return Bound(run, lambda: run(0).numpy())

        return Built(_bytes(weight), len(packed), bind)

    scheme = Scheme(8, "uint8 per tensor, static", "int8")
    return Implementation("torch onednn.qlinear static", "torch", scheme, build)
