"""torch.nn.GRU or LSTM in fp32 and bf16."""

from __future__ import annotations

from typing import Any

from ... import libraries
from ...implementation import Arithmetic, Built, Implementation, Scheme
from ..problem import Layer
from .torch_modules import bind, module


def implementations(layer: Layer) -> list[Implementation]:
    torch = libraries.torch()

    def implementation(name: Arithmetic, dtype: Any, item_bytes: int) -> Implementation:
        def build() -> Built:
            made = module(layer).to(dtype)
            return Built(layer.weights * item_bytes, 1, lambda data: bind(made, data, dtype))

        return Implementation(f"torch {layer.cell.upper()} {name}", "torch", Scheme(8 * item_bytes, name, name), build)

    return [implementation("fp32", torch.float32, 4), implementation("bf16", torch.bfloat16, 2)]
