"""smooth_scales: the scales by their definition, the search of the exponent, dead channels, folding, errors."""

import numpy as np
import pytest

import qcore


def problem(seed=0, n=(48, 32), k=192, m=200, factor=30):
    """Return weights of layers with one input, and inputs of which two channels are larger than the others."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k))
    x[:, [5, 100]] *= factor
    return [rng.standard_normal((rows, k)).astype(np.float32) for rows in n], x.astype(np.float32)


def defined_scales(weights, x, alpha):
    """Return the scales of the docstring, channel by channel."""
    features = x.shape[1]
    a = [max(abs(float(value)) for value in x[:, j]) for j in range(features)]
    b = [max(abs(float(value)) for weight in weights for value in weight[:, j]) for j in range(features)]
    a = [max(each, 1e-4 * max(a)) or 1.0 for each in a]
    b = [max(each, 1e-4 * max(b)) or 1.0 for each in b]
    return np.array([p**alpha / q ** (1 - alpha) for p, q in zip(a, b, strict=True)])


def rounded(x, block):
    """Return x with one scale per row and block, as int8 activations hold it."""
    parts = []
    for start in range(0, x.shape[1], block):
        part = x[:, start : start + block].astype(np.float64)
        scale = np.abs(part).max(axis=1, keepdims=True) / 127
        scale[scale == 0] = 1
        parts.append(np.rint(part / scale) * scale)
    return np.concatenate(parts, axis=1)


def relative_error(outputs, exact):
    return sum(np.square(y - e).sum() for y, e in zip(outputs, exact, strict=True)) / sum(
        np.square(e).sum() for e in exact
    )


@pytest.mark.parametrize("alpha", [0, 0.3, 0.5, np.float32(1)])
def test_scales_are_those_of_the_definition(alpha):
    weights, x = problem()
    found = qcore.smooth_scales(weights, x, alpha=alpha, block_size=64)
    np.testing.assert_allclose(found.scales, defined_scales(weights, x, float(alpha)), rtol=1e-5)
    assert found.exponent == float(alpha) and found.scales.dtype == np.float32
    for weight, quantized in zip(weights, found.weights, strict=True):
        assert quantized == qcore.quantize(weight * found.scales, block_size=64)
    nearest = qcore.smooth_scales(weights, x, alpha=alpha, block_size=64, power_of_two=True).scales
    np.testing.assert_array_equal(nearest, 2 ** np.rint(np.log2(defined_scales(weights, x, float(alpha)))))


@pytest.mark.parametrize(("compute", "block"), [("int8", 64), ("int8_token", 192)])
def test_errors_are_those_of_integer_activations(compute, block):
    weights, x = problem(1)
    exact = [x.astype(float) @ weight.T.astype(float) for weight in weights]
    found = qcore.smooth_scales(weights, x, alpha=0.5, compute=compute, bits=4, block_size=64)
    outputs = [rounded(x / found.scales, block) @ each.dequantize().T.astype(float) for each in found.weights]
    np.testing.assert_allclose(found.error, relative_error(outputs, exact), rtol=1e-2)
    plain = [qcore.quantize(weight, bits=4, block_size=64).dequantize().T.astype(float) for weight in weights]
    unscaled = relative_error([rounded(x, block) @ each for each in plain], exact)
    np.testing.assert_allclose(found.unscaled_error, unscaled, rtol=1e-2)


@pytest.mark.parametrize("compute", ["int8", "int8_token"])
@pytest.mark.parametrize("method", ["rtn", "awq"])
def test_the_search_takes_the_exponent_with_the_smallest_error(compute, method):
    weights, x = problem(2)
    options = {"compute": compute, "method": method, "bits": 8, "block_size": 64}
    found = qcore.smooth_scales(weights, x, steps=5, **options)
    errors = {step / 5: qcore.smooth_scales(weights, x, alpha=step / 5, **options).error for step in range(6)}
    assert found.exponent == min(errors, key=errors.get) and found.error == min(errors.values())
    assert found.error < 0.5 * found.unscaled_error


def test_no_scaling_where_none_helps():
    rng = np.random.default_rng(3)
    weight, x = np.sign(rng.standard_normal((16, 64))).astype(np.float32), np.ones((3, 64), np.float32)
    weight[:, ::2] *= 0.5
    found = qcore.smooth_scales([weight], x, compute="float", block_size=1, steps=4)
    assert found.exponent is None and (found.scales == 1).all() and found.error == found.unscaled_error


def test_channels_that_are_zero_have_finite_scales():
    weights, x = problem(4)
    x[:, 7] = 0
    x[:, 8] = 1e-9
    for weight in weights:
        weight[:, 9] = 0
    weights[0][:, 10] = 0  # not in the other layer
    found = qcore.smooth_scales(weights, x, alpha=0.5, block_size=64, method="rtn", scale_dtype="float32")
    np.testing.assert_allclose(found.scales, defined_scales(weights, x, 0.5), rtol=1e-5)
    assert np.isfinite(found.scales).all() and (found.scales > 0).all()
    assert found.error < found.unscaled_error
    zero = qcore.smooth_scales([np.zeros((4, 8), np.float32)], np.zeros((3, 8)))
    assert zero.exponent is None and (zero.scales == 1).all() and zero.error == 0


def test_scales_fold_into_the_layer_before():
    rng = np.random.default_rng(5)
    before = rng.standard_normal((64, 32)).astype(np.float32)
    before[3] *= 40
    bias = rng.standard_normal(64).astype(np.float32)
    source = rng.standard_normal((100, 32)).astype(np.float32)
    weight = rng.standard_normal((16, 64)).astype(np.float32)
    x = source @ before.T + bias
    found = qcore.smooth_scales([weight], x, compute="int8_token", bits=8)
    folded_weight, folded_bias = qcore.fold_scales(found.scales, before, bias)
    y = qcore.linear(source @ folded_weight.T + folded_bias, found.weights[0], compute="int8_token")
    plain = qcore.linear(x, qcore.quantize(weight, bits=8), compute="int8_token")
    exact = x @ weight.T
    assert np.linalg.norm(y - exact) < 0.5 * np.linalg.norm(plain - exact)


def test_errors():
    (weight, other), x = problem()
    hole = np.where(weight > 2, np.nan, weight)
    for call, kind, words in [
        (lambda: qcore.smooth_scales([], x), qcore.QcoreValueError, "smooth_scales: weights is empty"),
        (
            lambda: qcore.smooth_scales([weight, other[:, :8]], x),
            qcore.QcoreValueError,
            "smooth_scales: weights[1] has shape [32, 8], expected [N, 192] like weights[0]",
        ),
        (
            lambda: qcore.smooth_scales([weight, hole], x),
            qcore.QcoreValueError,
            "smooth_scales: weights[1] holds a NaN or an infinity, expected finite values",
        ),
        (
            lambda: qcore.smooth_scales([weight], np.where(x > 2, np.inf, x)),
            qcore.QcoreValueError,
            "smooth_scales: samples holds a NaN or an infinity, expected finite values",
        ),
        (
            lambda: qcore.smooth_scales([weight], x.astype(float) * 1e40),
            qcore.QcoreValueError,
            "smooth_scales: samples holds",
        ),
        (
            lambda: qcore.smooth_scales([weight], x[:, :5]),
            qcore.QcoreValueError,
            "smooth_scales: samples has shape [200, 5], expected [M, K] with K = 192",
        ),
        (
            lambda: qcore.smooth_scales([weight], x, alpha=1.5),
            qcore.QcoreValueError,
            "smooth_scales: alpha is 1.5, expected a number from 0 to 1",
        ),
        (
            lambda: qcore.smooth_scales([weight], x, alpha=True),
            qcore.QcoreTypeError,
            "smooth_scales: alpha is True, expected a number",
        ),
        (lambda: qcore.smooth_scales([weight], x, steps=0), qcore.QcoreValueError, "smooth_scales: steps is 0"),
        (
            lambda: qcore.smooth_scales([weight], x, compute="int4"),
            qcore.QcoreValueError,
            "smooth_scales: compute is 'int4', expected one of",
        ),
        (
            lambda: qcore.smooth_scales([weight], x, hessian=1),
            qcore.QcoreTypeError,
            "smooth_scales: options has 'hessian'",
        ),
    ]:
        with pytest.raises(kind) as caught:
            call()
        assert words in str(caught.value), str(caught.value)


def test_the_earlier_name_of_the_result_warns():
    with pytest.warns(DeprecationWarning, match=r"qcore\.AwqScales is called qcore\.ChannelScales now"):
        assert qcore.AwqScales is qcore.ChannelScales
