"""Attention over a cache, against NumPy in float64, and its kernels against the reference."""

import decoder_oracle as oracle
import numpy as np
import pytest
from decoder_oracle import CACHE_DTYPES, DTYPES, bits, kernels
from guarded_memory import before_a_guard

import qcore
from qcore import decoder


def filled(batch, heads, capacity, size, dtype="float32", seed=0, lengths=None):
    """Return a cache with random tokens up to `lengths`, and NaNs (as int8: large scales) behind them."""
    generator = np.random.default_rng(seed)
    cache = decoder.KeyValueCache.empty(batch, heads, capacity, size, dtype)
    for array in (cache.keys, cache.values):
        array.view(np.uint8)[:] = 0xFF if dtype != "int8" else 0x7F
    for array in (cache.key_scales, cache.value_scales):
        if array is not None:
            array[:] = np.nan
    for b in range(batch):
        count = capacity if lengths is None else lengths[b]
        tokens = generator.standard_normal((2, 1, count, heads, size)).astype(np.float32)
        part = [None if array is None else array[b : b + 1] for array in arrays_of(cache)]
        decoder.write_cache(*tokens, np.zeros(1, np.int32), decoder.KeyValueCache(*part))
    return cache


def arrays_of(cache):
    return cache.keys, cache.values, cache.key_scales, cache.value_scales


def queries(batch, tokens, heads, size, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).standard_normal((batch, tokens, heads, size)).astype(dtype)


def every_kernel(q, cache, past, **options):
    """Return the result, which all kernels must give with the same bits and without an unwritten element."""
    expected = None
    for name in reversed(kernels("attention")):
        out = np.full(q.shape, np.nan, np.float32).astype(q.dtype)
        with qcore.force_kernel("decoder_attention", name):
            decoder.attention(q, cache, past, out=out, **options)
        expected = out if expected is None else expected
        assert np.array_equal(bits(out), bits(expected)), name
    assert not np.isnan(expected.astype(np.float32)).any()
    return expected


def check(q, cache, past, **options):
    y = every_kernel(q, cache, past, **options)
    expected = oracle.attention(q, *oracle.cached(cache), past, **options)
    bound = 4e-6 + oracle.SPACING[np.dtype(q.dtype)] * np.abs(expected) + oracle.SPACING[np.dtype(q.dtype)] * 1e-3
    assert (np.abs(y.astype(np.float64) - expected) <= bound).all(), np.abs(y.astype(np.float64) - expected).max()
    return y


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 2), (14, 2), (9, 1)])
@pytest.mark.parametrize("tokens", [1, 3])
def test_decoding(tokens, heads, kv_heads, dtype, cache_dtype):
    past = np.array([0, 5, 41], np.int32)
    cache = filled(3, kv_heads, 50, 16, cache_dtype, lengths=past + tokens)
    check(queries(3, tokens, heads, 16, dtype), cache, past)


@pytest.mark.parametrize("size", [1, 2, 5, 15, 16, 17, 20, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
def test_head_sizes(size, cache_dtype):
    past = np.array([30], np.int32)
    cache = filled(1, 2, 33, size, cache_dtype, lengths=past + 3)
    check(queries(1, 3, 4, size), cache, past)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 700])
@pytest.mark.parametrize("tokens", [1, 2, 14])
def test_lengths_around_panels_and_chunks(length, tokens):
    past = np.array([max(length - tokens, 0)], np.int32)
    cache = filled(1, 1, length + tokens, 20, lengths=past + tokens)
    check(queries(1, tokens, 3, 20), cache, past)


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1), (7, 1)])
def test_prefill(heads, kv_heads, cache_dtype):
    past = np.array([0, 130], np.int32)
    cache = filled(2, kv_heads, 430, 32, cache_dtype, lengths=past + 300)
    check(queries(2, 300, heads, 32), cache, past)


@pytest.mark.parametrize("window", [1, 2, 16, 100, 256, 300, 10000])
@pytest.mark.parametrize("tokens", [1, 40])
def test_sliding_window(window, tokens):
    past = np.array([0, 500], np.int32)
    cache = filled(2, 2, 540, 16, lengths=past + tokens)
    check(queries(2, tokens, 4, 16), cache, past, window=window)


@pytest.mark.parametrize("tokens", [1, 33])
def test_padding_on_the_left(tokens):
    past = np.array([300, 300, 300, 0], np.int32)
    first = np.array([0, 7, 299, 5], np.int32)
    cache = filled(4, 1, 333, 16, lengths=past + tokens)
    # The padding's contents don't matter.
    for b in range(4):
        cache.keys[b, :, : first[b]] = np.nan
        cache.values[b, :, : first[b]] = np.nan
    y = every_kernel(queries(4, tokens, 2, 16), cache, past, first=first)
    keys, values = (np.nan_to_num(array) for array in oracle.cached(cache))
    expected = oracle.attention(queries(4, tokens, 2, 16), keys, values, past, first=first)
    assert np.abs(y - expected).max() <= 4e-6
    assert not y[3, :5].any()  # these tokens are padding themselves


def test_padding_and_window_together():
    past, first = np.array([290], np.int32), np.array([280], np.int32)
    cache = filled(1, 1, 350, 16, lengths=past + 60)
    check(queries(1, 60, 2, 16), cache, past, first=first, window=20)


@pytest.mark.parametrize("soft_cap", [0.5, 50.0])
@pytest.mark.parametrize("scale", [None, 0.0625, 2.0])
def test_scale_and_soft_cap(scale, soft_cap):
    past = np.array([270], np.int32)
    cache = filled(1, 2, 280, 24, lengths=past + 2)
    check(queries(1, 2, 4, 24), cache, past, scale=scale, soft_cap=soft_cap)


def test_large_scores():
    past = np.array([600], np.int32)
    cache = filled(1, 1, 601, 16)
    cache.keys[0, 0, 300] *= 300
    y = check(queries(1, 1, 2, 16), cache, past, scale=10.0)
    assert np.isfinite(y).all()


@pytest.mark.parametrize("cache_dtype", ["float32", "int8"])
def test_a_result_depends_neither_on_the_number_of_tokens_nor_on_threads(cache_dtype):
    past = np.array([520, 3], np.int32)
    cache = filled(2, 2, 620, 32, cache_dtype, lengths=past + 100)
    q = queries(2, 100, 6, 32)
    before = qcore.get_num_threads()
    try:
        qcore.set_num_threads(1)
        together = decoder.attention(q, cache, past)
        for threads in (2, 7):
            qcore.set_num_threads(threads)
            assert np.array_equal(decoder.attention(q, cache, past), together)
            for t in (0, 1, 57, 99):
                alone = decoder.attention(q[:, t : t + 1], cache, past + np.int32(t))
                assert np.array_equal(alone[:, 0], together[:, t])
            one = decoder.attention(
                q[1:, :3],
                decoder.KeyValueCache(*(a[1:] if a is not None else None for a in arrays_of(cache))),
                past[1:],
            )
            assert np.array_equal(one[0], together[1, :3])
    finally:
        qcore.set_num_threads(before)


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
def test_strided_arrays_give_the_same_bits(cache_dtype):
    past = np.array([33, 2], np.int32)
    cache = filled(2, 2, 40, 20, cache_dtype, lengths=past + 3)
    q = queries(2, 3, 4, 20)
    expected = every_kernel(q, cache, past)

    def spread(array):
        """[B, Hkv, C, ...] as [B, C, Hkv, ...] in memory, with a gap behind each head."""
        if array is None:
            return None
        wide = np.zeros(
            (array.shape[0], array.shape[2], array.shape[1], *[n + 3 for n in array.shape[3:]]), array.dtype
        )
        view = wide[..., : array.shape[3]] if array.ndim == 4 else wide
        view = view.swapaxes(1, 2)
        view[:] = array
        return view

    moved = decoder.KeyValueCache(*(spread(array) for array in arrays_of(cache)))
    wide_q, wide_out = np.zeros((3, 2, 4, 41), np.float32), np.full((4, 2, 3, 40), np.nan, np.float32)
    q_view, out = wide_q[..., 1::2].transpose(1, 0, 2, 3), wide_out[..., ::2].transpose(1, 2, 0, 3)
    q_view[:] = q
    wide_past = np.array([33, 9, 2, 9], np.int32)[::2]
    for name in kernels("attention"):
        out[:] = np.nan
        with qcore.force_kernel("decoder_attention", name):
            decoder.attention(q_view, moved, wide_past, out=out)
        assert np.array_equal(bits(out), bits(expected)), name
        assert np.isnan(wide_out[..., 1::2]).all()


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
@pytest.mark.parametrize("size", [3, 16, 37])
@pytest.mark.parametrize("tokens", [1, 21])
def test_nothing_beside_the_arrays_is_touched(tokens, size, cache_dtype):
    """The cache is full, and ends where memory ends."""
    past = np.array([70], np.int32)
    plain = filled(1, 1, 70 + tokens, size, cache_dtype)
    cache = decoder.KeyValueCache(*(None if array is None else before_a_guard(array) for array in arrays_of(plain)))
    q = queries(1, tokens, 3, size)
    expected = every_kernel(q, plain, past)
    for name in kernels("attention"):
        out = before_a_guard(np.zeros(q.shape, np.float32))
        with qcore.force_kernel("decoder_attention", name):
            decoder.attention(before_a_guard(q), cache, before_a_guard(past), first=before_a_guard(0 * past), out=out)
        assert np.array_equal(out, expected)


def test_empty_arrays():
    cache = decoder.KeyValueCache.empty(2, 1, 5, 8)
    past = np.zeros(2, np.int32)
    assert decoder.attention(np.zeros((2, 0, 1, 8), np.float32), cache, past).shape == (2, 0, 1, 8)
    nobody = decoder.KeyValueCache.empty(0, 1, 5, 8)
    assert decoder.attention(np.zeros((0, 1, 1, 8), np.float32), nobody, past[:0]).shape == (0, 1, 1, 8)


def test_out_dtype_and_max_length():
    past = np.array([4], np.int32)
    cache = filled(1, 1, 9, 8, lengths=past + 1)
    q = queries(1, 1, 1, 8)
    y = decoder.attention(q, cache, past, max_length=5)
    assert np.array_equal(decoder.attention(q, cache, past, out_dtype="float16"), y.astype(np.float16))
