"""Row lookup in a packed weight against indexing its dequantized values."""

import numpy as np
import pytest

import qcore


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
    assert qcore.last_kernel("embedding") == "reference"


def test_strides_and_out():
    weight = weight_of((50, 40), bits=4, block_size=16)
    indices = np.arange(24, dtype=np.int64).reshape(4, 6)[::-2, ::3]
    buffer = np.full((2, 40, 5), np.nan, np.float32)
    out = buffer.transpose(0, 2, 1)[:, 1:3]
    assert qcore.embedding(indices, weight, out=out) is out
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
