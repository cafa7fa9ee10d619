"""NF4, FP4 and LLM.int8() of bitsandbytes, against the formulas; the package itself is in interop/."""

import numpy as np
import pytest

import qcore
from qcore import formats

N, K = 6, 128
NF4 = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0]
NF4 += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
TABLES = {"nf4": np.array(NF4), "fp4": np.array(FP4 + [-each for each in FP4])}
ERRORS = {"nf4": 0.0039, "fp4": 0.0032}


def layer(quant_type, size=64, seed=0):
    """Return the packed weight, absmax and the values [N, K] in float64."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (N, K))
    absmax = rng.uniform(0.1, 2, N * K // size).astype(np.float32)
    packed = (codes[:, 0::2] << 4 | codes[:, 1::2]).astype(np.uint8).reshape(-1, 1)
    values = TABLES[quant_type][codes] * np.repeat(absmax.astype(np.float64), size).reshape(N, K)
    return packed, absmax, values


def read(packed, absmax, **options):
    return formats.from_bitsandbytes_4bit(packed, absmax, **({"quant_type": "nf4", "shape": (N, K)} | options))


@pytest.mark.parametrize("quant_type", TABLES)
@pytest.mark.parametrize("size", [32, 64, 128])
def test_four_bits(quant_type, size):
    packed, absmax, values = layer(quant_type, size)
    weight = read(packed, absmax, quant_type=quant_type, block_size=size)
    assert (weight.shape, weight.bits, weight.block_size) == ((N, K), 4, size)
    error = np.abs(weight.dequantize() - values) / np.repeat(absmax, size).reshape(N, K)
    assert error.max() <= ERRORS[quant_type]
    if quant_type == "fp4":
        smallest = np.abs(values) / np.repeat(absmax, size).reshape(N, K) < 0.1
        assert error[~smallest].max() <= 2.0**-22
    else:
        assert np.sqrt(np.mean(error**2)) <= 0.002


def test_double_quantized():
    packed, _, _ = layer("nf4")
    rng = np.random.default_rng(1)
    table, outer = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32), np.array([0.3], np.float32)
    numbers, offset = rng.integers(0, 256, N * K // 64).astype(np.uint8), 1.7
    weight = read(packed, numbers, nested_absmax=outer, nested_quant_map=table, nested_offset=offset)
    assert weight == read(packed, table[numbers] * outer[0] + np.float32(offset))


def test_int8():
    rng = np.random.default_rng(2)
    codes, rows = rng.integers(-128, 128, (N, K)).astype(np.int8), rng.uniform(0.1, 2, N).astype(np.float32)
    weight = formats.from_bitsandbytes_int8(codes, rows)
    assert (weight.bits, weight.block_size, weight.scheme) == (8, K, "symmetric")
    expected = codes * rows[:, None].astype(np.float64) / 127
    assert (np.abs(weight.dequantize() - expected) <= 2.0**-22 * np.abs(expected)).all()
    for change, message in [
        ((codes.view(np.uint8), rows), "weight has dtype uint8, expected int8"),
        ((codes[0], rows), r"weight has shape \[128\], expected a matrix \[N, K\]"),
        ((codes, rows[:2]), r"scb has shape \[2\], expected \[6\], which is N"),
        ((codes, rows.astype(np.float16)), "scb has dtype float16, expected float32"),
        ((codes, rows * np.float32(np.inf)), "scb has inf at index"),
    ]:
        with pytest.raises(qcore.QcoreError, match=f"^from_bitsandbytes_int8: {message}"):
            formats.from_bitsandbytes_int8(*change)


NESTED = {"nested_absmax": np.ones(1, np.float32), "nested_quant_map": np.ones(256, np.float32)}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda w, a: (w[:-1], a), {}, r"weight has shape \[383, 1\], expected 384 bytes for \[6, 128\]"),
        (lambda w, a: (w.view(np.int8), a), {}, "weight has dtype int8, expected uint8"),
        (lambda w, a: (w, a[:3]), {}, r"absmax has shape \[3\], expected \[12\], which is N \* K / block_size"),
        (lambda w, a: (w, a.astype(np.float64)), {}, "absmax has dtype float64, expected float32"),
        (lambda w, a: (w, a * np.float32(np.nan)), {}, r"absmax has nan at index \[0\]"),
        (lambda w, a: (w, a), NESTED, "absmax has dtype float32, expected uint8 with nested_absmax"),
        (lambda w, a: (w, a.astype(np.uint8)), {}, "absmax has dtype uint8 and nested_absmax is missing"),
        (
            lambda w, a: (w, a.astype(np.uint8)),
            NESTED | {"nested_absmax": np.ones(3, np.float32)},
            r"nested_absmax has shape \[3\], expected \[1\]",
        ),
        (
            lambda w, a: (w, a.astype(np.uint8)),
            NESTED | {"nested_quant_map": np.ones(16, np.float32)},
            r"nested_quant_map has shape \[16\], expected \[256\]",
        ),
        (lambda w, a: (w, a), {"quant_type": "af4"}, "quant_type is 'af4', expected one of 'nf4', 'fp4'"),
        (lambda w, a: (w, a), {"block_size": 96}, "block_size is 96 and K is 128, expected a divisor of K"),
        (lambda w, a: (w, a), {"shape": (N,)}, r"shape is \[6\], expected N and K"),
    ],
)
def test_bad_arguments(change, options, message):
    packed, absmax, _ = layer("nf4")
    with pytest.raises(qcore.QcoreError, match=f"^from_bitsandbytes_4bit: {message}"):
        read(*change(packed, absmax), **options)
