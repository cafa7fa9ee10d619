"""Row lookup in a packed weight against indexing its dequantized values."""

import encoded_weights
import ml_dtypes
import numpy as np
import pytest
from encoded_weights import ENCODINGS
from linear_calls import assert_same

import qcore

KERNELS = [row.name for row in qcore.kernels("embedding") if row.device == "cpu" and row.available]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def run(kernel, indices, weight, **options):
    """Look rows up with one kernel and check that it was this kernel that ran."""
    with qcore.force_kernel("embedding", kernel):
        y = qcore.embedding(indices, weight, **options)
    if y.size:
        assert qcore.last_kernel("embedding") == kernel
    return y


def weight_of(shape, **options):
    values = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    return qcore.quantize(values, **options)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("shape, g", [((5, 7), 4), ((100, 130), 32), ((33, 600), 6), ((17, 1), 64), ((3, 0), 4)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_are_those_of_the_dequantized_weight(bits, scheme, shape, g, dtype):
    weight = weight_of(shape, bits=bits, scheme=scheme, block_size=g)
    rng = np.random.default_rng(4)
    for index_shape in ((), (0,), (1,), (9,), (2, 3, 4)):
        for index_dtype in (np.int32, np.int64):
            indices = rng.integers(0, shape[0], index_shape).astype(index_dtype)
            got = qcore.embedding(indices, weight, out_dtype=dtype)
            np.testing.assert_array_equal(got, weight.dequantize(dtype)[indices])
    if shape[1]:  # nothing runs for rows without elements
        assert qcore.last_kernel("embedding") == KERNELS[0]


def test_vectors_come_first():
    assert KERNELS[-1] == "reference"
    if {"avx2", "neon"} & set(qcore.info()["isa"]):
        assert KERNELS[0] in ("avx512", "avx2", "neon")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("shape, g", [((5, 7), 4), ((40, 130), 32), ((33, 600), 6), ((17, 1), 64), ((20, 2600), 128)])
def test_every_kernel_has_the_bits_of_the_reference(kernel, bits, scheme, shape, g):
    weight = weight_of(shape, bits=bits, scheme=scheme, block_size=g, scale_dtype="float16")
    indices = np.random.default_rng(5).integers(0, shape[0], (3, 31))
    for dtype in DTYPES:
        out = np.zeros((*indices.shape, shape[1]), dtype)
        wanted = run("reference", indices, weight, out=np.zeros_like(out))
        assert_same(run(kernel, indices, weight, out=out), wanted, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_kernel_looks_encoded_rows_up(kernel, name):
    for n, k, g in ((33, 256, 32), (5, 70, 16)):
        weight = encoded_weights.make(ENCODINGS[name], n, k, g).weight
        indices = np.array([n - 1, 0, 3, 3])
        for dtype in DTYPES:
            wanted = run("reference", indices, weight, out=np.zeros((4, k), dtype))
            assert_same(run(kernel, indices, weight, out=np.zeros((4, k), dtype)), wanted, kernel)
            steps = np.full((4, 2 * k + 1), 7, dtype)
            run(kernel, indices, weight, out=steps[:, 1::2])
            assert_same(steps[:, 1::2], wanted, kernel)
            assert (steps[:, ::2] == 7).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_beyond_the_caches(kernel, dtype):
    """A result of 8 MiB or more is written past the caches, wherever it begins."""
    weight = weight_of((64, 1056), bits=4, block_size=32)
    indices = np.random.default_rng(6).integers(0, 64, (8 << 20) // 1056 // np.dtype(dtype).itemsize + 1)
    memory = np.zeros(indices.size * 1056 + 1, dtype)
    wanted = run("reference", np.arange(64), weight, out=np.zeros((64, 1056), dtype))[indices]
    for start in (0, 1):
        out = memory[start : start + indices.size * 1056].reshape(-1, 1056)
        assert_same(run(kernel, indices, weight, out=out), wanted, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_strides_and_out(kernel):
    weight = weight_of((50, 40), bits=4, block_size=16)
    indices = np.arange(24, dtype=np.int64).reshape(4, 6)[::-2, ::3]
    buffer = np.full((2, 40, 5), np.nan, np.float32)
    out = buffer.transpose(0, 2, 1)[:, 1:3]
    assert run(kernel, indices, weight, out=out) is out
    np.testing.assert_array_equal(out, weight.dequantize()[indices])
    assert np.isnan(buffer[:, :, [0, 3, 4]]).all()


W = weight_of((6, 8), bits=8, block_size=4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: qcore.embedding([0], W), TypeError, "embedding: indices is a list, expected an array"),
        (lambda: qcore.embedding(np.zeros(2), W), TypeError, "indices has dtype float64, expected int32 or int64"),
        (
            lambda: qcore.embedding(np.zeros(2, np.float32), W),
            TypeError,
            "embedding: indices has dtype float32, expected int32 or int64",
        ),
        (
            lambda: qcore.embedding(np.array([[0, 6]]), W),
            ValueError,
            "embedding: indices holds 6 at element 1, expected 0 to N - 1 = 5",
        ),
        (lambda: qcore.embedding(np.array([-1]), W), ValueError, "embedding: indices holds -1 at element 0"),
        (
            lambda: qcore.embedding(np.array([1]), W.dequantize()),
            TypeError,
            "embedding: weight is a ndarray, expected a QuantizedTensor",
        ),
        (
            lambda: qcore.embedding(np.array([1]), qcore.quantize(np.ones((2, 2, 3, 3), np.float32))),
            ValueError,
            r"embedding: weight has 9 taps \(a convolution's\), expected \[N, K\]",
        ),
        (
            lambda: qcore.embedding(np.array([1]), W, out=np.zeros((1, 7), np.float32)),
            ValueError,
            r"embedding: out has shape \[1, 7\], expected \[1, 8\]",
        ),
        (
            lambda: qcore.embedding(np.array([1]), W, out=np.zeros((1, 8), np.float32), out_dtype="float32"),
            ValueError,
            "embedding: out and out_dtype are both given",
        ),
        (lambda: qcore.embedding(np.array([1]), W, out_dtype="int8"), TypeError, "embedding: out_dtype is 'int8'"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_nothing_is_written_on_an_error():
    out = np.full((2, 8), 7, np.float32)
    with pytest.raises(ValueError, match="indices holds 9"):
        qcore.embedding(np.array([1, 9]), W, out=out)
    assert (out == 7).all()
