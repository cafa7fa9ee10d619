"""grouped_linear against the oracle in NumPy, and bit for bit against linear for each expert."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from linear_calls import BITS, INTEGER_MODES, MODES, SCHEMES, assert_same

import qcore

KERNELS = [row.name for row in qcore.kernels("grouped_linear") if row.device == "cpu" and row.available]
COUNTS = ([3, 0, 1, 5], [1] * 8, [9], [0, 0, 40], [0, 65, 2, 0, 13], [0, 0])


def experts_of(rng, count, n, k, **options):
    weights = [qcore.quantize(rng.standard_normal((n, k), np.float32), **options) for _ in range(count)]
    return weights, qcore.concatenate(weights)


def oracle_weight(weight):
    codes = weight.codes().astype(np.int64)
    return oracle.Quantized(codes, weight.scales(), weight.offsets(), weight.block_size)


def by_linear(x, weights, counts, bias=None, **options):
    """Return what linear gives for each expert's rows, after each other."""
    ends = np.cumsum(counts)
    parts = [
        qcore.linear(x[end - count : end], weight, None if bias is None else bias[e], **options)
        for e, (weight, count, end) in enumerate(zip(weights, counts, ends, strict=True))
    ]
    return np.concatenate(parts)


def run_all(x, weight, counts, bias=None, *, shape, dtype=np.float32, **options):
    """Return the result of every kernel that takes the call, each written into poison between guards."""
    for kernel in KERNELS:
        memory = np.full(shape[0] * shape[1] + 66, 12345, dtype)
        out = memory[33:-33].reshape(shape)
        out[...] = np.nan
        try:
            with qcore.force_kernel("grouped_linear", kernel):
                assert qcore.grouped_linear(x, weight, counts, bias, out=out, **options) is out
        except qcore.QcoreValueError as error:
            assert "does not take this call: it computes in" in str(error)
            continue
        assert (memory[:33] == memory[0]).all() and (memory[-33:] == memory[0]).all(), kernel
        yield kernel, out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_kernel_has_the_bits_of_linear(mode, bits, scheme):
    rng = np.random.default_rng(bits)
    for counts in COUNTS:
        for n, k, g in ((33, 100, 32), (16, 64, 64), (80, 130, 48)):
            weights, weight = experts_of(rng, len(counts), n, k, bits=bits, scheme=scheme, block_size=g)
            x = rng.standard_normal((sum(counts), k), np.float32)
            bias = rng.standard_normal((len(counts), n), np.float32)
            for activation in (None, "relu", "gelu", "tanh"):
                options = {"compute": mode, "activation": activation}
                expected = by_linear(x, weights, counts, bias, **options)
                results = list(run_all(x, weight, np.array(counts), bias, shape=expected.shape, **options))
                assert len(results) >= 1
                for kernel, got in results:
                    assert_same(got, expected, kernel, counts, n, k, g)


@pytest.mark.parametrize("mode", INTEGER_MODES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_oracle_agrees(mode, scheme):
    rng = np.random.default_rng(7)
    counts, n, k, g = [2, 0, 3, 1], 18, 70, 32
    weights, weight = experts_of(rng, 4, n, k, bits=4, scheme=scheme, block_size=g)
    x, bias = rng.standard_normal((6, k), np.float32), rng.standard_normal((4, n), np.float32)
    expert_of_row = np.repeat(np.arange(4), counts)
    expected = np.concatenate(
        [
            oracle.linear(x[row : row + 1], oracle_weight(weights[e]), mode, scheme == "asymmetric") + bias[e]
            for row, e in enumerate(expert_of_row)
        ]
    )
    for kernel, got in run_all(x, weight, np.array(counts, np.int32), bias, shape=(6, n), compute=mode):
        assert_same(got, expected, kernel)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_strides_dtypes_and_out(dtype):
    rng = np.random.default_rng(8)
    counts = [4, 0, 1, 2]
    weights, weight = experts_of(rng, 4, 40, 96, bits=4, block_size=32)
    x = rng.standard_normal((7, 96)).astype(dtype)
    bias = rng.standard_normal((4, 40)).astype(dtype)
    wide = np.full((96, 14), np.nan, dtype)
    wide[:, ::2] = x.T
    spread = np.array([[count, -1, -1] for count in counts[::-1]], np.int32)[::-1, 0]
    for mode in MODES:
        expected = by_linear(x, weights, counts, bias, compute=mode)
        assert expected.dtype == dtype
        assert_same(qcore.grouped_linear(wide[:, ::2].T, weight, spread, bias.T.copy().T, compute=mode), expected, mode)
        buffer = np.full((40, 7, 2), np.nan, dtype)
        out = buffer[:, :, 1].T
        assert qcore.grouped_linear(x, weight, np.array(counts), bias, compute=mode, out=out) is out
        assert_same(out, expected, mode)
        assert np.isnan(buffer[:, :, 0].astype(np.float32)).all()
    got = qcore.grouped_linear(x, weight, np.array(counts), out_dtype="float16")
    assert_same(got, by_linear(x, weights, counts, out_dtype="float16"))


def test_weights_that_keep_their_encoding():
    rng = np.random.default_rng(9)
    counts = np.array([1, 0, 6])
    encoding = qcore.WeightEncoding(3, "float16", zero=4)
    codes = rng.integers(0, 8, (60, 64)).astype(np.uint8)
    scales = rng.random((60, 2), np.float32).astype(np.float16)
    whole = qcore.QuantizedTensor.from_encoded(codes, scales, encoding=encoding, block_size=32)
    weights = [
        qcore.QuantizedTensor.from_encoded(codes[i : i + 20], scales[i : i + 20], encoding=encoding, block_size=32)
        for i in (0, 20, 40)
    ]
    x = rng.standard_normal((7, 64), np.float32)
    for mode in MODES:
        expected = by_linear(x, weights, counts, compute=mode)
        for kernel, got in run_all(x, whole, counts, shape=(7, 20), compute=mode):
            assert_same(got, expected, kernel, mode)


def test_no_rows_and_no_outputs():
    rng = np.random.default_rng(10)
    _, weight = experts_of(rng, 3, 5, 8, bits=8, block_size=4)
    assert qcore.grouped_linear(np.zeros((0, 8), np.float32), weight, np.zeros(3, np.int64)).shape == (0, 5)
    with pytest.raises(ValueError, match="row_counts sums to 0, expected the M = 2 rows of x"):
        qcore.grouped_linear(np.zeros((2, 8), np.float32), weight, np.zeros(3, np.int64))


W = qcore.quantize(np.random.default_rng(11).standard_normal((12, 8), np.float32), bits=8, block_size=4)
X = np.ones((4, 8), np.float32)
ROWS = np.array([1, 0, 3])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": [1.0]}, TypeError, "grouped_linear: x is a list, expected an array"),
        ({"x": X[0]}, ValueError, r"grouped_linear: x has shape \[8\], expected \[M, K\] with K = 8"),
        (
            {"x": X[:, :7]},
            ValueError,
            r"grouped_linear: x has shape \[4, 7\], expected its last dimension to be K = 8 of the weight \[12, 8\]",
        ),
        ({"x": X.astype(np.int32)}, TypeError, "grouped_linear: x has dtype int32"),
        ({"weight": X}, TypeError, "grouped_linear: weight is a ndarray, expected a QuantizedTensor"),
        (
            {"weight": qcore.quantize(np.ones((3, 8, 3, 3), np.float32))},
            ValueError,
            r"grouped_linear: weight has 9 taps \(a convolution's\), expected \[E\*N, K\]",
        ),
        ({"row_counts": [1, 0, 3]}, TypeError, "grouped_linear: row_counts is a list, expected an array"),
        (
            {"row_counts": ROWS.astype(np.float32)},
            TypeError,
            "grouped_linear: row_counts has dtype float32, expected int32 or int64",
        ),
        (
            {"row_counts": ROWS[None]},
            ValueError,
            r"grouped_linear: row_counts has shape \[1, 3\], expected \[E\] with at least one expert",
        ),
        ({"row_counts": ROWS[:0]}, ValueError, r"grouped_linear: row_counts has shape \[0\], expected \[E\]"),
        (
            {"row_counts": np.ones(5, int)},
            ValueError,
            r"grouped_linear: the weight has 12 rows, expected E\*N: a multiple of the E = 5 elements of row_counts",
        ),
        (
            {"row_counts": np.array([5, -1, 0])},
            ValueError,
            "grouped_linear: row_counts exceeds the rows of x at element 0: 5 after 0 of the experts before, "
            "expected M = 4 in all",
        ),
        (
            {"row_counts": np.array([4, -1, 1])},
            ValueError,
            "grouped_linear: row_counts holds -1 at element 1, expected 0 or more",
        ),
        (
            {"row_counts": np.array([1, 1, 1])},
            ValueError,
            "grouped_linear: row_counts sums to 3, expected the M = 4 rows of x",
        ),
        ({"bias": np.zeros(12, np.float32)}, ValueError, r"grouped_linear: bias has shape \[12\], expected \[3, 4\]"),
        ({"bias": np.zeros((3, 4), int)}, TypeError, "grouped_linear: bias has dtype int64"),
        ({"compute": "int4"}, ValueError, "grouped_linear: compute is 'int4', expected one of"),
        ({"activation": "erf"}, ValueError, "grouped_linear: activation is 'erf', expected None"),
        ({"activation": (2, 1)}, ValueError, r"grouped_linear: activation clamps to \(2, 1\), expected lo <= hi"),
        ({"out_dtype": "float32"}, ValueError, "grouped_linear: out and out_dtype are both given"),
        ({"out_dtype": "int8", "out": None}, TypeError, "grouped_linear: out_dtype is 'int8'"),
        (
            {"out": np.zeros((4, 5), np.float32)},
            ValueError,
            r"grouped_linear: out has shape \[4, 5\], expected \[4, 4\]",
        ),
        ({"stream": "default"}, TypeError, "grouped_linear: stream is"),
    ],
)
def test_errors_name_the_argument_and_nothing_is_written(change, error, message):
    out = np.full((4, 4), np.nan, np.float32)
    arguments = {"x": X, "weight": W, "row_counts": ROWS, "bias": None, "out": out} | change
    with pytest.raises(error, match=message) as caught:
        qcore.grouped_linear(**arguments)
    assert isinstance(caught.value, qcore.QcoreError)
    assert np.isnan(out).all()


def test_out_must_not_share_memory():
    memory = np.ones((4, 16), np.float32)
    with pytest.raises(ValueError, match="grouped_linear: out"):
        qcore.grouped_linear(memory[:, :8], W, ROWS, out=memory[:, 4:8])
    assert (memory == 1).all()
