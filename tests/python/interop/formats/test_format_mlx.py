"""Weights of MLX, against MLX on the CPU."""

import mlx.core as mx
import numpy as np
import pytest

import qcore
from qcore import formats

mx.set_default_device(mx.cpu)


def quantized(bits, dtype, seed=0):
    w = np.random.default_rng(seed).standard_normal((6, 256), dtype=np.float32)
    return mx.quantize(mx.array(w).astype(dtype), group_size=64, bits=bits)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_equal_where_mlx_rounds_once(bits, dtype):
    """With parameters of 16 bits the product is exact in float32, so that MLX's sum is the only rounding."""
    weight, *parameters = quantized(bits, dtype)
    scales, biases = (each.astype(mx.float32) for each in parameters)
    got = formats.from_mlx(weight, scales, biases, bits=bits, block_size=64)
    expected = np.array(mx.dequantize(weight, scales, biases, group_size=64, bits=bits))
    assert np.array_equal(got.dequantize(), expected)
    if dtype == mx.float16:
        assert got == formats.from_mlx(weight, *parameters, bits=bits, block_size=64)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_float32_within_mlxs_second_rounding(bits):
    arrays = quantized(bits, mx.float32)
    got = formats.from_mlx(*arrays, bits=bits, block_size=64).dequantize()
    expected = np.array(mx.dequantize(*arrays, group_size=64, bits=bits))
    largest = (2**bits - 1) * np.abs(np.array(arrays[1])).max()
    assert np.abs(got - expected).max() <= 2.0**-23 * largest


@pytest.mark.parametrize("bits", [4, 8])
def test_mlx_reads_ours(bits):
    w = np.random.default_rng(1).standard_normal((6, 256), dtype=np.float32)
    weight = qcore.quantize(w, bits=bits, block_size=64, scale_dtype="float16")
    arrays = [mx.array(each) for each in formats.to_mlx(weight)]
    got = np.array(mx.dequantize(*arrays, group_size=64, bits=bits))
    assert np.array_equal(got, weight.dequantize())


def test_arrays_that_numpy_cannot_read():
    weight, scales, biases = quantized(4, mx.bfloat16)
    with pytest.raises(qcore.QcoreTypeError, match="from_mlx: scales is a array that NumPy can't read"):
        formats.from_mlx(weight, scales, biases, bits=4, block_size=64)
