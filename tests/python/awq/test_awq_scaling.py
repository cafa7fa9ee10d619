"""method="awq" and awq_scales: what they gain over rounding, that scales fold away, errors."""

import numpy as np
import pytest

import qcore


def layer(seed=0, n=96, k=256, m=300):
    """Return a layer, and inputs of which 2% of the channels are 20 times as large."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((n, k)).astype(np.float32)
    x = rng.standard_normal((m, k))
    x[:, rng.choice(k, k // 50, replace=False)] *= 20
    return weight, x


def output_error(weight, x, quantized, scales=None):
    inputs = x if scales is None else x / scales
    return (
        np.square(inputs @ quantized.dequantize().astype(float).T - x @ weight.T).sum() / np.square(x @ weight.T).sum()
    )


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("block_size", [32, 100])
def test_awq_counts_errors_by_activations(scheme, block_size):
    weight, x = layer()
    options = {"bits": 4, "block_size": block_size, "scheme": scheme}
    errors = {}
    for method in ("rtn", "mse", "awq"):
        samples = {"samples": x} if method == "awq" else {}
        q = qcore.quantize(weight, method=method, **samples, **options)
        errors[method] = output_error(weight, x, q)
    assert errors["awq"] < 0.8 * errors["mse"] and errors["awq"] < 0.8 * errors["rtn"]
    # Equal activations: nothing but mse is left.
    flat = np.ones((1, 256))
    same = qcore.quantize(weight, method="awq", samples=flat, **options)
    assert same == qcore.quantize(weight, method="mse", **options)


def test_convolution_weights_and_weighted_error():
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((8, 40, 3, 3)).astype(np.float32)
    x = rng.standard_normal((50, 40)) * np.r_[np.full(5, 30.0), np.ones(35)]
    importance = np.square(x).mean(axis=0)

    def error(q):
        return (importance[:, None, None] * np.square(q.dequantize() - weight)).sum()

    awq = qcore.quantize(weight, block_size=32, method="awq", samples=x)
    assert error(awq) < 0.7 * error(qcore.quantize(weight, block_size=32, method="mse"))


def test_scales_gain_and_fold_into_the_layer_before():
    rng = np.random.default_rng(4)
    before = rng.standard_normal((256, 64)).astype(np.float32)
    before[rng.choice(256, 5, replace=False)] *= 20  # outlier channels
    bias = rng.standard_normal(256).astype(np.float32)
    source = rng.standard_normal((400, 64))
    x = source @ before.T + bias
    weights = [rng.standard_normal((n, 256)).astype(np.float32) for n in (64, 32)]
    found = qcore.awq_scales(weights, x, bits=4, block_size=64)
    assert 0 < found.exponent <= 1 and found.error < 0.8 * found.unscaled_error
    assert [w.shape for w in found.weights] == [(64, 256), (32, 256)] and found.scales.dtype == np.float32
    recomputed = sum(
        np.square((x / found.scales) @ q.dequantize().astype(float).T - x @ w.T).sum()
        for q, w in zip(found.weights, weights, strict=True)
    ) / sum(np.square(x @ w.T).sum() for w in weights)
    np.testing.assert_allclose(recomputed, found.error, rtol=1e-6)

    folded_weight, folded_bias = qcore.fold_scales(found.scales, before, bias)
    folded_input = (source @ folded_weight.T + folded_bias).astype(np.float32)
    y = qcore.linear(folded_input, found.weights[0], compute="float")
    rounded = qcore.linear(x.astype(np.float32), qcore.quantize(weights[0], bits=4, block_size=64), compute="float")
    exact = x @ weights[0].T
    assert np.square(y - exact).sum() < 0.6 * np.square(rounded - exact).sum()


def test_no_scaling_where_none_helps():
    weight = np.eye(64, dtype=np.float32)
    found = qcore.awq_scales([weight], np.zeros((3, 64)), bits=8, block_size=64)
    assert found.exponent is None and (found.scales == 1).all() and found.error == 0


def test_errors():
    weight, x = layer()
    for call, words in [
        (lambda: qcore.quantize(weight, method="awq"), "quantize: samples is missing, expected inputs [M, K]"),
        (
            lambda: qcore.quantize(weight, method="rtn", samples=x),
            "quantize: samples is given, expected inputs [M, K] with",
        ),
        (lambda: qcore.quantize(weight, method="awq", samples=x[:, :9]), "samples has shape [300, 9], expected [M, K]"),
        (
            lambda: qcore.quantize(weight, method="awq", samples=x[:0]),
            "[0, 256], expected [M, K] with K = 256 and at least one row",
        ),
        (
            lambda: qcore.quantize(weight, method="awq", samples=np.where(x > 2, np.nan, x)),
            "quantize: samples holds a NaN or an infinity, expected finite values",
        ),
        (lambda: qcore.awq_scales([], x), "awq_scales: weights is empty"),
        (lambda: qcore.awq_scales([weight, weight[:, :8]], x), "weights[1] has shape [96, 8], expected [N, 256]"),
        (lambda: qcore.awq_scales([weight[0]], x), "awq_scales: weights[0] is float32 [256], expected"),
        (lambda: qcore.awq_scales([weight], x, steps=0), "awq_scales: steps is 0, expected a positive integer"),
        (lambda: qcore.fold_scales(np.ones(4), np.ones(3)), "parameters[0] has shape [3], expected [4] or [4, J]"),
    ]:
        with pytest.raises(qcore.QcoreValueError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
