"""qcore.linear, through its public interface."""

from __future__ import annotations

from functools import cache

import numpy as np

import qcore
from qcore import _options
from qcore._options import Compute
from qcore.formats import gguf_blocks

from ..implementation import OURS, Array, Bound, Built, Implementation, Scheme, Unavailable, copies_for
from .baselines.ggml import FORMATS, quantized
from .baselines.ggml_library import ggml
from .weight import Weight

_COMPUTE = {
    "int8": ("int8 per block", "int8"),
    "int8_asym": ("int8 per block, offset", "int8"),
    "int16": ("int16 per block", "int8"),
    "float": ("fp32", "fp32"),
}
_CHECKED_ROWS, _CHECKED_CHANNELS = 4, 64
_ENCODED = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs", "mxfp4")
"""Formats of ggml whose bytes a weight keeps."""


def implementations(weight: Weight, rotated_bytes: int) -> list[Implementation]:
    """Yield each block size with int8 activations; all other forms of compute and offsets at g = 64.

    Codes minimize each block's squared error, as the peers' conversions try to in their ways, and scales are fp16 as
    theirs are; once, at g = 32, where they weigh most, scales are fp32.
    """

    @cache  # a search of some seconds
    def quantized(bits: int, block_size: int, scheme: _options.Scheme, scale_dtype: str) -> qcore.QuantizedTensor:
        return qcore.quantize(
            weight.values, bits=bits, block_size=block_size, scheme=scheme, method="mse", scale_dtype=scale_dtype
        )

    # Each form of compute has its own: it would find in the cache what the one before it has just read.
    def copies(bits: int, block_size: int, scheme: _options.Scheme, scale_dtype: str) -> list[qcore.QuantizedTensor]:
        one = quantized(bits, block_size, scheme, scale_dtype)
        parts = one.codes(), one.scales(), None if scheme == "symmetric" else one.offsets()
        count = copies_for(one.nbytes, rotated_bytes)
        return [qcore.QuantizedTensor.from_parts(*parts, bits=bits, block_size=block_size) for _ in range(count)]

    def implementation(
        bits: int, block_size: int, compute: Compute, scheme: _options.Scheme, scale_dtype: str = "float16"
    ) -> Implementation:
        def build() -> Built:
            weights = copies(bits, block_size, scheme, scale_dtype)
            row = np.zeros((1, weight.k), np.float32)
            for one in weights:  # what a weight computes at its first use is not part of a call
                qcore.linear(row, one, compute=compute)
            return Built(weights[0].nbytes, len(weights), lambda x: _bind(x, weights, compute))

        activations, arithmetic = _COMPUTE[compute]
        asymmetric = scheme == "asymmetric"
        form = f"g{block_size}{' asym' if asymmetric else ''}{' fp32 scales' if scale_dtype == 'float32' else ''}"
        name = f"{OURS} {bits}b {form} {compute}"
        described = Scheme(bits, activations, arithmetic, block_size, asymmetric)  # type: ignore[arg-type]
        return Implementation(name, OURS, described, build)

    made = []
    for bits in (4, 8):
        made += [implementation(bits, block_size, "int8", "symmetric") for block_size in (32, 64, 128)]
        made.append(implementation(bits, 32, "int8", "symmetric", "float32"))
        made.append(implementation(bits, 64, "int8", "asymmetric"))
        others: tuple[Compute, ...] = ("int8_asym", "int16", "float")
        made += [implementation(bits, 64, compute, "symmetric") for compute in others]
    try:
        ggml()
    except Unavailable:  # its quantizer makes the bytes
        return made
    return made + [_encoded(weight, rotated_bytes, name) for name in _ENCODED if weight.k % FORMATS[name][5] == 0]


def _encoded(weight: Weight, rotated_bytes: int, name: str) -> Implementation:
    """Return int8 products with the bytes that ggml's own quantizer makes."""
    _, bits, block_size, offsets, *_ = FORMATS[name]

    def build() -> Built:
        one = gguf_blocks.tensor_of(name.upper(), quantized(weight, name), name)
        weights = [one, *(qcore.concatenate([one]) for _ in range(copies_for(one.nbytes, rotated_bytes) - 1))]
        return Built(one.nbytes, len(weights), lambda x: _bind(x, weights, "int8"))

    scheme = Scheme(bits, *_COMPUTE["int8"], block_size, offsets)  # type: ignore[arg-type]
    return Implementation(f"{OURS} {name} int8", OURS, scheme, build)


def _bind(x: Array, weights: list[qcore.QuantizedTensor], compute: Compute) -> Bound:
    out = np.empty((len(x), weights[0].shape[0]), np.float32)

    def run(copy: int) -> object:
        return qcore.linear(x, weights[copy], compute=compute, out=out)

    def result() -> Array:
        run(0)
        return out

    run(0)
    return Bound(run, result, lambda: _same_as_reference(x, weights[0], compute), qcore.last_kernel("linear"))


def _same_as_reference(x: Array, weight: qcore.QuantizedTensor, compute: Compute) -> bool:
    """Return whether sampled rows and channels of a result have the reference kernel's bits."""
    n = weight.shape[0]
    rows = np.unique(np.linspace(0, len(x) - 1, _CHECKED_ROWS).astype(int))
    channels = np.unique(np.linspace(0, n - 1, _CHECKED_CHANNELS).astype(int))
    part = qcore.concatenate([weight.slice_rows(int(channel), int(channel) + 1) for channel in channels])
    with qcore.force_kernel("linear", "reference"):
        expected = qcore.linear(x[rows], part, compute=compute)
    return bool(np.array_equal(qcore.linear(x, weight, compute=compute)[rows][:, channels], expected))
