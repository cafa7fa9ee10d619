"""Encoded weights of every kind, and what they mean, in NumPy from the definition of qcore.WeightEncoding."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

import qcore

E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
WIDTHS = {"uint4": 4, "uint6": 6, "uint8": 8, "uint4 zero points": 4, "uint8 zero points": 8}
FLOATS = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
}
ENCODINGS = {
    "Q2_K": qcore.WeightEncoding(2, "uint4", "uint4", super_block=16),
    "Q3_K": qcore.WeightEncoding(3, "uint6", zero=4, scale_zero=32, super_block=16),
    "Q4_K": qcore.WeightEncoding(4, "uint6", "uint6", super_block=8),
    "Q5_K": qcore.WeightEncoding(5, "uint6", "uint6", super_block=8),
    "Q6_K": qcore.WeightEncoding(6, "uint8", zero=32, scale_zero=128, super_block=16),
    "Q4_1": qcore.WeightEncoding(4, "float16", "float16"),
    "Q5_1": qcore.WeightEncoding(5, "float16", "float16"),
    "TQ2_0": qcore.WeightEncoding(2, "float16", zero=1),
    "IQ4_NL": qcore.WeightEncoding(4, "float16", codebook=IQ4),
    "IQ4_XS": qcore.WeightEncoding(4, "uint6", codebook=IQ4, scale_zero=32, super_block=8),
    "MXFP4": qcore.WeightEncoding(4, "float8_e8m0fnu", codebook=E2M1, tensor_scale=0.5),
    "NVFP4": qcore.WeightEncoding(4, "float8_e4m3fn", codebook=E2M1, tensor_scale=0.37),
    "AWQ": qcore.WeightEncoding(4, "float16", "uint4 zero points", zero=8),
    "GPTQ": qcore.WeightEncoding(8, "float16", "uint8 zero points", zero=128),
    "zero points": qcore.WeightEncoding(2, "float32", "uint8 zero points", zero=1),
    "bfloat16": qcore.WeightEncoding(3, "bfloat16", "bfloat16", zero=3),
    "float32": qcore.WeightEncoding(6, "float32", "float32", zero=128),
    "uint8 offsets": qcore.WeightEncoding(8, "bfloat16", "uint8", zero=128, super_block=3),
    "codebook of 3 bits": qcore.WeightEncoding(
        3, "float16", "uint4", codebook=tuple(range(-128, 128, 16)), super_block=1
    ),
}


@dataclass
class Encoded:
    """An encoded weight, the parts that it was made of, and its codes, scales and offsets by the definition."""

    weight: qcore.QuantizedTensor
    parts: dict
    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray


def numbers(rng, kind, shape):
    """Return random numbers of a parameter's type, as they are given, and as float32."""
    if kind in WIDTHS:
        raw = rng.integers(0, 1 << WIDTHS[kind], shape).astype(np.uint8)
        return raw, raw.astype(np.float32)
    if kind == "float8_e8m0fnu":
        raw = rng.integers(110, 140, shape).astype(np.uint8)
        return raw, raw.view(FLOATS[kind]).astype(np.float32)
    values = (np.minimum(rng.standard_normal(shape), 3) * np.exp(rng.standard_normal(shape))).astype(FLOATS[kind])
    if values.dtype.itemsize > 1:
        return values, values.astype(np.float32)
    return values.view(np.uint8), values.astype(np.float32)


def supers(rng, encoding, shape):
    values = rng.standard_normal((shape[0], -(-shape[1] // encoding.super_block))).astype(np.float16)
    return values, np.repeat(values.astype(np.float32), encoding.super_block, axis=1)[:, : shape[1]]


def make(encoding, n, k, g, seed=0):
    """Return a random encoded weight [n, k] in blocks of g."""
    rng = np.random.default_rng([seed, n, k, g])
    blocks = (n, -(-k // g))
    u = rng.integers(0, 1 << encoding.bits, (n, k)).astype(np.uint8)
    codes = u.astype(np.int64) - encoding.zero if encoding.codebook is None else np.array(encoding.codebook)[u]
    parts = {"codes": u}
    parts["scales"], scales = numbers(rng, encoding.scales, blocks)
    if encoding.scales in WIDTHS:
        parts["super_scales"], factors = supers(rng, encoding, blocks)
        scales = factors * (scales - np.float32(encoding.scale_zero))
    elif encoding.scales.startswith("float8"):
        scales = scales * np.float32(encoding.tensor_scale)
    offsets = np.zeros(blocks, np.float32)
    if encoding.offsets is not None:
        parts["offsets"], offsets = numbers(rng, encoding.offsets, blocks)
        if encoding.offsets.endswith("zero points"):
            offsets = scales * (np.float32(encoding.zero) - offsets)
        elif encoding.offsets in WIDTHS:
            parts["super_offsets"], factors = supers(rng, encoding, blocks)
            offsets = -(factors * offsets)
    weight = qcore.QuantizedTensor.from_encoded(**parts, encoding=encoding, block_size=g)
    return Encoded(weight, parts, codes, scales, offsets)
