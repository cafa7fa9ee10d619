"""MLX's affine layout, against the formula spelled out bit by bit; MLX itself is in interop/."""

import ml_dtypes
import numpy as np
import pytest

import qcore
from qcore import formats


def arrays_of(bits, n=5, k=128, g=32, dtype=np.float16, seed=0):
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 2**32, (n, k * bits // 32), dtype=np.uint64).astype(np.uint32)
    scales = (rng.standard_normal((n, k // g)) * 0.02).astype(dtype)
    return weight, scales, rng.standard_normal((n, k // g)).astype(dtype)


def value_of(weight, scales, biases, bits, g, n, k):
    """Return the values, exact in a Python float for parameters of 16 bits."""
    stream = sum(int(word) << (32 * i) for i, word in enumerate(weight[n]))
    u = stream >> (bits * k) & (2**bits - 1)
    return float(scales[n, k // g]) * u + float(biases[n, k // g])


def values_of(arrays, bits, g):
    n, k = arrays[0].shape[0], arrays[0].shape[1] * 32 // bits
    return np.array([[value_of(*arrays, bits, g, row, column) for column in range(k)] for row in range(n)])


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_value_is_the_formula_rounded_once(bits, dtype):
    arrays = arrays_of(bits, dtype=dtype)
    weight = formats.from_mlx(*arrays, bits=bits, block_size=32)
    assert (weight.shape, weight.block_size) == ((5, 128), 32)
    assert (weight.bits, weight.encoding is None) == (bits, bits == 8)
    assert weight.plain().bits == (4 if bits <= 3 else 8) or bits == 4
    assert np.array_equal(weight.dequantize(), values_of(arrays, bits, 32).astype(np.float32))


def test_four_bits_whose_offsets_would_be_rounded():
    weight, scales, biases = arrays_of(4)
    scales, biases = scales.astype(np.float32) * np.float32(1.0001), biases.astype(np.float32)
    exact = formats.from_mlx(weight, scales, biases, bits=4, block_size=32)
    assert (exact.bits, exact.plain().bits) == (4, 8)
    # The products of 24 and 4 bits and their sums with numbers near them fit a float64.
    assert np.array_equal(exact.dequantize(), values_of((weight, scales, biases), 4, 32).astype(np.float32))
    rounded = formats.from_mlx(weight, scales, biases, bits=4, block_size=32, exact=False)
    assert rounded.bits == 4
    assert np.abs(rounded.dequantize() - exact.dequantize()).max() <= 2.0**-22 * np.abs(biases).max()


def test_eight_bits_that_have_no_exact_form():
    weight, scales, biases = arrays_of(8)
    arrays = (weight, scales.astype(np.float32) * np.float32(1.0001), biases.astype(np.float32))
    with pytest.raises(qcore.QcoreValueError, match=r"from_mlx: its values are no exact float32 .* pass exact=False"):
        formats.from_mlx(*arrays, bits=8, block_size=32)
    rounded = formats.from_mlx(*arrays, bits=8, block_size=32, exact=False)
    exact = values_of(arrays, 8, 32)
    assert np.abs(rounded.dequantize() - exact).max() <= 2.0**-22 * np.abs(exact).max()
    small = (weight & 0x7F7F7F7F, *arrays[1:])  # codes that are int8 as they are
    kept = formats.from_mlx(*small, bits=8, block_size=32)
    assert np.array_equal(kept.dequantize(), values_of(small, 8, 32).astype(np.float32))


@pytest.mark.parametrize("bits", [4, 8])
def test_round_trip(bits):
    weight, scales, biases = arrays_of(bits)
    scales[:], biases[:] = 0.25, -3.0
    back = formats.to_mlx(formats.from_mlx(weight, scales, biases, bits=bits, block_size=32))
    for given, got in zip((weight, scales.astype(np.float32), biases.astype(np.float32)), back, strict=True):
        assert given.dtype == got.dtype
        assert np.array_equal(given, got)


def test_native_weights_go_out():
    w = np.random.default_rng(1).standard_normal((6, 128), dtype=np.float32)
    for bits in (4, 8):
        weight = qcore.quantize(w, bits=bits, block_size=64)
        again = formats.from_mlx(*formats.to_mlx(weight), bits=bits, block_size=64)
        assert np.array_equal(again.dequantize(), weight.dequantize())
    with pytest.raises(qcore.QcoreValueError, match=r"to_mlx: weight has scale .* to be a float32 number"):
        formats.to_mlx(qcore.quantize(w, bits=4, block_size=64, scheme="asymmetric", scale_dtype="float32"))
    with pytest.raises(qcore.QcoreValueError, match="to_mlx: K is 128, expected a multiple of 48"):
        formats.to_mlx(qcore.quantize(w, bits=4, block_size=48))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("compute", ["float", "int8", "int8_asym", "int16"])
def test_linear(bits, compute):
    weight = formats.from_mlx(*arrays_of(bits), bits=bits, block_size=32)
    x = np.random.default_rng(2).standard_normal((3, 128), dtype=np.float32)
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    error = np.linalg.norm(qcore.linear(x, weight, compute=compute) - exact) / np.linalg.norm(exact)
    assert error < (2e-2 if compute.startswith("int8") else 1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 7}, "from_mlx: bits is 7, expected one of 2, 3, 4, 5, 6, 8"),
        ({"bits": 3}, "from_mlx: block_size is 32, expected a divisor of K = 170"),
        ({"block_size": 0}, "from_mlx: block_size is 0, expected a divisor of K = 128"),
        ({"block_size": 64}, r"from_mlx: scales has shape \[5, 4\], expected \[5, 2\]"),
        ({"biases": np.ones((5, 3), np.float32)}, r"from_mlx: biases has shape \[5, 3\], expected \[5, 4\]"),
        ({"weight": np.ones((5, 16), np.float32)}, "from_mlx: weight has dtype float32, expected int32"),
        ({"scales": np.ones((5, 4))}, "from_mlx: scales has dtype float64, expected float32 or float16 or bfloat16"),
    ],
)
def test_bad_arguments(change, message):
    weight, scales, biases = arrays_of(4)
    options = {"weight": weight, "scales": scales, "biases": biases, "bits": 4, "block_size": 32} | change
    with pytest.raises(qcore.QcoreError, match=message):
        formats.from_mlx(**options)
