"""Weights of 2, 3, 5 and 6 bits: encoded weights whose errors are those of a dense search, by every method."""

import numpy as np
import pytest
from oracle import NEAREST

import qcore

F32 = np.float32
SCHEMES = ("symmetric", "asymmetric")
BITS = (2, 3, 5, 6)


def weights(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k), dtype=F32)


def errors(weight, w, importance=1.0):
    """Return the weighed squared error of each block of 32."""
    difference = (weight.dequantize().astype(np.float64) - w) ** 2 * importance
    return difference.reshape(len(w), -1, 32).sum(axis=2)


def densely_searched(block, importance, bits, scheme):
    """Return the smallest weighed squared error of a block over 300 ranges, with least squares for the codes."""
    w, best = block.astype(np.float64), np.inf
    largest = np.abs(w).max()
    for share in np.linspace(0.3, 1.1, 150):
        for sign in (1, -1):
            if scheme == "symmetric":
                scale = sign * share * largest / 2 ** (bits - 1)
                codes = np.clip(np.rint(w / scale), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
                columns = codes[:, None]
            else:
                low, span = w.min(), share * (w.max() - w.min())
                start = low + (w.max() - w.min() - span) * (0.5 if sign > 0 else 0.3)
                codes = np.clip(np.rint((w - start) / (span / (2**bits - 1))), 0, 2**bits - 1)
                columns = np.stack([codes, np.ones_like(codes)], axis=1)
            root = np.sqrt(importance)
            found = np.linalg.lstsq(columns * root[:, None], w * root, rcond=None)[0]
            best = min(best, float((((columns @ found) - w) ** 2 * importance).sum()))
    return best


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
def test_the_search_is_close_to_a_dense_one(bits, scheme):
    w = weights(4, 64, bits)
    samples = np.random.default_rng(1).standard_normal((50, 64)) * np.geomspace(0.3, 3, 64)
    importance = (samples**2).mean(axis=0)
    for method, given, counted in (("mse", None, np.ones(64)), ("awq", samples, importance)):
        weight = qcore.quantize(
            w, bits=bits, block_size=32, scheme=scheme, method=method, samples=given, scale_dtype="float32"
        )
        expected = np.array(
            [[densely_searched(row[b : b + 32], counted[b : b + 32], bits, scheme) for b in (0, 32)] for row in w]
        )
        got = errors(weight, w, counted)
        assert got.sum() <= 1.1 * expected.sum()
        rounded = qcore.quantize(w, bits=bits, block_size=32, scheme=scheme, **NEAREST)
        assert (got <= errors(rounded, w, counted) * (1 + 1e-6)).all()


@pytest.mark.parametrize("bits", BITS)
def test_rounding_to_nearest_uses_the_whole_range(bits):
    w = weights(5, 48)
    blocks = w.reshape(5, 3, 16)
    low, high = blocks.min(axis=2), blocks.max(axis=2)
    weight = qcore.quantize(w, bits=bits, block_size=16, **NEAREST)
    half = 2 ** (bits - 1)
    np.testing.assert_allclose(weight.scales(), np.maximum(high / (half - 1), -low / half), rtol=1e-6)
    assert np.abs(weight.dequantize() - w).max() <= 0.5001 * weight.scales().max()
    weight = qcore.quantize(w, bits=bits, block_size=16, scheme="asymmetric", **NEAREST)
    np.testing.assert_allclose(weight.scales(), (high - low) / (2**bits - 1), rtol=1e-6)
    np.testing.assert_allclose(weight.offsets() - half * weight.scales(), low, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale_dtype", ["float32", "float16"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
def test_the_encoding_and_its_products(bits, scheme, scale_dtype):
    w, x = weights(40, 100), weights(7, 100, 1)
    weight = qcore.quantize(w, bits=bits, block_size=32, scheme=scheme, method="mse", scale_dtype=scale_dtype)
    assert (weight.bits, weight.scheme, weight.scale_dtype) == (bits, scheme, scale_dtype)
    assert weight.encoding.zero == 2 ** (bits - 1)
    assert weight.encoding.offsets == (None if scheme == "symmetric" else scale_dtype)
    expected = x.astype(np.float64) @ weight.dequantize().T.astype(np.float64)
    got = qcore.linear(x, weight, compute="float")
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
def test_gptq_errs_less_than_awq_in_the_output(bits, scheme, act_order):
    w = weights(24, 96)
    x = (weights(600, 24, 2) @ weights(24, 96, 3) + 0.3 * weights(600, 96, 4)).astype(F32)
    found = {}
    for method in ("awq", "gptq"):
        options = {"act_order": act_order} if method == "gptq" else {}
        weight = qcore.quantize(w, bits=bits, block_size=32, scheme=scheme, method=method, samples=x, **options)
        found[method] = np.linalg.norm(x @ weight.dequantize().T - x @ w.T)
    assert found["gptq"] < 0.7 * found["awq"]


def test_dtypes_and_empty_and_constant_weights():
    torch = pytest.importorskip("torch")
    w = torch.from_numpy(weights(8, 40))
    half = qcore.quantize(w.half(), bits=5, block_size=32, method="mse")
    assert half == qcore.quantize(w.half().float(), bits=5, block_size=32, method="mse")
    assert half == qcore.quantize(w.half().t().contiguous().t(), bits=5, block_size=32, method="mse")
    for scheme in SCHEMES:
        zeros = qcore.quantize(np.zeros((3, 20), F32), bits=3, block_size=16, scheme=scheme, method="mse")
        np.testing.assert_array_equal(zeros.dequantize(), 0)
        ones = qcore.quantize(np.ones((3, 20), F32), bits=3, block_size=16, scheme=scheme, method="mse")
        np.testing.assert_allclose(ones.dequantize(), 1, rtol=1e-6)
        assert qcore.quantize(np.empty((0, 16), F32), bits=6, scheme=scheme).shape == (0, 16)


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        (np.full((2, 16), np.nan, F32), {}, r"quantize: weight.*NaN"),
        (np.ones((2, 3, 1, 1), F32), {}, r"quantize: weight has shape \[2, 3, 1, 1\], expected \[N, K\] with 5 bits"),
        (np.ones((2, 16), F32), {"block_size": 0}, "block_size is 0"),
        (
            np.full((2, 16), [[1e7], [1.0]], F32),
            {"scale_dtype": "float16"},
            "quantize: the encoding cannot hold the scale or the offset of row 0, block 0",
        ),
        (np.ones((2, 16), F32), {"bits": 7}, "bits is 7"),
        (np.ones((2, 16), int), {}, "int64"),
    ],
)
def test_errors(weight, options, message):
    with pytest.raises((qcore.QcoreValueError, qcore.QcoreTypeError), match=message):
        qcore.quantize(weight, **{"bits": 5, "scheme": "asymmetric", **options})
