"""Decoder-only transformers on quantized weights: the operators between the matrix products, and stacks of layers.

Shape letters: B sequences, T tokens of each in a call, H hidden size, Hq query heads, Hkv key and value heads, D head
size, R rotary size, I intermediate size, C capacity of a cache, V vocabulary size. Arithmetic is in float32, and
results are rounded once to the output's dtype.
"""

from qcore.decoder.cache import Caches, KeyValueCache
from qcore.decoder.operators import (
    ACTIVATIONS,
    attention,
    gated_activation,
    gated_activation_quantize,
    rms_norm,
    rms_norm_quantize,
    rotary_embedding,
    soft_cap,
    write_cache,
)
from qcore.decoder.stack import Decoder, Layer

__all__ = [
    "ACTIVATIONS",
    "Caches",
    "Decoder",
    "KeyValueCache",
    "Layer",
    "attention",
    "gated_activation",
    "gated_activation_quantize",
    "rms_norm",
    "rms_norm_quantize",
    "rotary_embedding",
    "soft_cap",
    "write_cache",
]
