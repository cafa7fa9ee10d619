"""Shared by the tests of static int8: kernels, an oracle in NumPy, calls of one kernel."""

import os
import platform

import conv_oracle
import numpy as np

import qcore

CPU_KERNELS = [row.name for row in qcore.kernels("static") if row.device == "cpu" and row.available]
RANGES = {"int8": (-128, 127), "uint8": (0, 255)}

# Codes of weights, from -PEER_LIMIT to PEER_LIMIT - 1, that ONNX Runtime and oneDNN multiply exactly: without VNNI they
# add two products of unsigned by signed bytes in 16 bits, which saturate with more than 7 bits. A cap on qcore's
# instruction set says nothing of the processor.
_saturates = (
    platform.machine() in ("x86_64", "AMD64")
    and "QCORE_ISA" not in os.environ
    and not any("vnni" in isa for isa in qcore.info()["isa"])
)
PEER_LIMIT = 64 if _saturates else 128


def requantize(acc, multiplier, y_zero_point, y_dtype, clamp=None):
    """Return codes of exact int64 sums [..., N]."""
    assert np.abs(acc).max(initial=0) < 2**31
    scaled = acc.astype(np.float32) * multiplier
    lo, hi = RANGES[y_dtype]
    if clamp is not None:
        lo, hi = max(lo, clamp[0]), min(hi, clamp[1])
    return np.clip(np.rint(scaled.astype(np.float64)) + y_zero_point, lo, hi).astype(y_dtype)


def multiplier(x_scale, w_scale, y_scale):
    return np.float32(x_scale) * np.asarray(w_scale, np.float32) / np.float32(y_scale)


def conv2d(x, x_scale, x_zero_point, weight, w_scale, y_scale, y_zero_point, bias=None, *, clamp=None, w_zero_point=0,
           y_dtype=None, stride=1, padding=0, dilation=1, groups=1):  # fmt: skip
    """Compute static.qconv2d from its definition, sums in float64, which holds them exactly."""
    co, per_group, *kernel = weight.shape
    ho, wo = conv_oracle.output_size(x.shape, kernel, stride, padding, dilation)
    real = x.astype(np.float64) - x_zero_point
    w = weight.astype(np.float64) - w_zero_point
    acc = np.zeros((len(x) * ho * wo, co))
    taps = [(i, j) for i in range(kernel[0]) for j in range(kernel[1])]
    for (i, j), (pixels, _) in zip(taps, conv_oracle.windows(real, kernel, stride, padding, dilation), strict=True):
        for group in range(groups):
            columns = slice(group * (co // groups), (group + 1) * (co // groups))
            acc[:, columns] += pixels[:, group * per_group : (group + 1) * per_group] @ w[columns, :, i, j].T
    acc = acc.astype(np.int64) + (0 if bias is None else bias.astype(np.int64))
    m = multiplier(x_scale, w_scale, y_scale)
    y = requantize(acc, m, y_zero_point, y_dtype or str(x.dtype), clamp)
    return y.reshape(len(x), ho, wo, co).transpose(0, 3, 1, 2)


def linear(x, x_scale, x_zero_point, weight, w_scale, y_scale, y_zero_point, bias=None, *, clamp=None, w_zero_point=0,
           y_dtype=None):  # fmt: skip
    """Compute static.qlinear from its definition."""
    acc = (x.astype(np.float64) - x_zero_point) @ (weight.astype(np.float64) - w_zero_point).T
    acc = acc.astype(np.int64) + (0 if bias is None else bias.astype(np.int64))
    return requantize(acc, multiplier(x_scale, w_scale, y_scale), y_zero_point, y_dtype or str(x.dtype), clamp)


def run(kernel, function, *arguments, **options):
    """Run a layer of qcore.static with one kernel and check that it was this one that ran."""
    with qcore.force_kernel("static", kernel):
        y = function(*arguments, **options)
    if y.size:
        assert qcore.last_kernel("static") == kernel
    return y


def codes(rng, shape, dtype):
    lo, hi = RANGES[str(np.dtype(dtype))]
    return rng.integers(lo, hi + 1, shape).astype(dtype)
