"""AWQ weights for the tests, and what they mean: element by element, from the positions of the bits in the layout."""

import numpy as np

NIBBLE_OF_COLUMN = (0, 4, 1, 5, 2, 6, 3, 7)


def make(k, n, group_size, seed=0, scales=None):
    """(qweight, scales, qzeros) of random bits; scales of both signs, subnormal and large ones among them."""
    rng = np.random.default_rng(seed)

    def words(rows):
        return rng.integers(-(2**31), 2**31, (rows, n // 8), dtype=np.int64).astype(np.int32)

    groups = k // group_size
    if scales is None:
        scales = (rng.standard_normal((groups, n)) * 10.0 ** rng.integers(-8, 4, (groups, n))).astype(np.float16)
    return words(k), scales, words(groups)


def ordinary_scales(k, n, group_size, seed=0):
    return np.random.default_rng(seed).uniform(0.001, 0.01, (k // group_size, n)).astype(np.float16)


def unpack(words):
    """int [rows, N] of int32 [rows, N/8]."""
    rows, columns = words.shape
    out = np.empty((rows, 8 * columns), np.int64)
    for row in range(rows):
        for n in range(8 * columns):
            word = int(words[row, n // 8]) & 0xFFFFFFFF
            out[row, n] = word >> (4 * NIBBLE_OF_COLUMN[n % 8]) & 15
    return out


def exact(qweight, scales, qzeros):
    """float64 [K, N], exact."""
    k, groups = len(qweight), len(scales)
    group = np.arange(k) // (k // groups)
    difference = unpack(qweight) - unpack(qzeros)[group]
    with np.errstate(invalid="ignore"):
        return difference * scales.astype(np.float64)[group]


def dequantize(qweight, scales, qzeros):
    """float16 [K, N]: the exact products, rounded once."""
    with np.errstate(over="ignore"):
        return exact(qweight, scales, qzeros).astype(np.float16)
