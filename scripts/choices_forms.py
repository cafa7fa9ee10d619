"""The formats and methods that scripts/choices.py measures: each turns a layer's weight into a QuantizedTensor.

`qcore.quantize` and the package gguf make what they can. Into the other formats weights are rounded to nearest here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import qcore
from qcore import WeightEncoding

Array = np.ndarray[Any, Any]
BLOCKS = (16, 32, 64, 128, 0)  # 0 is one block per row
METHODS = ("rtn", "mse", "awq", "gptq")
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the numbers of e2m1
CODEBOOKS = {
    "NF4": (-112, -78, -59, -44, -32, -21, -10, 0, 9, 18, 28, 38, 49, 63, 81, 112),
    "FP4": (0, 1, 80, 120, 40, 60, 20, 30, 0, -1, -80, -120, -40, -60, -20, -30),
    "IQ4_NL": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
}
GGUF = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")  # that the package gguf can make of floats


@dataclass(frozen=True)
class Layer:
    """Holds a weight [N, K] of a data set, inputs [M, K] that methods get, and others that the error is measured on."""

    weight: Array
    samples: Array
    tested: Array


@dataclass(frozen=True)
class Form:
    """Names one way to store weights.

    Attributes:
        name: of the format, for tables.
        method: "rtn", "mse", "awq" or "gptq".
        made: turns a layer and its Hessian into the stored weight.
        scales: dtype of the scales, where there is a choice.
    """

    name: str
    method: str
    made: Callable[[Layer, qcore.Hessian], qcore.QuantizedTensor]
    scales: str = ""


def blocks_of(weight: Array, size: int) -> Array:
    """Return [N, P, size], the last block filled up by repeating its last element."""
    missing = -weight.shape[1] % size
    return np.pad(weight, ((0, 0), (0, missing)), mode="edge").reshape(len(weight), -1, size)


def joined(codes: Array, features: int) -> Array:
    return np.ascontiguousarray(codes.reshape(len(codes), -1)[:, :features]).astype(np.uint8)


def nearest(values: Array, table: Array) -> Array:
    """Return the index of the nearest entry of a table for each value."""
    order = np.argsort(table, kind="stable")
    middles = (table[order][1:] + table[order][:-1]) / 2
    return order[np.searchsorted(middles, values)]


def quotient(values: Array, scale: Array) -> Array:
    """Return values over scales in float32, and 0 where a scale is 0."""
    wide = np.broadcast_to(scale.astype(np.float32), values.shape)
    return np.divide(values, wide, out=np.zeros_like(values), where=wide != 0)


def plain(bits: int, scheme: str, size: int, method: str, scales: str) -> Form:
    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        options: dict[str, Any] = {"bits": bits, "scheme": scheme, "method": method, "scale_dtype": scales}
        if method == "awq":
            options["samples"] = layer.samples
        if method == "gptq":
            options["hessian"] = hessian
        return qcore.quantize(layer.weight, block_size=size or layer.weight.shape[1], **options)

    return Form(f"{bits} bits, {scheme}, g = {size or 'K'}", method, made, scales)


def affine(bits: int, size: int) -> Form:
    """Round to nearest between a block's minimum and maximum, fp16 scales and minima: the form of MLX."""

    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        blocks = blocks_of(layer.weight, size)
        low = blocks.min(axis=2).astype(np.float16)
        scale = ((blocks.max(axis=2) - low.astype(np.float32)) / (2**bits - 1)).astype(np.float16)
        codes = np.rint(quotient(blocks - low[..., None].astype(np.float32), scale[..., None]))
        codes = joined(np.clip(codes, 0, 2**bits - 1), layer.weight.shape[1])
        encoding = WeightEncoding(bits=bits, offsets="float16")
        return qcore.QuantizedTensor.from_encoded(codes, scale, low, encoding=encoding, block_size=size)

    return Form(f"{bits} bits, minimum, g = {size}", "rtn", made)


def zero_points(bits: int, size: int) -> Form:
    """Round to nearest with integer zero points, fp16 scales: the form of AWQ and GPTQ files and of MatMulNBits."""

    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        blocks, most = blocks_of(layer.weight, size), 2**bits - 1
        low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
        scale = ((high - low) / most).astype(np.float16)
        zero = np.clip(np.rint(quotient(-low, scale)), 0, most).astype(np.uint8)
        steps = np.rint(quotient(blocks, scale[..., None])) + zero[..., None]
        codes = joined(np.clip(steps, 0, most), layer.weight.shape[1])
        encoding = WeightEncoding(bits=bits, offsets="uint4 zero points")
        return qcore.QuantizedTensor.from_encoded(codes, scale, zero, encoding=encoding, block_size=size)

    return Form(f"{bits} bits, zero points, g = {size}", "rtn", made)


def codebook(name: str, size: int, scales: str) -> Form:
    """Round to the nearest entry of a table of 16; the table's largest entry is the block's largest weight."""
    table = np.array(CODEBOOKS[name], np.float32)

    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        blocks = blocks_of(layer.weight, size)
        most = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)[..., 0]
        # IQ4_NL's largest entry is its first, so that a scale has the sign of the largest weight, turned.
        scale = (most / table[0] if name == "IQ4_NL" else np.abs(most) / table.max()).astype(scales)
        codes = joined(nearest(quotient(blocks, scale[..., None]), table), layer.weight.shape[1])
        encoding = WeightEncoding(bits=4, scales=scales, codebook=CODEBOOKS[name])  # type: ignore[arg-type]
        return qcore.QuantizedTensor.from_encoded(codes, scale, encoding=encoding, block_size=size)

    return Form(name, "rtn", made)


def nvfp4() -> Form:
    """Round to e2m1 with scales of e4m3 under one float of the tensor, as NVIDIA's recipe has it."""
    numbers = np.array([(1 + m / 8) * 2.0 ** (e - 7) if e else m / 8 * 2.0**-6 for e in range(16) for m in range(8)])
    numbers = numbers[:-1].astype(np.float32)  # the last one is NaN

    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        blocks = blocks_of(layer.weight, 16)
        most = np.abs(blocks).max(axis=2)
        whole = np.float32(most.max() / (6 * numbers[-1]))
        octets = nearest(most / 6 / whole, numbers).astype(np.uint8)
        scale = numbers[octets] * whole / 2
        table = np.array(E2M1, np.float32)
        codes = joined(nearest(quotient(blocks, scale[..., None]), table), layer.weight.shape[1])
        encoding = WeightEncoding(bits=4, scales="float8_e4m3fn", codebook=E2M1, tensor_scale=float(whole / 2))
        return qcore.QuantizedTensor.from_encoded(codes, octets, encoding=encoding, block_size=16)

    return Form("NVFP4", "rtn", made)


def of_gguf(name: str) -> Form:
    """Let the package gguf make blocks, and read them as a GGUF file's."""

    def made(layer: Layer, hessian: qcore.Hessian) -> qcore.QuantizedTensor:
        from gguf import GGMLQuantizationType, quants

        from qcore.formats import gguf_blocks

        raw = quants.quantize(layer.weight, GGMLQuantizationType[name])
        return gguf_blocks.tensor_of(name, raw, name)

    return Form(name, "rtn", made)


def forms() -> list[Form]:
    """Return all ways to store weights that are measured."""
    found = [
        plain(bits, scheme, size, method, scales)
        for bits in (4, 8)
        for scheme in ("symmetric", "asymmetric")
        for size in BLOCKS
        for method in METHODS
        for scales in ("float16", "float32")
    ]
    found += [affine(bits, size) for bits in (2, 3, 5, 6) for size in (32, 64, 128)]
    found += [zero_points(bits, size) for bits in (3, 4) for size in (32, 128)]
    found += [codebook("NF4", 64, "float32"), codebook("FP4", 64, "float32"), codebook("IQ4_NL", 32, "float16")]
    return [*found, nvfp4(), *(of_gguf(name) for name in GGUF)]
