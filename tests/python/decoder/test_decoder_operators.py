"""The decoder's operators but attention, against NumPy in float64, and their kernels against the reference."""

import decoder_oracle as oracle
import ml_dtypes
import numpy as np
import pytest
from decoder_oracle import DTYPES, bits, close, kernels
from guarded_memory import before_a_guard

import qcore
from qcore import decoder

SIZES = [1, 2, 7, 16, 31, 32, 33, 64, 100, 896, 1027]
BIG = (97, 353)  # enough for several threads


def random(shape, dtype=np.float32, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def every_kernel(op, run):
    """Call run() with every kernel, check that all give the reference's bits, and return the result."""
    results = {}
    for name in kernels(op):
        with qcore.force_kernel(f"decoder_{op}", name):
            results[name] = run()
            assert qcore.last_kernel(f"decoder_{op}") == name
    expected = results["reference"]
    for name, result in results.items():
        for ours, theirs in zip(result, expected, strict=True):
            assert np.array_equal(bits(ours), bits(theirs)), name
    return expected


@pytest.mark.parametrize("op", ["rms_norm", "rotary_embedding", "gated_activation", "soft_cap", "write_cache"])
def test_there_are_kernels(op):
    assert kernels(op)[-1] == "reference"
    assert len(kernels(op)) > 1 or not {"avx2", "neon"} & set(qcore.info()["isa"])


# rms_norm


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(size, dtype):
    x, weight = random((3, size), dtype), random(size, dtype, 1)
    (y,) = every_kernel("rms_norm", lambda: (decoder.rms_norm(x, weight, 1e-5),))
    assert y.dtype == x.dtype
    assert close(y, oracle.rms_norm(x, weight, 1e-5), ulps=4 if dtype == np.float32 else 1)


def test_rms_norm_without_weight_with_offset_and_of_many_rows():
    x, weight = random(BIG), random(BIG[1], seed=1)
    (plain,) = every_kernel("rms_norm", lambda: (decoder.rms_norm(x),))
    assert close(plain, oracle.rms_norm(x), ulps=4)
    (shifted,) = every_kernel("rms_norm", lambda: (decoder.rms_norm(x, weight, offset=1.0),))
    assert close(shifted, oracle.rms_norm(x, weight, offset=1.0), ulps=4, absolute=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5), (2, 3, 33), BIG])
def test_rms_norm_adds_to_the_residual_first(shape, dtype):
    x, before, weight = random(shape, dtype), random(shape, dtype, 1), random(shape[-1], np.float32, 2)

    def run():
        residual = before.copy()
        return decoder.rms_norm(x, weight, residual=residual), residual

    y, residual = every_kernel("rms_norm", run)
    total = (x.astype(np.float32) + before.astype(np.float32)).astype(dtype)
    assert np.array_equal(bits(residual), bits(total))
    assert close(y, oracle.rms_norm(total, weight), ulps=4 if dtype == np.float32 else 1)


def test_rms_norm_rounds_before_the_weight():
    x, weight = random((5, 64), ml_dtypes.bfloat16), random(64, ml_dtypes.bfloat16, 1)
    (y,) = every_kernel("rms_norm", lambda: (decoder.rms_norm(x, weight, round_normalized=True),))
    normalized = decoder.rms_norm(x, out_dtype="float32").astype(ml_dtypes.bfloat16)
    expected = (normalized.astype(np.float32) * weight.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(bits(y), bits(expected))
    assert not np.array_equal(bits(y), bits(decoder.rms_norm(x, weight)))


def test_rms_norm_in_place_and_mixed_dtypes():
    x = random((4, 48))
    y = decoder.rms_norm(x)
    same = x.copy()
    assert decoder.rms_norm(same, out=same) is same
    assert np.array_equal(same, y)
    assert np.array_equal(decoder.rms_norm(x, out_dtype="float16"), y.astype(np.float16))


def test_rms_norm_of_zeros_large_and_special_values():
    x = np.zeros((4, 40), np.float32)
    x[1] = 1e18
    x[2, 3] = np.inf
    x[3, 7] = np.nan
    (y,) = every_kernel("rms_norm", lambda: (np.nan_to_num(decoder.rms_norm(x), nan=-7.0),))
    assert np.array_equal(y[0], np.zeros(40))
    assert close(y[1], np.ones(40))
    assert y[2, 3] == -7 and not y[2, 4]  # inf / inf, 0 / inf
    assert (y[3] == -7).all()


# rotary_embedding


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("size", "rotary"), [(1, 0), (2, 2), (5, 4), (20, 20), (64, 64), (64, 32), (80, 32), (256, 34)]
)
def test_rotary_embedding(size, rotary, dtype, layout):
    x = random((2, 5, 3, size), dtype)
    cos, sin = oracle.rotary_tables(50, rotary)
    positions = np.random.default_rng(1).integers(0, 50, (2, 5)).astype(np.int32)
    (y,) = every_kernel("rotary_embedding", lambda: (decoder.rotary_embedding(x, positions, cos, sin, layout=layout),))
    expected = oracle.rotary_embedding(x, positions, cos, sin, layout)
    assert close(y, expected, ulps=1, absolute=4e-7 * np.abs(x.astype(np.float64)).max())
    assert np.array_equal(bits(y[..., rotary:]), bits(x[..., rotary:]))
    same = x.copy()
    decoder.rotary_embedding(same, positions, cos, sin, layout=layout, out=same)
    assert np.array_equal(bits(same), bits(y))


def test_rotary_embedding_of_many_tokens_and_strided_tables():
    x = random((1, 300, 4, 64))
    cos, sin = oracle.rotary_tables(300, 64)
    positions = np.arange(300, dtype=np.int32)[None]
    expected = every_kernel("rotary_embedding", lambda: (decoder.rotary_embedding(x, positions, cos, sin),))[0]
    wide = np.stack([cos, sin], axis=-1)
    (y,) = every_kernel(
        "rotary_embedding", lambda: (decoder.rotary_embedding(x, positions, wide[..., 0], wide[..., 1]),)
    )
    assert np.array_equal(y, expected)


# gated_activation


@pytest.mark.parametrize("name", decoder.ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 16, 33, 4864])
def test_gated_activation(size, dtype, name):
    x = random((3, 2 * size), dtype, scale=3)
    (y,) = every_kernel("gated_activation", lambda: (decoder.gated_activation(x, name),))
    assert y.shape == (3, size)
    assert close(y, oracle.gated_activation(x, name), ulps=5 if dtype == np.float32 else 1, absolute=1e-7)


@pytest.mark.parametrize("name", decoder.ACTIVATIONS)
def test_activations_are_accurate_everywhere(name):
    magnitudes = np.concatenate([np.geomspace(1e-30, 1e-3, 500), np.linspace(1e-3, 100, 40001)])
    x = np.concatenate([-magnitudes[::-1], [0.0], magnitudes]).astype(np.float32)
    gate = np.stack([x, np.ones_like(x)]).reshape(1, -1)
    (y,) = every_kernel("gated_activation", lambda: (decoder.gated_activation(gate, name),))
    expected = oracle.activation(x, name)
    error = np.abs(y[0] - expected) / np.maximum(np.abs(expected) * 2**-23, 1e-35)
    if name == "gelu_tanh":
        # The rounding of its argument u enters the exponential e^u with a factor of |u|.
        error /= 1 + np.abs(1.6 * expected_argument(x)) * (x < 0)
    assert error.max() < 4, error.max()


def expected_argument(x):
    return x.astype(np.float64) + 0.044715 * x.astype(np.float64) ** 3


@pytest.mark.parametrize("name", decoder.ACTIVATIONS)
def test_activations_of_special_values(name):
    gate = np.array([[np.nan, np.inf, 0.0, -0.0, 3e38, -3e38] + [1.0] * 6], np.float32)
    (y,) = every_kernel("gated_activation", lambda: (np.nan_to_num(decoder.gated_activation(gate, name), nan=-7.0),))
    assert y[0, 0] == -7
    assert y[0, 1] == np.finfo(np.float32).max  # of nan_to_num, for an infinity
    assert not y[0, 2] and not y[0, 3] and not y[0, 5]
    assert y[0, 4] == np.float32(3e38)


# soft_cap


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 33), (2, 20000)])
def test_soft_cap(shape, dtype):
    x = random(shape, dtype, scale=40)
    (y,) = every_kernel("soft_cap", lambda: (decoder.soft_cap(x, 30.0, multiplier=0.5),))
    expected = 30 * np.tanh(x.astype(np.float64) * 0.5 / 30)
    assert close(y, expected, ulps=4 if dtype == np.float32 else 1)
    same = x.copy()
    decoder.soft_cap(same, 30.0, multiplier=0.5, out=same)
    assert np.array_equal(bits(same), bits(y))
    (scaled,) = every_kernel("soft_cap", lambda: (decoder.soft_cap(x, 0, multiplier=0.5),))
    assert np.array_equal(bits(scaled), bits((x.astype(np.float32) * np.float32(0.5)).astype(dtype)))


# write_cache


@pytest.mark.parametrize("cache_dtype", oracle.CACHE_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 16, 20, 64, 130])
def test_write_cache(size, dtype, cache_dtype):
    batch, tokens, heads, capacity = 2, 3, 2, 11
    keys, values = random((batch, tokens, heads, size), dtype), random((batch, tokens, heads, size), dtype, 1)
    keys[0, 1, 1] = 0
    past = np.array([5, 0], np.int32)

    def run():
        cache = decoder.KeyValueCache.empty(batch, heads, capacity, size, cache_dtype)
        written = [
            array for array in (cache.keys, cache.values, cache.key_scales, cache.value_scales) if array is not None
        ]
        for array in written:
            array.view(np.uint8)[:] = 0x55
        decoder.write_cache(keys, values, past, cache)
        return tuple(written)

    written = every_kernel("write_cache", run)
    expected = [np.full_like(array.view(np.uint8), 0x55).view(array.dtype) for array in written]
    for index, source in enumerate((keys, values)):
        for b in range(batch):
            for t in range(tokens):
                for h in range(heads):
                    place = (b, h, past[b] + t)
                    if cache_dtype == "int8":
                        expected[index][place], expected[2 + index][place] = oracle.quantized_head(source[b, t, h])
                    else:
                        expected[index][place] = source[b, t, h].astype(np.float32).astype(written[index].dtype)
    for array, right in zip(written, expected, strict=True):
        assert np.array_equal(bits(array), bits(right))


def test_write_cache_quantizes_tiny_and_special_heads():
    keys = np.ones((1, 5, 1, 20), np.float32)
    keys[0, 0, 0, 3] = np.nan
    keys[0, 1, 0, 19] = -np.inf
    keys[0, 2] *= np.float32(1e-45)
    keys[0, 3] *= np.float32(-3e38)
    keys[0, 4] = 0

    def run():
        cache = decoder.KeyValueCache.empty(1, 1, 5, 20, "int8")
        decoder.write_cache(keys, keys, np.zeros(1, np.int32), cache)
        return cache.keys, np.nan_to_num(cache.key_scales, nan=-7.0)

    codes, scales = every_kernel("write_cache", run)
    assert (codes[0, 0, [0, 1, 2, 4]] == 0).all()
    assert (codes[0, 0, 3] == -127).all()
    assert scales[0, 0, 0] == scales[0, 0, 1] == -7


# Arrays of every kind


def strided(array, seed=0):
    """Return the same values at odd strides."""
    wide = random((*array.shape[:-1], 2 * array.shape[-1] + 1), np.float32, seed).astype(array.dtype)
    view = wide[..., 1 : 2 * array.shape[-1] : 2]
    view[:] = array
    return view


def run_on_strided(op, x, residual, out):
    """Make one call of an operator with every array at odd strides; `residual` and `out` are written to."""
    cos, sin = oracle.rotary_tables(9, 8)
    if op == "rms_norm":
        return decoder.rms_norm(strided(x), strided(random(20, seed=2)), residual=residual, out=out)
    if op == "rotary_embedding":
        return decoder.rotary_embedding(strided(x), strided(POSITIONS), strided(cos), strided(sin), out=out)
    if op == "gated_activation":
        return decoder.gated_activation(strided(x), out=out)
    return decoder.soft_cap(strided(x), 2.0, out=out)


POSITIONS = np.array([[1, 2, 3], [0, 8, 4]], np.int32)


@pytest.mark.parametrize("op", ["rms_norm", "rotary_embedding", "gated_activation", "soft_cap"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_arrays_give_the_same_bits(dtype, op):
    x, residual = random((2, 3, 4, 20), dtype), random((2, 3, 4, 20), dtype, 1)
    sums = residual.copy()
    expected = {
        "rms_norm": lambda: decoder.rms_norm(x, random(20, seed=2), residual=sums),
        "rotary_embedding": lambda: decoder.rotary_embedding(x, POSITIONS, *oracle.rotary_tables(9, 8)),
        "gated_activation": lambda: decoder.gated_activation(x),
        "soft_cap": lambda: decoder.soft_cap(x, 2.0),
    }[op]()
    for name in kernels(op):
        target, out = strided(residual), strided(np.full(expected.shape, np.nan, dtype))
        between = out.base[..., ::2].copy()
        with qcore.force_kernel(f"decoder_{op}", name):
            assert run_on_strided(op, x, target, out) is out
        assert np.array_equal(bits(out), bits(expected)), name
        assert np.array_equal(bits(out.base[..., ::2]), bits(between)), "written between the elements"
        if op == "rms_norm":
            assert np.array_equal(bits(target), bits(sums))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 5, 17, 36])
def test_nothing_beside_the_arrays_is_touched(size, dtype):
    x, weight = before_a_guard(random((3, size), dtype)), before_a_guard(random(size, dtype, 1))
    both = before_a_guard(random((3, 2 * size), dtype))
    heads = before_a_guard(random((1, 3, 1, 2 * size), dtype))
    cos, sin = (before_a_guard(table) for table in oracle.rotary_tables(3, 2 * size))
    positions = before_a_guard(np.array([[0, 1, 2]], np.int32))
    for name in kernels("rms_norm"):
        out = before_a_guard(np.zeros((3, size), dtype))
        with qcore.force_kernel("decoder_rms_norm", name):
            decoder.rms_norm(x, weight, residual=before_a_guard(np.zeros((3, size), dtype)), out=out)
        assert close(out, oracle.rms_norm(x, weight), ulps=4 if dtype == np.float32 else 1)
        with qcore.force_kernel("decoder_gated_activation", name):
            decoder.gated_activation(both, out=out)
        assert close(out, oracle.gated_activation(both, "silu"), ulps=5, absolute=1e-7)
        with qcore.force_kernel("decoder_soft_cap", name):
            decoder.soft_cap(x, 2.0, out=out)
        assert close(out, 2 * np.tanh(x.astype(np.float64) / 2), ulps=4)
        turned = before_a_guard(np.zeros((1, 3, 1, 2 * size), dtype))
        with qcore.force_kernel("decoder_rotary_embedding", name):
            decoder.rotary_embedding(heads, positions, cos, sin, out=turned)
        assert close(turned, oracle.rotary_embedding(heads, positions, cos, sin), ulps=1, absolute=2e-6)
        for cache_dtype in oracle.CACHE_DTYPES:
            cache = decoder.KeyValueCache.empty(1, 1, 3, 2 * size, cache_dtype)
            arrays = [None if a is None else before_a_guard(a) for a in cache_arrays(cache)]
            with qcore.force_kernel("decoder_write_cache", name):
                decoder.write_cache(heads, heads, before_a_guard(np.zeros(1, np.int32)), decoder.KeyValueCache(*arrays))
            assert np.array_equal(bits(arrays[0]), bits(arrays[1]))


def cache_arrays(cache):
    return cache.keys, cache.values, cache.key_scales, cache.value_scales


def test_empty_arrays():
    assert decoder.rms_norm(np.zeros((0, 5), np.float32)).shape == (0, 5)
    assert decoder.rms_norm(np.zeros((5, 0), np.float32)).shape == (5, 0)
    assert decoder.gated_activation(np.zeros((5, 0), np.float32)).shape == (5, 0)
    assert decoder.soft_cap(np.zeros((0,), np.float32), 1).shape == (0,)
    tables = oracle.rotary_tables(4, 2)
    assert decoder.rotary_embedding(np.zeros((0, 3, 2, 4), np.float32), np.zeros((0, 3), np.int32), *tables).size == 0
    cache = decoder.KeyValueCache.empty(2, 1, 3, 4)
    none = np.zeros((2, 0, 1, 4), np.float32)
    decoder.write_cache(none, none, np.zeros(2, np.int32), cache)


def test_results_do_not_depend_on_threads():
    x, weight = random((200, 300)), random(300, seed=1)
    results = []
    before = qcore.get_num_threads()
    try:
        for threads in (1, 2, 5):
            qcore.set_num_threads(threads)
            results.append((decoder.rms_norm(x, weight), decoder.gated_activation(x), decoder.soft_cap(x, 3.0)))
    finally:
        qcore.set_num_threads(before)
    for result in results[1:]:
        for ours, theirs in zip(result, results[0], strict=True):
            assert np.array_equal(ours, theirs)
