"""QuantizedTensor.dequantize: every kernel against the definition, which is held to the formula in float64."""

import functools

import numpy as np
import pytest

import qcore

DTYPES = ("float32", "float16", "bfloat16")
KERNELS = [row.name for row in qcore.kernels("dequantize") if row.available]
# Shape, block size, bits, scheme.
CASES = [
    ((1, 1), 1, 8, "symmetric"),
    ((0, 4), 4, 8, "symmetric"),
    ((17, 70), 32, 4, "asymmetric"),
    ((33, 257), 64, 8, "asymmetric"),
    ((5, 13), 3, 4, "symmetric"),
    ((3, 5000), 4096, 8, "symmetric"),
    ((20, 9, 3, 2), 4, 8, "asymmetric"),  # a row's channels lie apart
]


def weight_of(shape, g, bits, scheme):
    """Return rows of every size, down to subnormal numbers and up to what overflows float16."""
    rng = np.random.default_rng(3)
    size = 10.0 ** rng.integers(-44, 7, size=(shape[0], *[1] * (len(shape) - 1)))
    values = (rng.standard_normal(shape) * size).astype(np.float32)
    return qcore.quantize(values, bits=bits, block_size=g, scheme=scheme)


def dequantized_by(kernel, weight, dtype):
    with qcore.force_kernel("dequantize", kernel), np.errstate(over="ignore"):
        values = weight.dequantize(dtype)
    assert qcore.last_kernel("dequantize") == kernel
    return values


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_is_the_formula(case):
    weight, block = weight_of(*case), np.arange(case[0][1]) // case[1]
    spread = (slice(None), block, *[None] * (len(case[0]) - 2))
    scales, offsets = (part.astype(np.float64)[spread] for part in (weight.scales(), weight.offsets()))
    # A product of 24 and 8 bits is exact in float64, its sum with the offset is rounded there once more.
    expected = (scales * weight.codes() + offsets).astype(np.float32)
    np.testing.assert_array_max_ulp(dequantized_by("reference", weight, "float32"), expected, maxulp=1)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_gives_the_references_bits(kernel, dtype, case):
    weight = weight_of(*case)
    expected, got = dequantized_by("reference", weight, dtype), dequantized_by(kernel, weight, dtype)
    assert got.dtype == expected.dtype
    assert got.shape == weight.shape
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


@functools.cache
def large(bits, dtype):
    """Return a weight whose values in `dtype` take more than 8 MB, and these."""
    values = np.random.default_rng(4).standard_normal((2050, 2120), np.float32)
    weight = qcore.quantize(values, bits=bits, block_size=64, scheme="asymmetric")
    return weight, dequantized_by("reference", weight, dtype)


@pytest.mark.parametrize("offset", [0, 16, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kernel", KERNELS)
def test_results_beyond_the_caches_have_the_references_bits_in_memory_of_any_alignment(kernel, bits, dtype, offset):
    weight, expected = large(bits, dtype)
    memory = np.full(expected.nbytes + 128, 7, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    out = memory[begin : begin + expected.nbytes].view(dtype).reshape(expected.shape)
    with qcore.force_kernel("dequantize", kernel):
        assert weight.dequantize(out=out) is out
    np.testing.assert_array_equal(out.view(np.uint8), expected.view(np.uint8))
    assert (memory[:begin] == 7).all()
    assert (memory[begin + expected.nbytes :] == 7).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_out_may_have_any_strides(kernel):
    weight = weight_of((17, 70), 32, 4, "asymmetric")
    out = np.full((70, 34), 7, np.float16)
    with qcore.force_kernel("dequantize", kernel), np.errstate(over="ignore"):
        weight.dequantize(out=out[:, ::2].T)
    np.testing.assert_array_equal(out[:, ::2].T, dequantized_by("reference", weight, "float16"))
    assert (out[:, 1::2] == 7).all()


def test_errors_of_out():
    weight = weight_of((17, 70), 32, 4, "asymmetric")
    with pytest.raises(ValueError, match="dequantize: out and dtype are both given, expected at most one of them"):
        weight.dequantize("float32", out=np.empty((17, 70), np.float32))
    with pytest.raises(ValueError, match=r"dequantize: out has shape \[17, 71\], expected \[17, 70\]"):
        weight.dequantize(out=np.empty((17, 71), np.float32))
    with pytest.raises(TypeError, match="dequantize: out has dtype int32"):
        weight.dequantize(out=np.empty((17, 70), np.int32))
    with pytest.raises(TypeError, match="dequantize: out is a list"):
        weight.dequantize(out=[1])
