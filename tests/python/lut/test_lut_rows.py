"""softmax and rms_norm on tables: every kernel against an oracle, any axis and strides, errors."""

import ml_dtypes
import numpy as np
import pytest
from linear_calls import assert_same
from lut_calls import DTYPES, Oracle, fma

import qcore

KERNELS = {
    op: [row.name for row in qcore.kernels(op) if row.device == "cpu" and row.available]
    for op in ("softmax", "rms_norm")
}
CALLS = [(op, kernel) for op, kernels in KERNELS.items() for kernel in kernels]
LENGTHS = (1, 2, 31, 32, 33, 64, 1000, 4097)


def total(terms, squares=False):
    """Return 32 partial sums along the last axis, added by halves; float32."""
    sums = np.zeros((*terms.shape[:-1], 32), np.float32)
    for start in range(0, terms.shape[-1], 32):
        part = terms[..., start : start + 32]
        lanes = sums[..., : part.shape[-1]]
        lanes[...] = fma(part, part, lanes) if squares else lanes + part
    for half in (16, 8, 4, 2, 1):
        sums[..., :half] += sums[..., half : 2 * half]
    return sums[..., :1]


def softmax_oracle(x, axis=-1):
    x = np.moveaxis(x.astype(np.float32), axis, -1)
    with np.errstate(all="ignore"):
        e = Oracle(qcore.lut.table("exp"))(x - np.fmax.reduce(x, axis=-1, keepdims=True))
        y = e * Oracle(qcore.lut.table("reciprocal"))(total(e))
    return np.moveaxis(y, -1, axis)


def rms_norm_oracle(x, weight=None, eps=1e-6):
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        mean = total(x, squares=True) / np.float32(x.shape[-1])
        y = x * Oracle(qcore.lut.table("rsqrt"))(mean + np.float32(eps))
        return y if weight is None else y * weight.astype(np.float32)


def run(op, kernel, x, *arguments, **options):
    with qcore.force_kernel(op, kernel):
        y = getattr(qcore.lut, op)(x, *arguments, **options)
    assert not y.size or qcore.last_kernel(op) == kernel
    return y


def oracle(op, x, **options):
    return (softmax_oracle if op == "softmax" else rms_norm_oracle)(x, **options)


def rows(count, length, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(0, 3, (count, length)).astype(dtype)


@pytest.mark.parametrize(("op", "kernel"), CALLS)
@pytest.mark.parametrize("length", LENGTHS)
def test_rows(op, kernel, length):
    for dtype in DTYPES:
        x = rows(3, length, dtype, length)
        assert_same(run(op, kernel, x), oracle(op, x).astype(dtype), dtype)


@pytest.mark.parametrize(("op", "kernel"), CALLS)
@pytest.mark.parametrize("length", [40, 64, 1088])  # whole vectors of fp32 are read where they lie
def test_rows_without_an_ordinary_result(op, kernel, length):
    x = rows(7, length)
    x[0, 3], x[1, 39], x[2, 0], x[3] = np.nan, np.inf, -np.inf, -np.inf
    x[4], x[5] = 0, 3e38
    y = run(op, kernel, x)
    assert_same(y, oracle(op, x))
    assert np.isnan(y[0]).all() and np.isnan(y[3]).all() and not np.isnan(y[6]).any()
    if op == "softmax":
        assert np.isnan(y[1]).all() and y[2, 0] == 0
    else:
        assert np.isnan(y[1, 39]) and (np.delete(y[1], 39) == 0).all()


@pytest.mark.parametrize("kernel", KERNELS["softmax"])
def test_softmax_over_any_axis_and_strides(kernel):
    x = np.random.default_rng(1).normal(0, 3, (5, 33, 4, 6)).astype(np.float16)
    for axis in range(-4, 4):
        for view in (x, x.transpose(2, 0, 3, 1), x[::-1, ::2, :, 1::2]):
            expected = softmax_oracle(view, axis).astype(np.float16)
            assert_same(run("softmax", kernel, view, axis), expected, axis)
            out = np.zeros(view.shape[::-1], np.float32).T
            assert run("softmax", kernel, view, axis, out=out) is out
            assert_same(out, softmax_oracle(view, axis), axis)
    same = x.copy()
    run("softmax", kernel, same, 1, out=same)
    assert_same(same, softmax_oracle(x, 1).astype(np.float16))


@pytest.mark.parametrize("kernel", KERNELS["softmax"])
def test_softmax_of_whole_vectors(kernel):
    x = rows(9, 2112)
    x[1] *= 40  # most results are 0 or below 2^-126
    x[2] = np.repeat(np.float32([0, -1e-30, -1e-10, -88, -104, -1e30, 5, 5 - 1e-6]), 264)
    expected = softmax_oracle(x)
    assert_same(run("softmax", kernel, x), expected)
    odd = np.zeros(x.size + 1, np.float32)[1:].reshape(x.shape)
    odd[...] = x
    assert_same(run("softmax", kernel, odd, out=odd), expected)


@pytest.mark.parametrize("kernel", KERNELS["rms_norm"])
def test_rms_norm_weights(kernel):
    x = rows(4, 100, np.float16)
    for dtype in DTYPES:
        for weight in (rows(1, 100, dtype)[0], rows(1, 200, dtype)[0, ::2], np.full(100, np.nan, dtype)):
            for eps in (0, 1e-6, 0.5):
                y = run("rms_norm", kernel, x, weight, eps)
                assert_same(y, rms_norm_oracle(x, weight, eps).astype(np.float16))
    strided = rows(100, 8).T[::2]
    assert_same(run("rms_norm", kernel, strided), rms_norm_oracle(strided))


@pytest.mark.parametrize(("op", "kernel"), CALLS)
def test_many_rows_on_threads(op, kernel):
    x = np.resize(rows(7, 130), (901, 130))
    expected = np.resize(oracle(op, x[:7]), (901, 130))
    before = qcore.get_num_threads()
    try:
        for threads in (1, 4):
            qcore.set_num_threads(threads)
            assert_same(run(op, kernel, x), expected)
    finally:
        qcore.set_num_threads(before)


def test_accuracy():
    x = rows(50, 1000)
    exact = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    error = np.abs(qcore.lut.softmax(x) - exact) / exact
    assert error.mean() < 6e-4 and error.max() < 3e-3
    assert abs(qcore.lut.softmax(x).sum(-1) - 1).max() < 1e-3
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
    assert (np.abs(qcore.lut.rms_norm(x) - exact) <= 1e-3 * np.abs(exact)).all()


def test_nothing_to_do():
    for shape in [(0, 5), (5, 0)]:
        for op in KERNELS:
            assert getattr(qcore.lut, op)(np.zeros(shape, np.float32)).shape == shape


X = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("op", "arguments", "options", "error", "words"),
    [
        ("softmax", (X, 2), {}, ValueError, "softmax: axis is 2, expected -2 to 1 for x of shape [2, 3]"),
        ("softmax", (X, 1.0), {}, TypeError, "softmax: axis is 1.0, expected an integer"),
        ("softmax", (X[0, 0].reshape(()),), {}, ValueError, "softmax: x has shape [], expected at least one axis"),
        ("softmax", (X.astype(np.int32),), {}, TypeError, "softmax: x has dtype int32"),
        ("softmax", (X,), {"out": X[:1]}, ValueError, "softmax: out has shape [1, 3], expected [2, 3]"),
        ("rms_norm", (X, X[:, 0]), {}, ValueError, "rms_norm: weight has shape [2], expected [3]"),
        ("rms_norm", (X, np.zeros(3)), {}, TypeError, "rms_norm: weight"),
        ("rms_norm", (X, None, -1.0), {}, ValueError, "rms_norm: eps is -1, expected a number from 0"),
        ("rms_norm", (X, None, float("nan")), {}, ValueError, "rms_norm: eps is nan"),
        ("rms_norm", (X, None, "1"), {}, TypeError, "rms_norm: eps is '1', expected a number"),
        ("rms_norm", (np.zeros((), np.float32),), {}, ValueError, "rms_norm: x has shape []"),
        ("rms_norm", (X, X[0]), {"out": X}, ValueError, "rms_norm: out overlaps weight in memory"),
        ("rms_norm", (X,), {"out": X[:, :2]}, ValueError, "rms_norm: out has shape [2, 2]"),
    ],
)
def test_errors(op, arguments, options, error, words):
    with pytest.raises(error) as caught:
        getattr(qcore.lut, op)(*arguments, **options)
    assert words in str(caught.value) and isinstance(caught.value, qcore.QcoreError)


def test_bfloat16_numpy_results():
    y = qcore.lut.softmax(rows(2, 9, ml_dtypes.bfloat16))
    assert y.dtype == ml_dtypes.bfloat16 and y.shape == (2, 9)
