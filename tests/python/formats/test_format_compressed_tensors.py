"""Layers of compressed-tensors, against the layout's own words and, where it is installed, the package."""

import sys

import numpy as np
import pytest

import qcore
from qcore import formats

N, K = 24, 96


def packed(codes, bits, axis=1):
    """Return int32 words of signed codes, lowest bits first along an axis, each plus half the range."""
    codes = codes if axis else codes.T
    unsigned = (codes.astype(np.int64) + (1 << (bits - 1))).astype(np.uint64)
    per_word = 32 // bits
    padded = np.pad(unsigned, [(0, 0), (0, -unsigned.shape[1] % per_word)])
    words = np.zeros((len(padded), padded.shape[1] // per_word), np.uint64)
    for place in range(per_word):
        words |= padded[:, place::per_word] << np.uint64(place * bits)
    words = words.astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(words if axis else words.T)


def layer(bits, blocks, symmetric, k=K, seed=0):
    rng = np.random.default_rng(seed)
    middle = 1 << (bits - 1)
    codes = rng.integers(-middle, middle, (N, k)).astype(np.int8)
    scales = (rng.random((N, blocks)) * 0.01 + 0.001).astype(np.float16)
    zeros = np.zeros((N, blocks), np.int8) if symmetric else rng.integers(-3, 4, (N, blocks)).astype(np.int8)
    size = -(-k // blocks)
    wide = [np.repeat(each.astype(np.float32), size, axis=1)[:, :k] for each in (zeros, scales)]
    return codes, scales, None if symmetric else zeros, (codes - wide[0]) * wide[1]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_words(bits, blocks, symmetric):
    codes, scales, zeros, values = layer(bits, blocks, symmetric)
    words = None if zeros is None else packed(zeros, bits, axis=0)
    weight = formats.from_compressed_tensors(packed(codes, bits), scales, words, bits=bits)
    assert np.array_equal(weight.dequantize(), values)
    assert (weight.bits, weight.block_size) == (bits, K // blocks)
    assert weight.scheme == ("symmetric" if symmetric else "asymmetric")


def test_sizes_that_fill_no_word():
    codes, scales, _, values = layer(4, 1, True, k=K - 3)
    weight = formats.from_compressed_tensors(packed(codes, 4), scales, bits=4, shape=np.array([N, K - 3]))
    assert np.array_equal(weight.dequantize(), values)


@pytest.mark.parametrize("symmetric", [True, False])
def test_int8_matrices(symmetric):
    codes, scales, zeros, values = layer(8, 1, symmetric)
    weight = formats.from_compressed_tensors(codes, scales, zeros, bits=8)
    assert np.array_equal(weight.dequantize(), values)


def test_one_scale_for_all():
    codes = layer(8, 1, True)[0]
    weight = formats.from_compressed_tensors(codes, np.float32([0.25]), bits=8)
    assert np.array_equal(weight.dequantize(), codes * np.float32(0.25))


def test_groups_in_another_order():
    codes, scales, _, _ = layer(4, 3, True)
    g_idx = np.random.default_rng(1).permutation(np.arange(K) // 32).astype(np.int32)
    weight = formats.from_compressed_tensors(packed(codes, 4), scales, bits=4, g_idx=g_idx, block_size=32)
    assert isinstance(weight, qcore.ReorderedTensor)
    assert np.array_equal(weight.dequantize(), codes * scales.astype(np.float32)[:, g_idx])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "bits is 3, expected one of 4, 8"),
        ({"weight": np.zeros((N, K), np.float32)}, "weight has dtype float32, expected int32"),
        ({"scales": np.ones((N + 1, 3), np.float16)}, r"scales has shape \[25, 3\], expected \[24, P\]"),
        ({"scales": np.full((N, 3), np.inf, np.float16)}, "scales has inf at index"),
        ({"shape": (N, K + 1)}, r"shape is \[24, 97\], expected \[24, K\]"),
        ({"zero_points": np.zeros((N, 2), np.int8)}, r"zero_points has shape \[24, 2\], expected \[24, 3\]"),
        ({"block_size": 64}, "block_size is 64, expected one that gives P = 3"),
    ],
)
def test_what_is_refused(change, message):
    codes, scales, _, _ = layer(4, 3, True)
    arguments = {"weight": packed(codes, 4), "scales": scales, "bits": 4} | change
    with pytest.raises(qcore.QcoreError, match=message):
        formats.from_compressed_tensors(arguments.pop("weight"), arguments.pop("scales"), **arguments)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_packages_own_words(bits):
    torch = pytest.importorskip("torch")
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes, scales, _, values = layer(bits, 3, True)
    words = helpers.pack_to_int32(torch.from_numpy(codes), bits)
    assert np.array_equal(words.numpy(), packed(codes, bits))
    weight = formats.from_compressed_tensors(words, torch.from_numpy(scales), bits=bits)
    assert np.array_equal(weight.dequantize(), values)


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float32")])
def test_zero_points_and_scales_stay(dtype, kind, monkeypatch):
    """Weights of one model have one encoding: scales in bfloat16 stay so where float16 holds them, too."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = np.random.default_rng(0).integers(-8, 8, (16, 1024)).astype(np.int8)
    zeros = np.random.default_rng(1).integers(-8, 8, (16, 8)).astype(np.int8)
    scales = (
        np.random.default_rng(2)
        .uniform(0.01, 0.02, (16, 8))
        .astype(getattr(ml_dtypes, dtype, dtype))
        .astype(np.float32)
    )
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    given = scales.astype(np.float16) if dtype == "float16" else scales
    weight = formats.from_compressed_tensors(codes, given, zeros, bits=4)
    assert weight.encoding == qcore.WeightEncoding(4, kind, "uint4 zero points", zero=8)
    wide = np.repeat(scales.astype(np.float64), 128, axis=1) * (codes - np.repeat(zeros.astype(int), 128, axis=1))
    assert np.array_equal(weight.dequantize(), wide.astype(np.float32))
    assert weight.bits_per_weight == 4 + (4 + np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize * 8) / 128
