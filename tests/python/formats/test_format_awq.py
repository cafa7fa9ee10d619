"""AWQ's two layouts, against the formulas spelled out bit by bit."""

import numpy as np
import pytest

import qcore
from qcore import formats

PLACE = {0: 0, 1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3, 7: 7}
"""Nibble of each of a word's eight columns."""


def nibble(word, place):
    return (int(word) & 0xFFFFFFFF) >> (4 * place) & 15


def arrays_of(k=48, n=24, blocks=3, seed=0):
    rng = np.random.default_rng(seed)
    qweight = rng.integers(-(2**31), 2**31, (k, n // 8)).astype(np.int32)
    qzeros = rng.integers(-(2**31), 2**31, (blocks, n // 8)).astype(np.int32)
    scales = (rng.standard_normal((blocks, n)) * 0.05).astype(np.float16)
    scales[0, :4] = [0.0, -0.0, 6e-8, 65504.0]
    return qweight, scales, qzeros


def value_of(qweight, scales, qzeros, n, k):
    g = qweight.shape[0] // scales.shape[0]
    u = nibble(qweight[k, n // 8], PLACE[n % 8])
    z = nibble(qzeros[k // g, n // 8], PLACE[n % 8])
    return (u - z) * float(scales[k // g, n])


def gemv_arrays(k, n, g, width, seed=0):
    rng = np.random.default_rng(seed)
    qweight = rng.integers(-(2**31), 2**31, (n, k // 8)).astype(np.int32)
    qzeros = rng.integers(-(2**31), 2**31, (n, width)).astype(np.int32)
    return qweight, rng.standard_normal((n, 8 * width)).astype(np.float16), qzeros


def gemv_value(qweight, scales, qzeros, g, n, k):
    u, z = nibble(qweight[n, k // 8], k % 8), nibble(qzeros[n, k // g // 8], k // g % 8)
    return (u - z) * float(scales[n, k // g])


def test_every_value_is_the_formats_own():
    arrays = arrays_of()
    weight = formats.from_awq(*arrays)
    assert (weight.shape, weight.bits, weight.block_size) == ((24, 48), 4, 16)
    expected = [[value_of(*arrays, n, k) for k in range(48)] for n in range(24)]
    assert np.array_equal(weight.dequantize().astype(np.float64), expected)


def test_round_trip():
    arrays = arrays_of()
    arrays[1][0, :2] = 0.5  # a scale of 0 loses its zero point, which has no effect
    for given, back in zip(arrays, formats.to_awq(formats.from_awq(*arrays)), strict=True):
        assert given.dtype == back.dtype
        assert np.array_equal(given, back)


@pytest.mark.parametrize(("k", "g", "width"), [(256, 128, 1), (1152, 128, 2), (64, 64, 2), (64, 32, 4), (1056, 32, 8)])
def test_gemv(k, g, width):
    arrays = gemv_arrays(k, 5, g, width)
    weight = formats.from_awq_gemv(*arrays, block_size=g)
    expected = [[gemv_value(*arrays, g, n, k_) for k_ in range(k)] for n in range(5)]
    assert np.array_equal(weight.dequantize().astype(np.float64), expected)
    back = formats.to_awq_gemv(weight)
    assert np.array_equal(back[0], arrays[0])
    assert formats.from_awq_gemv(*back, block_size=g) == weight


def test_native_weights_go_out_and_come_back():
    w = np.random.default_rng(1).standard_normal((16, 128), dtype=np.float32)
    weight = qcore.quantize(w, bits=4, block_size=64, scale_dtype="float16")
    assert np.array_equal(formats.from_awq(*formats.to_awq(weight)).dequantize(), weight.dequantize())
    again = formats.from_awq_gemv(*formats.to_awq_gemv(weight), block_size=64)
    assert np.array_equal(again.dequantize(), weight.dequantize())


@pytest.mark.parametrize("compute", ["float", "int8", "int8_asym", "int16"])
def test_linear(compute):
    arrays = arrays_of()
    arrays[1][0, 3] = 1.0
    weight = formats.from_awq(*arrays)
    x = np.random.default_rng(2).standard_normal((3, 48), dtype=np.float32)
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    error = np.linalg.norm(qcore.linear(x, weight, compute=compute) - exact) / np.linalg.norm(exact)
    assert error < (2e-2 if compute.startswith("int8") else 1e-4)


@pytest.mark.parametrize("compute", ["float", "int8", "int8_asym", "int16"])
@pytest.mark.parametrize("reader", ["gemm", "gemv"])
def test_the_files_bytes_and_the_bits_of_the_plain_weight(reader, compute):
    if reader == "gemm":
        weight = formats.from_awq(*arrays_of(k=1024, n=32, blocks=8))
    else:
        weight = formats.from_awq_gemv(*gemv_arrays(1024, 32, 128, 1), block_size=128)
    assert weight.encoding == qcore.WeightEncoding(4, "float16", "uint4 zero points", zero=8)
    assert weight.bits_per_weight == 4 + 20 / 128
    plain = weight.plain()
    assert (plain.bits, plain.encoding) == (4, None)
    x = np.random.default_rng(2).standard_normal((5, 1024), dtype=np.float32)
    for rows in (1, 5):
        got = qcore.linear(x[:rows], weight, compute=compute)
        assert np.array_equal(got, qcore.linear(x[:rows], plain, compute=compute), equal_nan=True)


def test_zero_points_that_are_all_in_the_middle_leave_a_plain_weight():
    qweight, scales, qzeros = arrays_of()
    weight = formats.from_awq(qweight, scales, np.full_like(qzeros, -0x77777778))
    assert (weight.encoding, weight.scheme, weight.bits) == (None, "symmetric", 4)


def test_arrays_of_other_libraries():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    arrays = arrays_of()
    assert formats.from_awq(*map(Foreign, arrays)) == formats.from_awq(*arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, s, z: (w.astype(np.int64), s, z), "from_awq: qweight has dtype int64, expected int32"),
        (lambda w, s, z: (w[0], s, z), r"from_awq: qweight has shape \[3\], expected a matrix \[K, N / 8\]"),
        (lambda w, s, z: (w, s.astype(np.float32), z), "from_awq: scales has dtype float32, expected float16"),
        (lambda w, s, z: (w, s[:, :8], z), r"scales has shape \[3, 8\], expected \[P, 24\]"),
        (lambda w, s, z: (w[:47], s, z), r"expected \[P, 24\] with P a divisor of K = 47"),
        (lambda w, s, z: (w, s[:0], z), r"scales has shape \[0, 24\]"),
        (lambda w, s, z: (w, s, z[:2]), r"qzeros has shape \[2, 3\], expected \[3, 3\]"),
        (lambda w, s, z: (w, s * np.float16(np.nan), z), r"scales has nan at index \[0, 0\], expected finite numbers"),
        (lambda w, s, z: ([1], s, z), "qweight is a list, expected an array"),
    ],
)
def test_bad_arrays(change, message):
    with pytest.raises(qcore.QcoreError, match=message):
        formats.from_awq(*change(*arrays_of()))


def test_bad_gemv_arrays():
    arrays = gemv_arrays(256, 5, 64, 2)
    with pytest.raises(qcore.QcoreValueError, match="block_size is 48, expected 32 or more and a divisor of K = 256"):
        formats.from_awq_gemv(*arrays, block_size=48)
    with pytest.raises(qcore.QcoreValueError, match="block_size is 16"):
        formats.from_awq_gemv(*arrays, block_size=16)
    with pytest.raises(qcore.QcoreValueError, match=r"qzeros has shape \[5, 2\], expected \[5, 1\]"):
        formats.from_awq_gemv(*arrays, block_size=128)


def test_what_the_format_cannot_hold():
    w = np.random.default_rng(1).standard_normal((16, 128), dtype=np.float32)
    for options, message in [
        ({"bits": 8}, "to_awq: weight has 8 bits, expected 4"),
        ({"scale_dtype": "float32"}, "to_awq: weight's scales has .* expected numbers that float16 holds exactly"),
        ({"scheme": "asymmetric"}, "to_awq: weight has scale .* the format has no other offsets"),
        ({"block_size": 96}, "to_awq: K is 128, expected a multiple of 96"),
    ]:
        weight = qcore.quantize(w, **({"bits": 4, "block_size": 64} | options))
        with pytest.raises(qcore.QcoreValueError, match=message):
            formats.to_awq(weight)
    with pytest.raises(qcore.QcoreValueError, match="to_awq: N is 12, expected a multiple of 8"):
        formats.to_awq(qcore.quantize(w[:12], bits=4, block_size=64))
    with pytest.raises(qcore.QcoreTypeError, match="to_awq: weight is a ndarray, expected a QuantizedTensor"):
        formats.to_awq(w)
