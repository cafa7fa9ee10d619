"""awq.linear and awq.Weight: every way to the product agrees with the exact one within the rounding of fp32 sums."""

import awq_oracle as oracle
import ml_dtypes
import numpy as np
import pytest

import qcore
from qcore import awq

KERNELS = [row.name for row in qcore.kernels("awq_linear") if row.device == "cpu" and row.available]
FEW, MANY = (1, 2, 3, 4, 5, 7, 8, 12), (13, 40)
SHAPES = [(1, 8, 1), (30, 24, 10), (35, 40, 7), (128, 136, 128), (256, 1160, 64), (96, 2056, 32)]
ROUNDING = {np.float32: 2.0**-24, np.float16: 2.0**-11, ml_dtypes.bfloat16: 2.0**-8}


def weight_of(k, n, group_size):
    return oracle.make(k, n, group_size, scales=oracle.ordinary_scales(k, n, group_size))


def assert_close(y, x, weight, bias=None):
    """Within fp32 sums of scale * code and offset terms, and one rounding to y's dtype."""
    matrix = oracle.exact(*weight)
    x = x.astype(np.float64)
    expected = x @ matrix + (0 if bias is None else bias.astype(np.float64))
    # A code is below 8 and an offset below 15 scales in magnitude.
    largest = np.abs(x) @ (23 * np.abs(weight[1].astype(np.float64)).repeat(len(matrix) // len(weight[1]), 0))
    bound = len(matrix) * 2.0**-24 * largest + 2 * ROUNDING[y.dtype.type] * np.abs(expected) + 1e-7
    assert (np.abs(y.astype(np.float64) - expected) <= bound).all()


def run(kernel, x, weight, bias=None, **options):
    with qcore.force_kernel("awq_linear", kernel):
        y = awq.linear(x, *weight, bias, **options)
    assert qcore.last_kernel("awq_linear") == kernel
    return y


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_few_rows(kernel, shape):
    weight = weight_of(*shape)
    rng = np.random.default_rng(1)
    for m in FEW:
        x = rng.standard_normal((m, shape[0])).astype(np.float32)
        out = np.full((m + 2, shape[1] + 3), np.float32(777))
        y = run(kernel, x, weight, out=out[1:-1, 1:-2])
        assert_close(y, x, weight)
        out[1:-1, 1:-2] = 777
        assert (out == 777).all()


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("m", [1, 4, 40])
def test_dtypes_bias_and_ways(dtype, m):
    weight = weight_of(256, 136, 64)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((m, 256)).astype(dtype)
    bias = rng.standard_normal(136).astype(np.float16)
    packed = awq.Weight(*weight)
    for b in (None, bias):
        for y in (awq.linear(x, *weight, b), packed(x, b)):
            assert y.dtype == dtype
            assert_close(y, x, weight, b)


@pytest.mark.parametrize("m", MANY)
def test_many_rows_are_packed(m):
    weight = weight_of(96, 72, 24)
    x = np.random.default_rng(3).standard_normal((m, 96)).astype(np.float32)
    y = awq.linear(x, *weight)
    np.testing.assert_array_equal(y, awq.Weight(*weight)(x))
    assert_close(y, x, weight)


@pytest.mark.parametrize("kernel", KERNELS)
def test_axes_and_strides(kernel):
    weight = weight_of(64, 40, 32)
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 64, 3)).astype(np.float32).transpose(2, 0, 1)
    out = np.zeros((2, 40, 3), np.float16).transpose(2, 0, 1)
    assert run(kernel, x, weight, rng.standard_normal(80).astype(np.float32)[::2], out=out) is out
    bias = np.random.default_rng(4)
    bias.standard_normal((2, 64, 3))
    assert_close(out.reshape(6, 40), x.reshape(6, 64), weight, bias.standard_normal(80).astype(np.float32)[::2])
    vector = np.ascontiguousarray(x[0, 0])
    assert_close(run(kernel, vector, weight)[None], vector[None], weight)
    assert awq.linear(np.empty((0, 64), np.float32), *weight).shape == (0, 40)


def test_columns_apart_go_to_the_reference():
    weight = weight_of(64, 40, 32)
    x = np.ones((2, 64), np.float32)
    assert_close(awq.linear(x, *map(np.asfortranarray, weight)), x, weight)
    assert qcore.last_kernel("awq_linear") == "reference"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads(kernel, threads):
    weight = weight_of(64, 1160, 32)
    x = np.random.default_rng(5).standard_normal((2, 64)).astype(np.float32)
    before = qcore.get_num_threads()
    try:
        qcore.set_num_threads(threads)
        assert_close(run(kernel, x, weight), x, weight)
    finally:
        qcore.set_num_threads(before)


WEIGHT = weight_of(64, 16, 32)
VALUE, TYPE = qcore.QcoreValueError, qcore.QcoreTypeError
X = np.ones((2, 64), np.float32)


@pytest.mark.parametrize(
    ("x", "options", "kind", "message"),
    [
        (X[:, :63], {}, VALUE, "x has shape [2, 63], expected [..., K] with K = 64 of qweight [64, 2]"),
        (X.astype(np.float64), {}, TYPE, "x has dtype float64"),
        (X, {"bias": np.ones(15, np.float32)}, VALUE, "bias has shape [15], expected [16]"),
        (X, {"bias": np.ones(16, np.int32)}, TYPE, "bias has dtype int32, expected float32, float16 or bfloat16"),
        (X, {"out": np.zeros((2, 15), np.float32)}, VALUE, "out has shape [2, 15], expected [2, 16]"),
        (X, {"out": X[:, :16]}, VALUE, "out overlaps x in memory, expected separate arrays"),
        (3, {}, TYPE, "x is a int, expected an array"),
    ],
)
def test_errors(x, options, kind, message):
    with pytest.raises(kind) as caught:
        awq.linear(x, *WEIGHT, **options)
    assert str(caught.value).startswith(f"awq.linear: {message}")
