"""Makes decoders with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import qcore
from qcore import decoder


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    vocabulary: int
    qkv_bias: bool = False
    rotary_base: float = 10000.0

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Return [N, K] of a layer's linear layers by their names in :class:`qcore.decoder.Layer`."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "qkv": (q + 2 * kv, hidden),
            "out": (hidden, q),
            "gate_up": (2 * inner, hidden),
            "down": (hidden, inner),
        }


SHAPES = {
    "qwen2.5-0.5b": Shape(896, 24, 14, 2, 64, 4864, 151936, qkv_bias=True),
    "tinyllama-1.1b": Shape(2048, 22, 32, 4, 64, 5632, 32000),
    "llama-3.1-8b": Shape(4096, 32, 32, 8, 128, 14336, 128256, rotary_base=500000.0),
    "tiny": Shape(64, 2, 4, 2, 16, 96, 256, qkv_bias=True),
}


def random_weight(rng: np.random.Generator, rows: int, features: int, bits: int, block: int) -> qcore.QuantizedTensor:
    """Make a weight [rows, features] of random codes."""
    low, high = -(2 ** (bits - 1)) + 1, 2 ** (bits - 1)
    codes = rng.integers(low, high, (rows, features), dtype=np.int8)
    scales = np.full((rows, -(-features // block)), 2.0 ** -(bits + 3), np.float32)  # exact in float16
    return qcore.QuantizedTensor.from_parts(codes, scales, bits=bits, block_size=block)


def layer_weights(rng: np.random.Generator, shape: Shape, bits: int, block: int) -> list[qcore.QuantizedTensor]:
    """Make the weights of one layer, in the order of :attr:`Shape.products`."""
    return [random_weight(rng, *size, bits, block) for size in shape.products.values()]


def make_layer(shape: Shape, weights: Sequence[Any]) -> decoder.Layer:
    """Make a layer of its weights, with norms of ones."""
    norm = np.ones(shape.hidden_size, np.float32)
    bias = np.zeros(shape.products["qkv"][0], np.float32) if shape.qkv_bias else None
    return decoder.Layer(*weights, input_norm=norm, mlp_norm=norm, qkv_bias=bias)


def make_decoder(
    shape: Shape, layers: Sequence[decoder.Layer], head: Any, capacity: int, compute: str, **options: Any
) -> decoder.Decoder:
    """Make a decoder of its layers whose caches may hold ``capacity`` positions."""
    return decoder.Decoder(
        list(layers),
        hidden_size=shape.hidden_size,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        intermediate_size=shape.intermediate_size,
        compute=compute,
        rotary=[rotary_table(shape, capacity)],
        final_norm=np.ones(shape.hidden_size, np.float32),
        head=head,
        **options,
    )


def rotary_table(shape: Shape, positions: int) -> tuple[Any, Any]:
    """Return cosines and sines, float32 [positions, head size]."""
    size = shape.head_size
    angles = np.arange(positions)[:, None] * shape.rotary_base ** (-np.arange(0, size, 2) / size)
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
