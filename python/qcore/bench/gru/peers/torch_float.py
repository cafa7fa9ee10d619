"""torch.nn.GRU in fp32 and bf16."""

from __future__ import annotations

from typing import Any

from ... import libraries
from ...contender import Arithmetic, Built, Contender, Scheme
from ..problem import Layer
from .torch_modules import bind, module


def contenders(layer: Layer) -> list[Contender]:
    torch = libraries.torch()

    def contender(name: Arithmetic, dtype: Any, item_bytes: int) -> Contender:
        def build() -> Built:
            gru = module(layer).to(dtype)
            return Built(layer.weights * item_bytes, 1, lambda data: bind(gru, data, dtype))

        return Contender(f"torch GRU {name}", "torch", Scheme(8 * item_bytes, name, name), build)

    return [contender("fp32", torch.float32, 4), contender("bf16", torch.bfloat16, 2)]
