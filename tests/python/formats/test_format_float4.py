"""Weights of e2m1 with scales of e8m0 or e4m3, of compressed-tensors and MLX, against the formulas."""

import ml_dtypes
import numpy as np
import pytest

import qcore
from qcore import formats

N, K = 6, 64
BLOCKS = {"mx": 32, "nv": 16}
GLOBAL_SCALE = np.float32(1234.567)


def arrays_of(kind, seed=0):
    """Return packed codes, scales and the values of e2m1 and of the scales, in float64."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (N, K // 2)).astype(np.uint8)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(N, K)
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    shape = (N, K // BLOCKS[kind])
    if kind == "mx":
        scales = rng.integers(0, 253, shape).astype(np.uint8)
        values = np.ldexp(1.0, scales.astype(np.int64) - 127)
    else:
        scales = rng.integers(0, 256, shape).astype(np.uint8)
        scales[scales & 0x7F == 0x7F] = 0
        values = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return packed, scales, numbers, np.repeat(values, BLOCKS[kind], axis=1)


def words(packed):
    return packed.view("<u4")


def test_mxfp4():
    packed, scales, numbers, values = arrays_of("mx")
    expected = (numbers * values).astype(np.float32)
    weight = formats.from_compressed_tensors_mxfp4(packed, scales)
    assert (weight.bits, weight.block_size, weight.scale_dtype) == (4, 32, "float8_e8m0fnu")
    assert np.array_equal(weight.dequantize(), expected)
    assert formats.from_compressed_tensors_mxfp4(packed, scales.view(ml_dtypes.float8_e8m0fnu)) == weight
    assert formats.from_mlx(words(packed), scales, block_size=32, mode="mxfp4") == weight


@pytest.mark.parametrize("global_scale", [1.0, 512.0, GLOBAL_SCALE])
def test_nvfp4(global_scale):
    packed, scales, numbers, values = arrays_of("nv")
    factor = np.array([global_scale], np.float32)
    exact = numbers * values / np.float64(factor[0])
    weight = formats.from_compressed_tensors_nvfp4(packed, scales.view(ml_dtypes.float8_e4m3fn), factor)
    assert (weight.bits, weight.block_size, weight.scale_dtype) == (4, 16, "float8_e4m3fn")
    error = np.abs(weight.dequantize() - exact)
    assert (error <= 2.0**-22 * np.abs(exact)).all()
    assert (error.max() == 0) == (global_scale != GLOBAL_SCALE)
    assert formats.from_compressed_tensors_nvfp4(packed, scales, factor) == weight


def test_nvfp4_of_mlx():
    packed, scales, numbers, values = arrays_of("nv")
    weight = formats.from_mlx(words(packed), scales, block_size=16, mode="nvfp4")
    assert np.array_equal(weight.dequantize(), (numbers * values).astype(np.float32))
    scaled = formats.from_mlx(words(packed), scales, block_size=16, mode="nvfp4", global_scale=GLOBAL_SCALE)
    exact = numbers * values * np.float64(GLOBAL_SCALE) / 2688
    assert (np.abs(scaled.dequantize() - exact) <= 2.0**-22 * np.abs(exact)).all()


@pytest.mark.parametrize("rows", [1, 5])
def test_linear(rows):
    packed, scales, _, _ = arrays_of("nv")
    weight = formats.from_compressed_tensors_nvfp4(packed, scales, np.ones(1, np.float32))
    x = np.random.default_rng(1).standard_normal((rows, K), dtype=np.float32)
    for compute in ("float", "int8"):
        got = qcore.linear(x, weight, compute=compute)
        assert np.array_equal(got, qcore.linear(x, weight.plain(), compute=compute))


def nan(scales, number):
    changed = scales.copy()
    changed[2, 1] = number
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, s: (w.astype(np.int8), s), "weight has dtype int8, expected uint8"),
        (lambda w, s: (w[0], s), r"weight has shape \[32\], expected a matrix \[N, K / 2\]"),
        (lambda w, s: (w[:, :15], s), r"weight has rows of 15 bytes, expected a multiple of 16"),
        (lambda w, s: (w, s[:, :1]), r"scales has shape \[6, 1\], expected \[6, 2\], which is \[N, K / 32\]"),
        (lambda w, s: (w, s.astype(np.float32)), "scales has dtype float32, expected float8_e8m0fnu or uint8"),
        (lambda w, s: (w, nan(s, 255)), "scales has 255, which is NaN in e8m0, in row 2, block 1, expected numbers"),
        (lambda w, s: (w[:0], s[:0]), r"weight has shape \[0, 32\], expected a matrix"),
    ],
)
def test_bad_mxfp4(change, message):
    with pytest.raises(qcore.QcoreError, match=f"^from_compressed_tensors_mxfp4: {message}"):
        formats.from_compressed_tensors_mxfp4(*change(*arrays_of("mx")[:2]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, s, g: (w, nan(s, 0xFF), g), "scales has a NaN of e4m3, in row 2, block 1, expected numbers"),
        (lambda w, s, g: (w, s, g.astype(np.float16)), "global_scale has dtype float16, expected float32"),
        (lambda w, s, g: (w, s, g * 0), "global_scale is 0.0, expected a positive number"),
        (
            lambda w, s, g: (w, s, g * -1),
            "global_scale is -1.0, expected a positive number",
        ),
        (lambda w, s, g: (w, s, np.ones(2, np.float32)), r"global_scale has shape \[2\], expected one number"),
        (
            lambda w, s, g: (w, s, g * np.float32(1e-45)),
            "global_scale gives scales the factor inf, expected a finite number",
        ),
        (lambda w, s, g: (w, s[:3], g), r"scales has shape \[3, 4\], expected \[6, 4\]"),
    ],
)
def test_bad_nvfp4(change, message):
    packed, scales = arrays_of("nv")[:2]
    with pytest.raises(qcore.QcoreError, match=f"^from_compressed_tensors_nvfp4: {message}"):
        formats.from_compressed_tensors_nvfp4(*change(packed, scales, np.ones(1, np.float32)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "mxfp8"}, "mode is 'mxfp8', expected one of 'affine', 'mxfp4', 'nvfp4'"),
        ({"block_size": 64}, "bits is 4 and block_size 64, expected 4 and 32 with mode='mxfp4'"),
        ({"bits": 8}, "bits is 8 and block_size 32, expected 4 and 32"),
        ({"biases": np.zeros((N, 2), np.float32)}, "biases are given, expected None with mode='mxfp4'"),
        ({"global_scale": GLOBAL_SCALE}, "global_scale is given, expected None with mode='mxfp4'"),
        ({"mode": "affine"}, "biases is missing, expected biases alone with mode='affine'"),
    ],
)
def test_bad_options_of_mlx(options, message):
    packed, scales = arrays_of("mx")[:2]
    with pytest.raises(qcore.QcoreError, match=f"^from_mlx: {message}"):
        formats.from_mlx(words(packed), scales, **({"block_size": 32, "mode": "mxfp4"} | options))
