"""Shared by the tests of qcore.decoder: the operators in NumPy and float64, and a stack of layers made of them.

Written from the definitions in docs/decoder.md, not from the code.
"""

import math

import ml_dtypes
import numpy as np

import qcore

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
CACHE_DTYPES = ("float32", "float16", "bfloat16", "int8")
SPACING = {np.dtype(np.float32): 2**-23, np.dtype(np.float16): 2**-10, np.dtype(ml_dtypes.bfloat16): 2**-7}
"""Distance of neighboring numbers, relative to the lower one."""


def kernels(op):
    """Kernels of an operator that this machine has on the CPU, the reference last."""
    return [row.name for row in qcore.kernels(f"decoder_{op}") if row.device == "cpu" and row.available]


def bits(array):
    """Return an array's memory as unsigned integers, so that equal means the same bits."""
    array = np.ascontiguousarray(array)
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize])


def close(result, expected, *, ulps=2.0, absolute=0.0):
    """Whether each element is within `ulps` spacings of its dtype of the float64 expectation, or within `absolute`."""
    result64, expected = np.asarray(result, np.float64), np.asarray(expected, np.float64)
    bound = ulps * SPACING[np.dtype(result.dtype)] * np.abs(expected) + absolute
    return bool(np.all(np.abs(result64 - expected) <= bound))


def rms_norm(x, weight=None, eps=1e-6, offset=0.0):
    x = np.asarray(x, np.float64)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * (np.asarray(weight, np.float64) + offset)


def rotary_tables(positions, rotary, base=10000.0):
    angles = np.arange(positions)[:, None] * base ** (-np.arange(0, rotary, 2) / max(rotary, 1))
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotary_embedding(x, positions, cos, sin, layout="halves"):
    x = np.asarray(x, np.float64)
    rotary = cos.shape[1]
    c, s = (table.astype(np.float64)[positions][:, :, None, :] for table in (cos, sin))
    head, rest = x[..., :rotary], x[..., rotary:]
    if layout == "halves":
        turned = np.concatenate([-head[..., rotary // 2 :], head[..., : rotary // 2]], axis=-1)
    else:
        turned = np.stack([-head[..., 1::2], head[..., 0::2]], axis=-1).reshape(head.shape)
    return np.concatenate([head * c + turned * s, rest], axis=-1)


def activation(x, name):
    x = np.asarray(x, np.float64)
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu":
        return np.vectorize(lambda v: 0.5 * v * math.erfc(-v / math.sqrt(2)), otypes=[np.float64])(x)
    if name == "gelu_tanh":
        return x / (1 + np.exp(np.minimum(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), 700)))
    return np.maximum(x, 0)


def gated_activation(x, name):
    half = x.shape[-1] // 2
    return activation(x[..., :half], name) * np.asarray(x[..., half:], np.float64)


def attention(q, keys, values, past, *, first=None, scale=None, window=0, soft_cap=0.0):
    """keys and values [B, Hkv, C, D] in any dtype."""
    q, keys, values = (np.asarray(array, np.float64) for array in (q, keys, values))
    batch, tokens, heads, size = q.shape
    group = heads // keys.shape[1]
    y = np.zeros(q.shape)
    for b in range(batch):
        for t in range(tokens):
            position = int(past[b]) + t
            begin = max(0 if first is None else int(first[b]), position - window + 1 if window else 0)
            if begin > position:
                continue
            for h in range(heads):
                scores = (
                    keys[b, h // group, begin : position + 1] @ q[b, t, h] * (size**-0.5 if scale is None else scale)
                )
                if soft_cap:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                weights = np.exp(scores - scores.max())
                y[b, t, h] = weights @ values[b, h // group, begin : position + 1] / weights.sum()
    return y


def cached(cache):
    """Keys and values of a cache in float64."""
    arrays = []
    for array, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
        array = np.asarray(array, np.float64)
        arrays.append(array if scales is None else array * np.asarray(scales, np.float64)[..., None])
    return arrays


def quantized_head(x):
    """Codes and scale of one head of an int8 cache, in float32 arithmetic."""
    x = np.asarray(x, np.float32)
    largest = np.abs(x).max(initial=np.float32(0))
    if not np.isfinite(x).all():
        return np.zeros(x.shape, np.int8), np.float32(np.nan)
    scale = np.float32(largest / np.float32(127))
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.float32(1) / scale
    if not np.isfinite(factor):
        return np.zeros(x.shape, np.int8), scale
    return np.rint(x * factor).astype(np.int8), scale
