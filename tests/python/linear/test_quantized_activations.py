"""linear and grouped_linear with codes, one scale per row and given scales: every kernel against the oracle."""

import numpy as np
import oracle
import pytest
from linear_calls import KERNELS, SCHEMES, assert_same

import qcore

INTEGER_MODES = ("int8", "int8_asym", "int16")


def random(*shape, seed=0):
    return np.random.default_rng([*shape, seed]).standard_normal(shape).astype(np.float32)


def values(m, k):
    x = random(m, k)
    x[0] *= 40
    if m > 2:
        x[1, k // 2], x[2] = np.nan, 0
    return x


def expected_of(activations, weight, mode):
    """Return linear's bits for codes whose scales serve several blocks of the weight."""
    b = oracle.Quantized(weight.codes().astype(np.int64), weight.scales(), weight.offsets(), weight.block_size)
    codes, scales, offsets, _ = oracle.activation_parts(activations)
    places = np.arange(b.scales.shape[1]) * weight.block_size // activations.block_size
    a = oracle.Quantized(codes.astype(np.int64), scales[:, places], offsets[:, places], weight.block_size)
    return oracle.integer_linear(a, b, oracle.block_products(a, b), mode, weight.scheme == "asymmetric")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("mode", INTEGER_MODES)
def test_every_kernel_multiplies_codes(mode, bits, scheme):
    for m, n, k, g, blocks in [
        (1, 40, 128, 32, 1),
        (5, 21, 75, 16, 2),
        (33, 70, 192, 64, 3),
        (4, 18, 60, 60, 1),
        (3, 5, 23, 7, 2),
    ]:
        weight = qcore.quantize(random(n, k, seed=1), bits=bits, scheme=scheme, block_size=g)
        for size in {g, blocks * g, k, 10 * k}:
            activations = qcore.quantize_activations(values(m, k), size, mode)
            expected = expected_of(activations, weight, mode)
            for kernel in KERNELS[mode]:
                out = np.full((m, n), 7, np.float32)
                with qcore.force_kernel("linear", kernel):
                    try:
                        qcore.linear(activations, weight, out=out)
                    except qcore.QcoreValueError as refused:  # blocks or widths that it does not take
                        assert f"kernel {kernel}" in str(refused) or kernel in str(refused)
                        continue
                assert_same(out, expected, kernel, mode, f"K={k}", f"blocks of {size}")
            if size == g:
                assert_same(qcore.linear(values(m, k), weight, compute=mode), expected, mode)


@pytest.mark.parametrize("kernel", KERNELS["int8"])
def test_one_scale_per_row_and_given_scales(kernel):
    for m, n, k, g in [(1, 40, 128, 32), (5, 21, 75, 16), (33, 70, 192, 64), (4, 18, 60, 60)]:
        weight = qcore.quantize(random(n, k, seed=2), bits=4, block_size=g)
        bias, x = random(n), values(m, k)
        with qcore.force_kernel("linear", kernel):
            token = qcore.linear(x, weight, bias, compute="int8_token", activation="relu")
            rows = qcore.linear(qcore.quantize_activations(x), weight, bias, activation="relu")
            given = qcore.linear(x, weight, x_scale=0.05)
            fixed = [qcore.linear(qcore.quantize_activations(x, size, scale=0.05), weight) for size in (g, k)]
            assert qcore.last_kernel("linear") == kernel
        expected = expected_of(qcore.quantize_activations(x), weight, "int8") + bias
        assert_same(rows, np.where(np.isnan(expected), expected, np.maximum(expected, 0)), kernel)
        assert_same(token, rows, kernel)
        assert_same(given, fixed[0], kernel)
        finite = np.isfinite(x).all(axis=1)  # with a scale per row, nothing else of a row with a NaN is a number
        assert_same(given[finite], fixed[1][finite], kernel)
        assert np.isnan(given[~finite]).all()
        assert_same(qcore.linear(x, weight, compute="int8_token", x_scale=0.05), given, kernel)


def test_codes_of_any_rank_strides_and_out():
    x, weight = random(2, 3, 64), qcore.quantize(random(9, 64), block_size=32)
    activations = qcore.quantize_activations(x, 32)
    expected = qcore.linear(x, weight)
    np.testing.assert_array_equal(qcore.linear(activations, weight), expected)
    wide = np.zeros((2, 3, 130), np.int8)
    wide[..., 1:129:2] = activations.codes
    apart = np.zeros((3, 2, 2), np.float32).transpose(1, 0, 2)
    apart[...] = activations.scales
    strided = qcore.QuantizedActivations(wide[..., 1:129:2], apart, block_size=32)
    out = np.full((2, 3, 18), 7, np.float16)
    assert qcore.linear(strided, weight, out=out[..., ::2]).base is out
    np.testing.assert_array_equal(out[..., ::2], expected.astype(np.float16))
    assert (out[..., 1::2] == 7).all()
    assert qcore.linear(activations, weight, out_dtype="float16").dtype == np.float16


def test_codes_of_other_libraries_may_be_the_lowest():
    codes = np.array([[-128] * 32, [127] * 32], np.int8)
    for bits in (4, 8):
        weight = qcore.quantize(random(5, 32), bits=bits, block_size=16)
        activations = qcore.QuantizedActivations(codes, np.full((2, 1), 0.5, np.float32))
        expected = expected_of(activations, weight, "int8")
        for kernel in KERNELS["int8"]:
            with qcore.force_kernel("linear", kernel):
                assert_same(qcore.linear(activations, weight), expected, kernel, bits)


@pytest.mark.parametrize("mode", INTEGER_MODES)
def test_mixtures_of_experts_take_codes(mode):
    counts, x = np.array([3, 0, 5]), values(8, 64)
    weight, bias = qcore.quantize(random(3 * 16, 64), block_size=32), random(3, 16)
    activations = qcore.quantize_activations(x, 32, mode)
    expected = qcore.grouped_linear(x, weight, counts, bias, compute=mode)
    for row in qcore.kernels("grouped_linear"):
        if row.device == "cpu" and row.available and (row.name.startswith(mode[:5]) or row.name == "reference"):
            with qcore.force_kernel("grouped_linear", row.name):
                np.testing.assert_array_equal(qcore.grouped_linear(activations, weight, counts, bias), expected)
    if mode == "int8":
        rows = qcore.grouped_linear(qcore.quantize_activations(x), weight, counts, bias)
        np.testing.assert_array_equal(qcore.grouped_linear(x, weight, counts, bias, compute="int8_token"), rows)


def test_encoded_weights_take_codes():
    for bits in (2, 3, 5, 6):
        highest = (1 << bits) - 1
        codes = np.random.default_rng(bits).integers(0, highest + 1, (20, 64)).astype(np.uint8)
        encoding = qcore.WeightEncoding(bits=bits, zero=(highest + 1) // 2, scales="float16")
        scales = np.abs(random(20, 2)).astype(np.float16)
        weight = qcore.QuantizedTensor.from_encoded(codes, scales, encoding=encoding, block_size=32)
        for m in (1, 3, 40):
            x = values(m, 64)
            expected = qcore.linear(qcore.quantize_activations(x, 64), weight.plain())
            np.testing.assert_array_equal(qcore.linear(qcore.quantize_activations(x, 64), weight), expected)
            np.testing.assert_array_equal(qcore.linear(x, weight, compute="int8_token"), expected)
