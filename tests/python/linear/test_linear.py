"""linear: every kernel of this machine against the oracle, bit for bit."""

import functools
import itertools
import math

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_calls import (
    BITS,
    BLOCK_SIZES,
    DTYPES,
    INTEGER_MODES,
    KERNELS,
    LONGEST_K,
    MODES,
    MS,
    NS,
    PAIRS,
    SCHEMES,
    assert_same,
    poisoned_run,
    run,
)

import qcore


def oracle_weight(weight):
    codes = weight.codes().astype(np.int64)
    return oracle.Quantized(codes, weight.scales(), weight.offsets(), weight.block_size)


# The acceptance grid. Rows of x and of the weight are prefixes of one matrix for each K: a result depends on nothing
# but its own row of x and of the weight.


@functools.cache
def grid_x(k):
    """Return ordinary rows, then in places: outliers, one-sided, zero, constant, tiny, a zero block among others."""
    rng = np.random.default_rng([1, k])
    x = rng.standard_normal((max(MS), k), dtype=np.float32) * rng.lognormal(size=(max(MS), 1)).astype(np.float32)
    x[1, rng.integers(0, k, 1 + k // 50)] *= 1e5
    x[2] = np.abs(x[2])
    x[4] = 0
    x[5] = 2.5
    x[8] *= 1e-18
    x[9, k // 3 : k // 3 + 40] = 0
    x[10, : k // 2] = -7
    x[16, -1] = -1e5
    return x


@functools.cache
def grid_weight(k):
    rng = np.random.default_rng([2, k])
    w = rng.standard_normal((max(NS), k), dtype=np.float32)
    w[1] = 0
    w[2] = 0.75
    w[4, rng.integers(0, k, 1 + k // 50)] *= 1e5
    w[5, k // 3 : k // 3 + 40] = -3
    w[62] = np.abs(w[62])
    w[64] *= 1e-10
    w[999] = 1
    return w


def k_values(g):
    if g == "K":
        return (1, 31, 33, LONGEST_K)
    return tuple(sorted({1, 31, 33, g - 1, g, g + 1, LONGEST_K}))


GRID = [
    pytest.param(k, k if g == "K" else g, bits, scheme, id=f"K{k}-g{g}-{bits}bit-{scheme}")
    for g in BLOCK_SIZES
    for k in k_values(g)
    for bits in BITS
    for scheme in SCHEMES
]

# N = 1000 with K = 4097 costs as much as all the rest. There each combination of g, bits and scheme takes one mode,
# turned so that every pair of values of any two parameters occurs.
LARGE_CELL_MODE = {
    (g, bits, scheme): MODES[(i + 2 * BITS.index(bits) + SCHEMES.index(scheme)) % len(MODES)]
    for i, g in enumerate((16, 32, 48, 64, 128, LONGEST_K))
    for bits in BITS
    for scheme in SCHEMES
}


def test_large_cell_covers_all_pairs():
    combinations = [(*key, mode) for key, mode in LARGE_CELL_MODE.items()]
    for i, j in itertools.combinations(range(4), 2):
        values = [{row[i] for row in combinations}, {row[j] for row in combinations}]
        assert {(row[i], row[j]) for row in combinations} == set(itertools.product(*values))


ORACLE_ROWS = 17
# The float oracle walks over every k: a sample of columns that includes all edges of vectors and panels.
FLOAT_COLUMNS = np.array([*range(9), 15, 16, 17, 31, 32, 62, 63, 64, 500, 991, 992, 998, 999])


def check_against_oracle(y, x, expected_weight, mode, scheme, where):
    """Return y [M, N] of the kernel `reference`, for the rows and columns that the oracle computes."""
    n = y.shape[1]
    columns = FLOAT_COLUMNS[n > FLOAT_COLUMNS] if mode == "float" else np.arange(n)
    x, b, y = x[:ORACLE_ROWS], expected_weight[columns], y[:ORACLE_ROWS, columns]
    bits, exact, bound = oracle.linear_and_bound(x, b, mode, scheme == "asymmetric")
    assert_same(y, bits, *where)
    assert (np.abs(y - exact) <= bound).all(), where


@pytest.mark.parametrize(("k", "g", "bits", "scheme"), GRID)
def test_grid(k, g, bits, scheme):
    x, w = grid_x(k), grid_weight(k)
    expected_weight = oracle.quantize_weight(w, bits, g, scheme)
    for n in NS:
        large = n == 1000 and k == LONGEST_K
        modes = [LARGE_CELL_MODE[g, bits, scheme]] if large else MODES
        # The reference walks over every k: of the longest, 65 rows for one number of columns only.
        rows = MS if k < LONGEST_K or n == 9 else [m for m in MS if m <= 17]
        weight = qcore.quantize(w[:n], bits=bits, block_size=g, scheme=scheme, **oracle.NEAREST)
        np.testing.assert_array_equal(weight.codes(), expected_weight.codes[:n])
        np.testing.assert_array_equal(weight.scales(), expected_weight.scales[:n])
        np.testing.assert_array_equal(weight.offsets(), expected_weight.offsets[:n])
        for mode in modes:
            expected = poisoned_run("reference", x[: max(rows)], weight, compute=mode)
            assert not np.isnan(expected).any()
            if n in (65, 1000):
                check_against_oracle(expected, x, expected_weight, mode, scheme, (mode, f"N={n}"))
            for m in rows:
                for kernel in KERNELS[mode]:
                    if kernel == "reference" and (m == max(rows) or (k == LONGEST_K and m > 1)):
                        continue  # the slow one: no row twice where it would take long
                    actual = poisoned_run(kernel, x[:m], weight, compute=mode)
                    assert_same(actual, expected[:m], kernel, mode, f"M={m}", f"N={n}")


@pytest.mark.parametrize("mode", INTEGER_MODES)
@pytest.mark.parametrize("g", [16, 32, 48, 64, 128, LONGEST_K])
def test_activation_codes_of_the_grid(g, mode):
    for k in {1, 31, 33, g - 1, g, g + 1, LONGEST_K} - {LONGEST_K + 1}:
        expected = oracle.quantize_activations(grid_x(k), g, mode)
        activations = qcore.quantize_activations(grid_x(k), g, mode)
        codes, scales, offsets, sums = oracle.activation_parts(activations)
        np.testing.assert_array_equal(codes, expected.codes)
        np.testing.assert_array_equal(scales, expected.scales)
        np.testing.assert_array_equal(offsets, expected.offsets)
        np.testing.assert_array_equal(sums, expected.sums)


@settings(max_examples=250)
@given(
    m=st.integers(0, 20),
    n=st.integers(0, 70),
    k=st.integers(0, 120),
    g=st.one_of(st.integers(1, 130), st.sampled_from([1, 3, 5, 2**16, 2**31 - 1])),
    bits=st.sampled_from(BITS),
    scheme=st.sampled_from(SCHEMES),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 9),
)
def test_any_shape_and_block_size(m, n, k, g, bits, scheme, mode, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((n, k), dtype=np.float32)
    weight = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, **oracle.NEAREST)
    expected = oracle.linear(x, oracle_weight(weight), mode, scheme == "asymmetric")
    for kernel in KERNELS[mode]:
        assert_same(poisoned_run(kernel, x, weight, compute=mode), expected, kernel)


# Integers in, integers out: all scales are 1, every sum stays below 2^24, so the float result must be the exact one.


def integer_x(rng, m, k, g, mode):
    """Return small integers, and in each block the two extremes of the code range that make its scale exactly 1."""
    x = rng.integers(-8, 9, (m, k))
    shift = 37 if mode == "int8_asym" else 0
    highest = {"float": 8, "int8": 127, "int8_asym": 127, "int16": 32767}[mode]
    starts = np.arange(0, k, g)
    # Signs alternate from block to block, so that the large values cancel in every partial sum.
    x[:, starts] = np.where(np.arange(len(starts)) % 2, -highest, highest)
    if mode == "int8_asym":
        x[:, starts] = 127
        seconds = starts[starts + 1 < np.minimum(starts + g, k)] + 1
        x[:, seconds] = -128
        alone = np.setdiff1d(starts, seconds - 1)
        x[:, alone] = 0  # a constant block: code 0, scale 1, offset the value
    return x + shift


def integer_weight(rng, n, k, g, bits, with_offsets):
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    codes = rng.integers(lowest, highest + 1, (n, k))
    codes.flat[:2] = lowest, highest
    starts = np.arange(0, k, g)
    codes[:, starts] = 1
    codes[:, (starts + 1)[starts + 1 < k]] = 1
    offsets = rng.integers(-3, 4, (n, len(starts))) if with_offsets else np.zeros((n, len(starts)), np.int64)
    parts = codes.astype(np.int8), np.ones((n, len(starts)), np.float32)
    weight = qcore.QuantizedTensor.from_parts(
        *parts, offsets.astype(np.float32) if with_offsets else None, bits=bits, block_size=g
    )
    return weight, codes + np.repeat(offsets, g, axis=1)[:, :k]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_offsets", [False, True], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("g", [16, 32, 48, 64, 128, "K"])
def test_integers_are_exact(g, bits, with_offsets, mode):
    for k in k_values(g):
        size = k if g == "K" else g
        rng = np.random.default_rng([3, k])
        x = integer_x(rng, max(MS), k, size, mode)
        for n in (1, 9, 65):
            weight, values = integer_weight(rng, n, k, size, bits, with_offsets)
            expected = x @ values.T
            assert np.abs(expected).max() < 2**24
            for kernel, m in itertools.product(KERNELS[mode], MS):
                if kernel == "reference" and 1 < m != (17 if k == LONGEST_K else max(MS)):
                    continue  # the slow one
                y = poisoned_run(kernel, x[:m].astype(np.float32), weight, compute=mode)
                np.testing.assert_array_equal(y, expected[:m], err_msg=f"{kernel} K={k} M={m} N={n}")


def extreme_codes(k, n, bits):
    codes = np.empty((n, k), np.int8)
    codes[0::2], codes[1::2] = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return codes


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("k", [255, 256, 257, 260, 264, 511, 512, 513, LONGEST_K, 65536])
@pytest.mark.parametrize("kernel", KERNELS["int16"])
def test_int16_blocks_beyond_int32(kernel, k, bits):
    """All codes at their extremes in one block: up to 65536 * 32767 * 128, rounded to float32 once."""
    codes = extreme_codes(k, 33, bits)
    weight = qcore.QuantizedTensor.from_parts(codes, np.ones((33, 1), np.float32), bits=bits, block_size=k)
    signs = np.array([1, -1, 1, -1, 1, 1, -1])[:, None]
    x = signs * np.full(k, 32767)
    expected = (x @ codes.astype(np.int64).T).astype(np.float32)
    np.testing.assert_array_equal(run(kernel, x.astype(np.float32), weight, compute="int16"), expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("mode", ["int8", "int8_asym"])
@pytest.mark.parametrize("k", [LONGEST_K, 65535, 65536])
def test_int8_blocks_of_extreme_codes(k, mode, bits):
    codes = extreme_codes(k, 17, bits)
    weight = qcore.QuantizedTensor.from_parts(codes, np.ones((17, 1), np.float32), bits=bits, block_size=k)
    x = np.array([1, -1, 1, -1, 1, 1, -1])[:, None] * np.full(k, 127)
    if mode == "int8_asym":
        x[:, 0], x[:, 1] = 127, -128  # scale 1, offset 0
    expected = (x @ codes.astype(np.int64).T).astype(np.float32)
    for kernel in KERNELS[mode]:
        np.testing.assert_array_equal(run(kernel, x.astype(np.float32), weight, compute=mode), expected, kernel)


@pytest.mark.parametrize("mode", MODES)
def test_blocks_that_only_the_reference_takes(mode):
    k = 65_600 if mode == "float" else 140_000  # the float oracle takes its time for every k
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, k), dtype=np.float32)
    w = rng.standard_normal((3, k), dtype=np.float32)
    weight = qcore.quantize(w, bits=8, block_size=k, scheme="asymmetric", **oracle.NEAREST)
    y = qcore.linear(x, weight, compute=mode)
    assert qcore.last_kernel("linear") == "reference"
    assert_same(y, oracle.linear(x, oracle_weight(weight), mode, True))
    for kernel in KERNELS[mode]:
        if kernel == "reference":
            continue
        message = f"linear: the forced kernel '{kernel}' does not take this call: its blocks are longer than 65536"
        with pytest.raises(qcore.QcoreValueError, match=message):
            run(kernel, x, weight, compute=mode)
    # The sum of 140,000 products of extreme codes does not fit in int32.
    extreme = qcore.QuantizedTensor.from_parts(
        np.full((1, k), -128, np.int8), np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), bits=8, block_size=k
    )
    if mode in ("int8", "int16"):
        highest = 127 if mode == "int8" else 32767
        y = qcore.linear(np.full((1, k), highest, np.float32), extreme, compute=mode)
        acc, total = np.float32(-128 * highest * k), np.float32(highest * k)
        assert y.item() == oracle.fma(total, 1, acc).item()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_half_precision_parameters(kernel, mode, bits, scheme):
    """Weights whose scales are stored in fp16, and of those with offsets some with fp32 offsets."""
    rng = np.random.default_rng([6, bits])
    x, w = rng.standard_normal((9, 333), dtype=np.float32), rng.standard_normal((77, 333), dtype=np.float32)
    for g in (32, 48, 333):
        half = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, scale_dtype="float16")
        assert half.scale_dtype == "float16"
        offsets = None if scheme == "symmetric" else half.offsets() * np.float32(1.0001)
        mixed = qcore.QuantizedTensor.from_parts(half.codes(), half.scales(), offsets, bits=bits, block_size=g)
        for weight in (half, mixed):
            expected = oracle.linear(x, oracle_weight(weight), mode, scheme == "asymmetric")
            y = poisoned_run(kernel, x, weight, compute=mode)
            if mode == "float":
                assert_same(y, run("reference", x, weight, compute=mode))
            else:
                assert_same(y, expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_a_single_row_with_half_precision_scales(kernel, mode, bits):
    """Whole blocks and a weight without offsets, as a decoder multiplies for each token, have a loop of their own."""
    rng = np.random.default_rng([7, bits])
    for n, k, g in itertools.product((1, 16, 77, 96, 1000), (32, 96, 384, 896), (32, 64, 128)):
        w = rng.standard_normal((n, k), dtype=np.float32)
        weight = qcore.quantize(w, bits=bits, block_size=g, scale_dtype="float16")
        x = rng.standard_normal((1, k), dtype=np.float32) * rng.choice(np.float32([1, -300, 0]), k)
        y = poisoned_run(kernel, x, weight, compute=mode)
        if mode == "float":
            assert_same(y, run("reference", x, weight, compute=mode), n, k, g)
        else:
            assert_same(y, oracle.linear(x, oracle_weight(weight), mode, False), n, k, g)


@pytest.fixture
def restore_threads():
    before = qcore.get_num_threads()
    yield
    qcore.set_num_threads(before)


@pytest.mark.parametrize(
    ("bits", "k", "g", "scheme"),
    [(8, 40_001, 1000, "symmetric"), (8, 66_000, 33_000, "asymmetric"), (4, 70_000, 96, "asymmetric")],
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("restore_threads")
def test_weights_larger_than_a_cache(mode, bits, k, g, scheme):
    """More k than a tile takes at once while its weights stay in a cache, for several tiles of rows and of columns."""
    rng = np.random.default_rng([5, k])
    x, w = rng.standard_normal((7, k), dtype=np.float32), rng.standard_normal((17, k), dtype=np.float32)
    repeated = np.arange(257) % 17  # the oracle needs to look at 17 rows only
    few = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, **oracle.NEAREST)
    offsets = few.offsets()[repeated] if scheme == "asymmetric" else None
    weight = qcore.QuantizedTensor.from_parts(
        few.codes()[repeated], few.scales()[repeated], offsets, bits=bits, block_size=g
    )
    expected = run("reference", x, few, compute=mode)[:, repeated]
    if mode != "float":
        assert_same(expected[:, :17], oracle.linear(x, oracle_weight(few), mode, scheme == "asymmetric"))
    for threads in (1, 2):  # one thread takes all rows of a column, two may share them
        qcore.set_num_threads(threads)
        for kernel in KERNELS[mode]:
            if kernel != "reference":
                assert_same(poisoned_run(kernel, x, weight, compute=mode), expected, kernel, threads)


@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_many_rows(kernel, mode):
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((512, 200), dtype=np.float32), rng.standard_normal((100, 200), dtype=np.float32)
    weight = qcore.quantize(w, bits=4, block_size=64, scheme="asymmetric", **oracle.NEAREST)
    y = poisoned_run(kernel, x, weight, compute=mode)
    assert_same(y, run("reference", x, weight, compute=mode))
    assert_same(y[:17], oracle.linear(x[:17], oracle_weight(weight), mode, True))
    assert_same(np.concatenate([run(kernel, row[None], weight, compute=mode) for row in x[:70]]), y[:70])


# Shapes and memory


@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_empty_extents(kernel, mode):
    def weight(n, k):
        return qcore.quantize(np.ones((n, k), np.float32), block_size=64, **oracle.NEAREST)

    bias = np.float32([1, -2, 3])
    assert run(kernel, np.ones((0, 8), np.float32), weight(3, 8), compute=mode).shape == (0, 3)
    assert run(kernel, np.ones((2, 8), np.float32), weight(0, 8), compute=mode).shape == (2, 0)
    assert run(kernel, np.ones((4, 0, 8), np.float32), weight(3, 8), compute=mode).shape == (4, 0, 3)
    np.testing.assert_array_equal(
        run(kernel, np.ones((2, 0), np.float32), weight(3, 0), compute=mode), np.zeros((2, 3))
    )
    y = run(kernel, np.ones((2, 0), np.float32), weight(3, 0), bias, compute=mode, activation="relu")
    np.testing.assert_array_equal(y, [[1, 0, 3]] * 2)


def relu_like(y, lo, hi):
    y = np.where(y < np.float32(lo), np.float32(lo), y)
    return np.where(y > np.float32(hi), np.float32(hi), y)


CLAMPS = {
    "relu": (0, np.inf),
    "relu6": (0, 6),
    (-1, 2.5): (-1, 2.5),
    (0.1, 0.1): (0.1, 0.1),
    (-np.inf, 0): (-np.inf, 0),
}


@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_activations(kernel, mode):
    rng = np.random.default_rng(10)
    x = rng.standard_normal((7, 64), dtype=np.float32)
    x[3] = np.nan
    weight = qcore.quantize(rng.standard_normal((45, 64), dtype=np.float32), block_size=16, **oracle.NEAREST)
    bias = rng.standard_normal(45, dtype=np.float32)
    plain = run(kernel, x, weight, bias, compute=mode)
    assert plain[:3].max() > 6
    for activation, (lo, hi) in CLAMPS.items():
        assert_same(
            run(kernel, x, weight, bias, compute=mode, activation=activation), relu_like(plain, lo, hi), activation
        )
    assert_same(run(kernel, x, weight, bias, compute=mode, activation=[0, 6]), relu_like(plain, 0, 6))

    wide = plain.astype(np.float64)
    erf = np.vectorize(math.erf)
    for activation, expected in (
        ("silu", wide / (1 + np.exp(-wide))),
        ("gelu", 0.5 * wide * (1 + erf(wide / np.sqrt(2)))),
        ("gelu_tanh", wide / (1 + np.exp(-np.sqrt(8 / np.pi) * (wide + 0.044715 * wide**3)))),
        ("tanh", np.tanh(wide)),
        ("sigmoid", 1 / (1 + np.exp(-wide))),
    ):
        y = run(kernel, x, weight, bias, compute=mode, activation=activation)
        np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6)
        assert_same(y, run("reference", x, weight, bias, compute=mode, activation=activation))


# Values


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_non_finite_activations(kernel, mode, scheme, value):
    rng = np.random.default_rng(11)
    w = rng.standard_normal((35, 70), dtype=np.float32)
    w[4] = 0
    x = rng.standard_normal((9, 70), dtype=np.float32)
    weight = qcore.quantize(w, bits=8, block_size=32, scheme=scheme, **oracle.NEAREST)
    clean = run(kernel, x, weight, compute=mode)
    for column in (0, 31, 40, 69):
        bad = x.copy()
        bad[5, column] = value
        y = poisoned_run(kernel, bad, weight, compute=mode)
        others = np.arange(9) != 5
        assert_same(y[others], clean[others])
        if mode == "float":
            assert_same(y, oracle.linear(bad, oracle_weight(weight), mode, scheme == "asymmetric"))
        else:
            assert np.isnan(y[5]).all()


@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_non_finite_half_precision_activations(kernel, mode):
    rng = np.random.default_rng(12)
    weight = qcore.quantize(rng.standard_normal((20, 70), dtype=np.float32), block_size=64, **oracle.NEAREST)
    for dtype, value in itertools.product(DTYPES[1:], (np.nan, np.inf)):
        x = rng.standard_normal((4, 70)).astype(dtype)
        x[2, 33] = value
        y = run(kernel, x, weight, compute=mode)
        assert not np.isfinite(y[2].astype(np.float32)).any()
        assert np.isfinite(y[[0, 1, 3]].astype(np.float32)).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
def test_extreme_magnitudes(kernel, mode, scheme):
    """Subnormal and huge rows, and huge weights: whatever float32 arithmetic makes of them."""
    rng = np.random.default_rng(13)
    magnitudes = np.float32([1e-44, 1e-38, 1e-20, 1, 1e5, 1e20, 1e37, 4e37])
    x = rng.standard_normal((8, 70), dtype=np.float32) * magnitudes[:, None]
    w = rng.standard_normal((34, 70), dtype=np.float32)
    w[3] *= np.float32(1e37)
    w[4] *= np.float32(1e-38)
    weight = qcore.quantize(w, bits=8, block_size=32, scheme=scheme, **oracle.NEAREST)
    y = run(kernel, x, weight, compute=mode)
    assert_same(y, oracle.linear(x, oracle_weight(weight), mode, scheme == "asymmetric"))


@pytest.mark.parametrize("bits", BITS)
def test_int16_keeps_massive_activations(bits):
    """One channel in a hundred is 30 times larger: 8-bit codes lose the others, 16-bit codes do not."""
    rng = np.random.default_rng(14)
    x = rng.standard_normal((64, 1024), dtype=np.float32)
    x[:, rng.permutation(1024)[:10]] *= 30
    weight = qcore.quantize(
        rng.standard_normal((128, 1024), dtype=np.float32), bits=bits, block_size=128, **oracle.NEAREST
    )
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T

    def error(mode):
        return np.linalg.norm(qcore.linear(x, weight, compute=mode) - exact) / np.linalg.norm(exact)

    assert error("float") < 1e-6
    assert error("int16") < 1e-4
    assert error("int16") < error("int8") / 100
    assert error("int8") < 0.05


def test_asymmetric_activations_are_better_for_one_sided_input():
    rng = np.random.default_rng(15)
    x = np.abs(rng.standard_normal((32, 512), dtype=np.float32)) + 1
    weight = qcore.quantize(rng.standard_normal((64, 512), dtype=np.float32), bits=8, block_size=64, **oracle.NEAREST)
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    errors = {mode: np.abs(qcore.linear(x, weight, compute=mode) - exact).mean() for mode in ("int8", "int8_asym")}
    assert errors["int8_asym"] < 0.7 * errors["int8"]


# Threads


@pytest.mark.parametrize("m", [1, 3, 40])
@pytest.mark.parametrize(("kernel", "mode"), PAIRS)
@pytest.mark.usefixtures("restore_threads")
def test_threads_do_not_matter(kernel, mode, m):
    rng = np.random.default_rng(16)
    x = rng.standard_normal((m, 700), dtype=np.float32)
    weight = qcore.quantize(
        rng.standard_normal((450, 700), dtype=np.float32), scheme="asymmetric", block_size=64, **oracle.NEAREST
    )
    qcore.set_num_threads(1)
    expected = poisoned_run(kernel, x, weight, compute=mode)
    for threads in (2, 4, 7):
        qcore.set_num_threads(threads)
        for _ in range(1 if kernel == "reference" else 3):
            assert_same(poisoned_run(kernel, x, weight, compute=mode), expected, threads)
