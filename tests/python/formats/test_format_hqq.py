"""HQQ's packing, against the formulas; the package itself is in interop/."""

import numpy as np
import pytest

import qcore
from qcore import formats

N, K, G = 8, 60, 12


def pack(codes, bits):
    """Return W_q of codes [groups, size], by HQQ's definition."""
    if bits == 8:
        return codes.astype(np.uint8)
    parts, dtype = (10, np.int32) if bits == 3 else (8 // bits, np.uint8)
    rows = -(-len(codes) // parts)
    padded = np.zeros((rows * parts, codes.shape[1]), dtype)
    padded[: len(codes)] = codes
    out = np.zeros((rows, codes.shape[1]), dtype)
    for part in range(parts):
        out |= padded[part * rows : (part + 1) * rows] << dtype(bits * (parts - 1 - part))
    return out


def layer(bits, dtype=np.float16, *, integers=False, seed=0):
    """Return W_q, scale, zero and the values [N, K] in float64."""
    rng = np.random.default_rng(seed)
    groups = N * K // G
    codes = rng.integers(0, 1 << bits, (groups, G))
    scale = rng.uniform(0.01, 0.1, (groups, 1)).astype(dtype)
    zero = rng.uniform(0.5, (1 << bits) - 1, (groups, 1)).astype(dtype)
    zero = np.rint(zero) if integers else zero
    values = (codes - zero.astype(np.float64)) * scale.astype(np.float64)
    return pack(codes, bits), scale, zero, values.reshape(N, K)


def read(arrays, bits, /, **options):
    return formats.from_hqq(*arrays[:3], **({"bits": bits, "shape": (N, K), "block_size": G} | options))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("integers", [False, True])
def test_every_value_is_the_formula(bits, integers):
    arrays = layer(bits, integers=integers)
    weight = read(arrays, bits)
    assert (weight.shape, weight.bits, weight.block_size) == ((N, K), bits, G)
    assert np.array_equal(weight.dequantize(), arrays[3].astype(np.float32))
    if integers:
        assert weight.offset_dtype.endswith("zero points")


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_float32_parameters_need_a_rounding(bits):
    arrays = layer(bits, np.float32)
    with pytest.raises(qcore.QcoreValueError, match=r"^from_hqq: its values are no exact .* pass exact=False"):
        read(arrays, bits)
    weight = read(arrays, bits, exact=False)
    assert weight.bits == bits
    bound = 2.0**-23 * (2 << bits) * arrays[1].max()
    assert 0 < np.abs(weight.dequantize() - arrays[3]).max() <= bound


@pytest.mark.parametrize(
    ("bits", "change", "options", "message"),
    [
        (
            4,
            lambda w, s, z: (w[:-1], s, z),
            {},
            r"weight has shape \[19, 12\], expected \[20, 12\], which is \[G \* bits",
        ),
        (3, lambda w, s, z: (w.astype(np.int64), s, z), {}, "weight has dtype int64, expected int32"),
        (4, lambda w, s, z: (w.view(np.int8), s, z), {}, "weight has dtype int8, expected uint8"),
        (4, lambda w, s, z: (w, s[:-1], z), {}, r"scale has shape \[39, 1\], expected \[40, 1\]"),
        (4, lambda w, s, z: (w, s, z[:, :0]), {}, r"zero has shape \[40, 0\], expected \[40, 1\]"),
        (4, lambda w, s, z: (w, s * np.float16(np.nan), z), {}, "scale has nan at index"),
        (4, lambda w, s, z: (w, s, z), {"bits": 5}, "bits is 5, expected one of 2, 3, 4, 8"),
        (4, lambda w, s, z: (w, s, z), {"block_size": 7}, "block_size is 7, expected a divisor of K = 60"),
        (4, lambda w, s, z: (w, s, z), {"shape": (N, K, 1)}, r"shape is \[8, 60, 1\], expected N and K"),
        (2, lambda w, s, z: (w, s, z), {"shape": (1, 12)}, "weight: 1 groups, expected a multiple of 4 for 2 bits"),
    ],
)
def test_bad_arguments(bits, change, options, message):
    with pytest.raises(qcore.QcoreError, match=f"^from_hqq: {message}"):
        read(change(*layer(bits)[:3]), bits, **options)
