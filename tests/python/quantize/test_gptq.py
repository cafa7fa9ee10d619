"""method="gptq": the paper's algorithm, its error below the other methods', and every bad argument refused."""

import ml_dtypes
import numpy as np
import pytest
from method_oracles import gptq_oracle

import qcore
from qcore import _core
from qcore.methods import gptq

F32 = np.float32
SCHEMES = ("symmetric", "asymmetric")


def weights(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k), dtype=F32)


def correlated(m, k, seed=0):
    """Return inputs in which few directions hold most of the energy."""
    mix = np.random.default_rng(99).standard_normal((k // 4, k))
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((m, k // 4)) @ mix + 0.3 * rng.standard_normal((m, k))).astype(F32)


def output_error(weight, w, x):
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    return np.linalg.norm(x.astype(np.float64) @ weight.dequantize().T.astype(np.float64) - exact) / np.linalg.norm(
        exact
    )


def searched(block, counts, **options):
    """Return the scales and offsets that method "awq" finds for one block with these importances."""
    weight = qcore.quantize(block, block_size=block.shape[1], method="awq", samples=np.sqrt(counts)[None], **options)
    return weight.scales()[:, 0], weight.offsets()[:, 0]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize(("n", "b", "blocks"), [(1, 1, 1), (5, 7, 1), (33, 40, 3), (17, 128, 4)])
def test_columns_have_the_bits_of_their_definition(n, b, blocks, bits, scheme):
    rng = np.random.default_rng(b)
    w, upper = weights(n, b), np.triu(weights(b, b, 1)) * F32(0.2)
    np.fill_diagonal(upper, rng.uniform(0.5, 2, b))
    scales = rng.standard_normal((n, blocks), dtype=F32) / 5
    scales[::3, 0] = 0
    offsets = rng.standard_normal((n, blocks), dtype=F32) if scheme == "asymmetric" else np.zeros((n, blocks), F32)
    columns = rng.integers(0, blocks, b)
    expected, errors = gptq_oracle.columns(w, upper, scales, offsets, columns, bits)
    codes, got = np.empty((n, b), np.int8), w.copy()
    _core.gptq_columns(got, upper, scales, None if scheme == "symmetric" else offsets, columns, codes, bits)
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(got, errors)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("g", [32, 40, 64, 128, 200, 1000])
def test_codes_are_those_of_the_paper(g, bits, scheme, act_order):
    k = 330
    w, x = weights(24, k), correlated(700, k) * np.exp(np.random.default_rng(3).standard_normal(k)).astype(F32)
    weight = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, method="gptq", samples=x, act_order=act_order)
    assert (weight.bits, weight.block_size, weight.scheme) == (bits, g, scheme)
    choose = lambda block, counts: searched(block, counts, bits=bits, scheme=scheme)  # noqa: E731
    codes, scales, offsets = gptq_oracle.quantize(w, x, min(g, k), bits, choose, act_order=act_order)
    same = (weight.codes() == codes).all(axis=1)
    # Sums are rounded to float32 here; the first code that this changes leads to others in its row.
    assert same.mean() >= (0.8 if bits == 4 else 0.1)
    np.testing.assert_allclose(weight.scales()[same], scales[same], rtol=2e-3)
    np.testing.assert_allclose(weight.offsets()[same], offsets[same], rtol=2e-3, atol=1e-4)
    exact = qcore.QuantizedTensor.from_parts(
        codes.astype(np.int8), scales, None if scheme == "symmetric" else offsets, bits=bits, block_size=g
    )
    assert output_error(weight, w, x) == pytest.approx(output_error(exact, w, x), rel=0.02)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("scale_dtype", ["float32", "float16"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("g", [6, 16, 32, 64, 96, 256])
def test_the_error_of_outputs_is_below_other_methods(g, scheme, scale_dtype, act_order):
    w, x, others = weights(64, 256), correlated(1000, 256), correlated(500, 256, seed=1)
    options = {"block_size": g, "scheme": scheme, "scale_dtype": scale_dtype}
    weight = qcore.quantize(w, method="gptq", samples=x, act_order=act_order, **options)
    assert scale_dtype == "float32" or weight.scale_dtype == "float16"
    ours = output_error(weight, w, others)
    for method in ("rtn", "mse", "awq"):
        samples = x if method == "awq" else None
        other = output_error(qcore.quantize(w, method=method, samples=samples, **options), w, others)
        assert ours < 0.7 * other


@pytest.mark.parametrize("scheme", SCHEMES)
def test_mse_with_samples_is_awq(scheme):
    w, x = weights(32, 96), correlated(300, 96)
    x[:, ::10] *= 30
    options = {"block_size": 32, "scheme": scheme}
    weight = qcore.quantize(w, method="mse", samples=x, **options)
    assert weight == qcore.quantize(w, method="awq", samples=x, **options)
    assert output_error(weight, w, x) < 0.7 * output_error(qcore.quantize(w, method="mse", **options), w, x)


def test_activation_order_helps_with_outliers():
    w, x = weights(64, 256), correlated(1000, 256)
    x[:, ::50] *= 30
    errors = {
        act_order: output_error(qcore.quantize(w, block_size=128, method="gptq", samples=x, act_order=act_order), w, x)
        for act_order in (False, True)
    }
    assert errors[True] < 0.9 * errors[False]


@pytest.mark.parametrize("act_order", [False, True])
def test_channels_that_no_sample_uses_are_rounded_to_nearest(act_order):
    w, x = weights(16, 128), correlated(500, 128)
    x[:, 40:50] = 0
    weight = qcore.quantize(w, block_size=32, method="gptq", samples=x, act_order=act_order)
    parts = weight.scales(), weight.codes()
    expected, _ = gptq_oracle.nearest(w[:, 40:50].astype(np.float64), parts[0][:, 1:2], 0.0, 4)
    np.testing.assert_array_equal(parts[1][:, 40:50], expected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_zero_samples_leave_the_search(scheme):
    w = weights(16, 100)
    weight = qcore.quantize(w, block_size=32, scheme=scheme, method="gptq", samples=np.zeros((3, 100)))
    assert weight == qcore.quantize(w, block_size=32, scheme=scheme, method="mse")


@pytest.mark.parametrize("m", [1, 20])
def test_fewer_samples_than_features(m):
    w, x = weights(16, 128), correlated(m, 128)
    weight = qcore.quantize(w, block_size=32, method="gptq", samples=x)
    assert output_error(weight, w, x) < 0.3 * output_error(qcore.quantize(w, block_size=32, method="mse"), w, x)


def test_a_hessian_stands_for_samples():
    w, x = weights(16, 96), correlated(300, 96)
    expected = qcore.quantize(w, method="gptq", samples=x)
    hessian = qcore.Hessian(96)
    hessian.add(x)
    assert (hessian.rows, repr(hessian)) == (300, "Hessian(features=96, rows=300)")
    assert qcore.quantize(w, method="gptq", hessian=hessian) == expected
    assert qcore.quantize(w, method="gptq", hessian=hessian.matrix) == expected
    batches = qcore.Hessian(96)
    for batch in x.reshape(3, 10, 10, 96):
        batches.add(batch)
    np.testing.assert_allclose(batches.matrix, x.astype(np.float64).T @ x, rtol=1e-4, atol=1e-2)
    double = x.astype(np.float64).T @ x
    errors = [output_error(qcore.quantize(w, method="gptq", hessian=each), w, x) for each in (batches, double)]
    assert errors == pytest.approx([output_error(expected, w, x)] * 2, rel=0.02)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_weights_of_other_dtypes_and_strides(dtype):
    w, x = weights(20, 64).astype(dtype), correlated(100, 64)
    expected = qcore.quantize(w.astype(F32), method="gptq", samples=x, block_size=16)
    assert qcore.quantize(w, method="gptq", samples=x, block_size=16) == expected
    kept = w.copy()
    assert qcore.quantize(np.asfortranarray(w)[::1], method="gptq", samples=x, block_size=16) == expected
    assert qcore.quantize(w[::-1], method="gptq", samples=x, block_size=16).slice_rows(0, 3) == qcore.quantize(
        w[:-4:-1], method="gptq", samples=x, block_size=16
    )
    np.testing.assert_array_equal(w, kept)  # the caller's weight is not written to


def test_weights_that_are_constant_zero_or_empty():
    x = correlated(100, 64)
    for scheme in SCHEMES:
        w = np.zeros((3, 64), F32)
        assert not qcore.quantize(w, scheme=scheme, method="gptq", samples=x).dequantize().any()
        assert qcore.quantize(w[:0], scheme=scheme, method="gptq", samples=x).shape == (0, 64)
    w[1] = 3.5
    weight = qcore.quantize(w, scheme="asymmetric", method="gptq", samples=x)
    np.testing.assert_array_equal(weight.dequantize(), w)


def test_batches_cover_all_columns_and_respect_blocks():
    for k in (1, 31, 128, 300, 1000):
        for g in (1, 3, 32, 40, 127, 128, 129, 300, 5000):
            for is_static in (False, True):
                units = [unit for batch in gptq._batches(k, min(g, k), is_static) for unit in batch]
                assert [begin for begin, _ in units] == [0, *(end for _, end in units[:-1])]
                assert units[-1][1] == k
                assert all(0 < end - begin <= 128 for begin, end in units)
                # A block begins with a unit, or is smaller than one and lies in it.
                edges = {begin for begin, _ in units}
                assert is_static or g < 32 or all(p in edges for p in range(0, k, g))


W, X = np.ones((8, 64), F32), np.ones((5, 64), F32)
NAN = np.full((5, 64), np.nan)
# Eight channels are a million times eight others, which compensate their errors by large multiples of them.
STEEP = np.zeros((64, 64))
STEEP[np.arange(40), np.arange(40)] = np.where(np.arange(40) < 8, 1e12, 1)
STEEP[np.arange(8), np.arange(32, 40)] = STEEP[np.arange(32, 40), np.arange(8)] = 1e6


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        (W, {}, "samples is missing, expected inputs"),
        (W, {"samples": X[:, :9]}, r"samples has shape \[5, 9\], expected \[M, K\] with K = 64"),
        (W, {"samples": X[0]}, r"samples has shape \[64\], expected \[M, K\] with K = 64"),
        (W, {"samples": X[:0]}, r"samples has shape \[0, 64\], expected \[M, K\] with K = 64"),
        (W, {"samples": NAN}, "samples holds a NaN, an infinity or numbers whose squares exceed float32"),
        (W, {"samples": X, "damping": -0.1}, "damping is -0.1, expected a finite number of 0 or more"),
        (W, {"samples": X, "damping": np.inf}, "damping is inf, expected a finite number of 0 or more"),
        (W, {"samples": X, "damping": "much"}, "damping is 'much', expected a number"),
        (W, {"samples": X, "act_order": 1}, "act_order is 1, expected True or False"),
        (W, {"samples": X, "damping": 0.0}, "samples is not positive definite with damping=0, expected a larger"),
        (W, {"samples": X, "hessian": np.eye(64)}, "samples and hessian are given, expected one of them"),
        (W, {"hessian": np.eye(9)}, r"hessian has shape \[9, 9\], expected \[K, K\] with K = 64"),
        (W, {"hessian": np.ones((64, 9))}, r"hessian has shape \[64, 9\], expected \[K, K\]"),
        (W, {"hessian": np.eye(64, dtype=int)}, "hessian has dtype int64, expected float32 or float64, or a Hessian"),
        (W, {"hessian": np.diag(NAN[0])}, "hessian holds a NaN or an infinity"),
        (W, {"hessian": np.triu(np.ones((64, 64)))}, "hessian is not symmetric"),
        (W, {"hessian": -np.eye(64)}, "hessian is not symmetric or has a negative number on its diagonal"),
        (W, {"hessian": qcore.Hessian(64)}, r"hessian has no rows, expected one or more"),
        (W, {"method": "mse", "damping": 0.1}, "damping is 0.1, expected 0.01 with method='mse': it is for"),
        (W, {"method": "rtn", "act_order": True}, "act_order is True, expected False with method='rtn'"),
        (W, {"method": "mse", "hessian": np.eye(64)}, "hessian is ndarray, expected None with method='mse'"),
        (W, {"method": "rtn", "samples": X}, "samples is given, expected inputs"),
        (W, {"samples": X, "bits": 7}, "bits is 7"),
        (W, {"samples": X, "block_size": 0}, "block_size is 0"),
        (W * np.nan, {"samples": X}, "weight holds a NaN or an infinity"),
        (W.reshape(8, 64, 1, 1), {"samples": X}, r"weight has shape \[8, 64, 1, 1\], expected \[N, K\] with method"),
        (
            weights(8, 64) * F32(5e37),
            {"hessian": STEEP, "damping": 1e-9, "scale_dtype": "float32"},
            "exceed float32, expected a larger damping",
        ),
    ],
)
def test_bad_arguments(weight, options, message):
    with pytest.raises(qcore.QcoreError, match=f"quantize: .*{message}"):
        qcore.quantize(weight, **{"method": "gptq"} | options)


def test_bad_batches_leave_a_hessian_as_it_was():
    hessian = qcore.Hessian(4)
    hessian.add(np.ones((2, 4)))
    for bad, message in (
        (np.ones((2, 5)), r"samples has shape \[2, 5\], expected \[..., K\] with K = 4"),
        (np.ones(4), r"samples has shape \[4\]"),
        (np.full((2, 4), np.inf), "samples holds a NaN"),
        (np.full((2, 4), 1e30), "samples holds a NaN, an infinity or numbers whose squares exceed float32"),
    ):
        with pytest.raises(qcore.QcoreValueError, match=f"Hessian.add: {message}"):
            hessian.add(bad)
    assert hessian.rows == 2
    np.testing.assert_array_equal(hessian.matrix, np.full((4, 4), 2))
    for features, error in ((0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="Hessian: features is"):
            qcore.Hessian(features)


def test_bad_columns():
    ones, zeros = np.ones((8, 1), F32), np.zeros(64, np.int64)

    def call(w=W, upper=None, scales=ones, blocks=zeros, codes=None, bits=4):
        codes = np.empty((8, 64), np.int8) if codes is None else codes
        _core.gptq_columns(
            w.copy(), np.eye(64, dtype=F32) if upper is None else upper, scales, None, blocks, codes, bits
        )

    call()
    for options, message in (
        ({"bits": 7}, "bits is 7, expected 2, 3, 4, 5, 6 or 8"),
        ({"upper": np.zeros((64, 64), F32)}, r"factor\[0, 0\] is 0, expected a number above 0"),
        ({"upper": np.eye(9, dtype=F32)}, "factor has shape"),
        ({"upper": np.asfortranarray(np.triu(np.ones((64, 64), F32)))}, "expected contiguous rows"),
        ({"blocks": np.full(64, 1)}, r"blocks\[0\] is 1, expected 0 to 0"),
        ({"blocks": np.full(64, -1)}, r"blocks\[0\] is -1"),
        ({"scales": np.ones((7, 1), F32)}, "scales has shape"),
        ({"codes": np.empty((8, 9), np.int8)}, "codes has shape"),
    ):
        with pytest.raises(qcore.QcoreValueError, match=f"gptq_columns: .*{message}"):
            call(**options)
