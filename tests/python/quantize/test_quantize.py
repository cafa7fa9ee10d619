"""Per-block weights and activations: equal to the oracle in every code and parameter."""

import math
import pickle

import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qcore

BITS = (4, 8)
SCHEMES = ("symmetric", "asymmetric")
MODES = ("int8", "int8_asym", "int16")
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
FLOAT_MAX = np.finfo(np.float32).max
SMALLEST = np.float32(2.0**-149)


def gaussian(rng, rows, columns):
    return rng.standard_normal((rows, columns), dtype=np.float32)


def with_outliers(rng, rows, columns):
    x = gaussian(rng, rows, columns)
    x[:, :: max(1, columns // 5)] *= 1e5
    return x


def constant_rows(rng, rows, columns):
    return np.repeat(gaussian(rng, rows, 1), columns, axis=1)


def zeros_of_both_signs(rng, rows, columns):
    return np.copysign(np.float32(0), gaussian(rng, rows, columns))


def subnormal(rng, rows, columns):
    return rng.integers(-20, 21, (rows, columns)).astype(np.float32) * SMALLEST


def around_the_smallest_scale(rng, rows, columns):
    """Return scales on both sides of 2^-128, below which 1/scale is infinite."""
    exponents = rng.uniform(-130, -112, (rows, 1))
    return (gaussian(rng, rows, columns) * np.float64(2.0) ** exponents).astype(np.float32)


def huge(rng, rows, columns):
    return (rng.uniform(-1, 1, (rows, columns)) * 3e38).astype(np.float32)


def largest(rng, rows, columns):
    return rng.choice(np.array([-FLOAT_MAX, FLOAT_MAX, 0], np.float32), (rows, columns))


def one_sided(rng, rows, columns):
    return np.maximum(gaussian(rng, rows, columns), 0)


def far_from_zero(rng, rows, columns):
    return 1000 + gaussian(rng, rows, columns) / 1000


def of_all_magnitudes(rng, rows, columns):
    exponents = rng.uniform(-40, 38, (rows, columns))
    return (gaussian(rng, rows, columns) * np.float64(10) ** exponents / 4).astype(np.float32)


DATA = (
    gaussian,
    with_outliers,
    constant_rows,
    zeros_of_both_signs,
    subnormal,
    around_the_smallest_scale,
    huge,
    largest,
    one_sided,
    far_from_zero,
    of_all_magnitudes,
)
by_name = {"ids": lambda function: function.__name__}


def assert_weight_equals(weight, expected):
    np.testing.assert_array_equal(weight.codes(), expected.codes)
    np.testing.assert_array_equal(weight.scales(), expected.scales)
    np.testing.assert_array_equal(weight.offsets(), expected.offsets)


def assert_activations_equal(parts, expected, mode):
    codes, scales, offsets, sums = parts
    assert (codes.dtype, sums.dtype) == (np.dtype("int16" if mode == "int16" else "int8"), np.dtype("int32"))
    np.testing.assert_array_equal(codes, expected.codes)
    np.testing.assert_array_equal(scales, expected.scales)
    np.testing.assert_array_equal(offsets, expected.offsets)
    np.testing.assert_array_equal(sums, expected.sums)


# Weights


@pytest.mark.parametrize("data", DATA, **by_name)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("g", [1, 16, 32, 48, 64, 200])
def test_weight_equals_oracle(bits, scheme, g, data):
    w = data(np.random.default_rng(0), 37, 133)
    weight = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, **oracle.NEAREST)
    expected = oracle.quantize_weight(w, bits, g, scheme)
    assert_weight_equals(weight, expected)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(weight.dequantize(), expected.dequantize())


@pytest.mark.parametrize("data", [gaussian, constant_rows, subnormal, one_sided], **by_name)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
def test_half_precision_parameters_equal_oracle(bits, scheme, data):
    w = data(np.random.default_rng(10), 37, 133)
    weight = qcore.quantize(w, bits=bits, block_size=32, scheme=scheme, method="rtn", scale_dtype="float16")
    assert weight.scale_dtype == "float16"
    assert_weight_equals(weight, oracle.quantize_weight(w, bits, 32, scheme, "float16"))
    searched = qcore.quantize(w, bits=bits, block_size=32, scheme=scheme, method="mse", scale_dtype=np.float16)
    assert searched.scale_dtype == "float16"
    assert (squared_errors(w, searched) <= squared_errors(w, weight) * (1 + 1e-12)).all()


def test_parameters_beyond_half_precision():
    w = np.ones((3, 64), np.float32)
    w[2, 40] = 1e7
    expected = "quantize: scale_dtype is float16, which cannot hold the scale or the offset of row 2, block 1"
    with pytest.raises(qcore.QcoreValueError, match=expected):
        qcore.quantize(w, block_size=32, scale_dtype="float16")
    with pytest.raises(qcore.QcoreValueError, match="cannot hold the scale or the offset of row 2"):
        qcore.quantize(w, block_size=32, scheme="asymmetric", scale_dtype="float16")
    with pytest.raises(qcore.QcoreValueError, match="scale_dtype is 'bfloat16', expected one of 'float32', 'float16'"):
        qcore.quantize(w, scale_dtype="bfloat16")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_parameters_that_are_exact_in_half_precision_are_stored_in_it(scheme):
    weight = qcore.quantize(gaussian(np.random.default_rng(8), 20, 70), block_size=32, scheme=scheme, **oracle.NEAREST)
    assert weight.scale_dtype == "float32"
    offsets = None if scheme == "symmetric" else weight.offsets().astype(np.float16).astype(np.float32)
    scales = weight.scales().astype(np.float16).astype(np.float32)
    half = qcore.QuantizedTensor.from_parts(weight.codes(), scales, offsets, bits=4, block_size=32)
    assert half.scale_dtype == "float16"
    assert weight.nbytes - half.nbytes == 2 * 32 * 3 * (1 if scheme == "symmetric" else 2)
    np.testing.assert_array_equal(half.scales(), scales)
    assert pickle.loads(pickle.dumps(half)) == half
    scales[0, 0] = 1 / 3
    mixed = qcore.QuantizedTensor.from_parts(weight.codes(), scales, offsets, bits=4, block_size=32)
    assert mixed.scale_dtype == "float32"
    assert mixed != half
    np.testing.assert_array_equal(mixed.scales(), scales)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
def test_values_worked_by_hand(bits, scheme):
    highest = 2 ** (bits - 1) - 1
    if scheme == "symmetric":
        w = np.array([[highest, 1, 0, -highest], [0.5, 1.5, 2.5, highest]], np.float32)
        codes, scales, offsets = [[highest, 1, 0, -highest], [0, 2, 2, highest]], [[1], [1]], [[0], [0]]
    else:
        lowest = -highest - 1
        w = np.array([[10 + lowest, 10 + highest, 10, 10.5], [7, 7, 7, 7]], np.float32)
        codes, scales, offsets = [[lowest, highest, 0, 0], [0, 0, 0, 0]], [[1], [1]], [[10], [7]]
    weight = qcore.quantize(w, bits=bits, block_size=4, scheme=scheme, **oracle.NEAREST)
    np.testing.assert_array_equal(weight.codes(), codes)
    np.testing.assert_array_equal(weight.scales(), scales)
    np.testing.assert_array_equal(weight.offsets(), offsets)


@pytest.mark.parametrize("bits", BITS)
def test_asymmetric_constant_is_exact(bits):
    w = np.float32([[3.3] * 5, [-0.1] * 5, [1e-45] * 5, [FLOAT_MAX] * 5])
    weight = qcore.quantize(w, bits=bits, block_size=2, scheme="asymmetric", **oracle.NEAREST)
    np.testing.assert_array_equal(weight.dequantize(), w)
    assert not weight.codes().any()


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_weight_dtypes(dtype, scheme):
    w = gaussian(np.random.default_rng(1), 19, 70).astype(dtype)
    weight = qcore.quantize(w, bits=4, block_size=32, scheme=scheme, **oracle.NEAREST)
    assert_weight_equals(weight, oracle.quantize_weight(w.astype(np.float32), 4, 32, scheme))
    for target in DTYPES:
        values = weight.dequantize(target)
        assert values.dtype == target
        np.testing.assert_array_equal(values, weight.dequantize().astype(target))


LAYOUTS = {
    "fortran": np.asfortranarray,
    "transposed": lambda w: np.ascontiguousarray(w.T).T,
    "negative strides": lambda w: np.ascontiguousarray(w[::-1, ::-1])[::-1, ::-1],
    "every second": lambda w: np.repeat(np.repeat(w, 2, axis=0), 2, axis=1)[::2, ::2],
    "window": lambda w: np.pad(w, 3)[3:-3, 3:-3],
    "unaligned to a vector": lambda w: np.append(np.float32(0), w.ravel())[1:].reshape(w.shape),
}


def read_only(w):
    w = w.copy()
    w.flags.writeable = False
    return w


LAYOUTS["read-only"] = read_only


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, **by_name)
def test_weight_memory_layouts(layout, dtype):
    w = gaussian(np.random.default_rng(2), 21, 50).astype(dtype)
    assert qcore.quantize(LAYOUTS[layout](w), block_size=16, **oracle.NEAREST) == qcore.quantize(
        w, block_size=16, **oracle.NEAREST
    )


def test_broadcast_weight():
    row = gaussian(np.random.default_rng(3), 1, 40)
    assert qcore.quantize(np.broadcast_to(row, (9, 40)), block_size=64, **oracle.NEAREST) == qcore.quantize(
        np.repeat(row, 9, axis=0), block_size=64, **oracle.NEAREST
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(5, 20, 3, 3), (4, 7, 1, 1), (3, 33, 2, 5), (17, 1, 3, 3)], ids=str)
def test_convolution_weight_shares_parameters_among_taps(shape, bits, scheme):
    w = np.random.default_rng(4).standard_normal(shape, dtype=np.float32)
    weight = qcore.quantize(w, bits=bits, block_size=16, scheme=scheme, **oracle.NEAREST)
    assert weight.shape == shape
    assert weight.scales().shape == (shape[0], -(-shape[1] // 16))
    assert_weight_equals(weight, oracle.quantize_weight(w, bits, 16, scheme))
    np.testing.assert_array_equal(weight.dequantize(), oracle.quantize_weight(w, bits, 16, scheme).dequantize())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES, **by_name)
def test_non_finite_weight_names_the_first_index(value, dtype):
    w = np.zeros((40, 30), dtype)
    w[13, 7] = w[13, 8] = w[39, 0] = value
    text = r"quantize: weight holds a NaN or an infinity, the first at index \[13, 7\], expected finite values"
    with pytest.raises(qcore.QcoreValueError, match=text):
        qcore.quantize(w, block_size=64, **oracle.NEAREST)
    with pytest.raises(qcore.QcoreValueError, match=r"first at index \[0, 39\]"):
        qcore.quantize(w.T, block_size=64, **oracle.NEAREST)


def test_non_finite_convolution_weight_names_the_first_index():
    w = np.zeros((3, 4, 5, 6), np.float32)
    w[2, 1, 3, 4] = w[2, 3, 0, 0] = np.nan
    with pytest.raises(qcore.QcoreValueError, match=r"first at index \[2, 1, 3, 4\]"):
        qcore.quantize(w, block_size=64, **oracle.NEAREST)


def squared_errors(w, weight):
    """Return the errors per row and block."""
    difference = np.square(w.astype(np.float64) - weight.dequantize())
    blocks = oracle.block_slices(w.shape[1], weight.block_size)
    return np.stack([difference[:, block].sum(axis=1) for block in blocks], axis=1)


@pytest.mark.parametrize("data", DATA, **by_name)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
def test_mse_is_never_worse_than_rtn(bits, scheme, data):
    w = data(np.random.default_rng(5), 12, 100)
    nearest, searched = (
        squared_errors(
            w, qcore.quantize(w, bits=bits, block_size=32, scheme=scheme, method=method, scale_dtype="float32")
        )
        for method in ("rtn", "mse")
    )
    assert (searched <= nearest * (1 + 1e-12)).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("bits", "gain"), [(4, 0.92), (8, 0.98)])
def test_mse_is_better_on_ordinary_weights(bits, gain, scheme):
    w = gaussian(np.random.default_rng(6), 64, 256)
    nearest, searched = (
        squared_errors(w, qcore.quantize(w, bits=bits, scheme=scheme, method=method, scale_dtype="float32")).sum()
        for method in ("rtn", "mse")
    )
    assert searched < gain * nearest


@pytest.mark.parametrize("scheme", SCHEMES)
def test_mse_of_a_convolution_weight(scheme):
    w = np.random.default_rng(7).standard_normal((6, 20, 3, 3), dtype=np.float32)
    weights = [
        qcore.quantize(w, block_size=16, scheme=scheme, method=method, scale_dtype="float32")
        for method in ("rtn", "mse")
    ]
    nearest, searched = (np.square(w.astype(np.float64) - q.dequantize()).sum() for q in weights)
    assert searched < nearest


@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 150),
    g=st.one_of(st.integers(1, 160), st.sampled_from([2**16, 2**31 - 1])),
    bits=st.sampled_from(BITS),
    scheme=st.sampled_from(SCHEMES),
    data=st.sampled_from(DATA),
    seed=st.integers(0, 99),
)
def test_any_shape_and_block_size(rows, columns, g, bits, scheme, data, seed):
    w = data(np.random.default_rng(seed), rows, columns)
    weight = qcore.quantize(w, bits=bits, block_size=g, scheme=scheme, **oracle.NEAREST)
    assert (weight.shape, weight.bits, weight.block_size, weight.scheme) == ((rows, columns), bits, g, scheme)
    assert_weight_equals(weight, oracle.quantize_weight(w, bits, g, scheme))
    offsets = weight.offsets() if scheme == "asymmetric" else None
    again = qcore.QuantizedTensor.from_parts(weight.codes(), weight.scales(), offsets, bits=bits, block_size=g)
    assert again == weight
    assert pickle.loads(pickle.dumps(weight)) == weight


# Kernels

KERNELS = [row.name for row in qcore.kernels("quantize") if row.available]


def quantized_by(kernel, w, **options):
    with qcore.force_kernel("quantize", kernel):
        weight = qcore.quantize(w, **oracle.NEAREST | options)
    assert qcore.last_kernel("quantize") == kernel
    return weight


def assert_same_bits(weight, expected):
    assert weight == expected
    np.testing.assert_array_equal(weight.codes(), expected.codes())
    for part, other in ((weight.scales(), expected.scales()), (weight.offsets(), expected.offsets())):
        np.testing.assert_array_equal(part.view(np.int32), other.view(np.int32))


@pytest.mark.parametrize("data", DATA, **by_name)
@pytest.mark.parametrize("scale_dtype", ["float32", "float16"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_gives_the_references_bits(kernel, bits, scheme, scale_dtype, data):
    rng = np.random.default_rng(11)
    for rows, columns, g in (
        *((17, 133, g) for g in (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200)),
        (1, 1, 1),
        (33, 5000, 48),
        (2, 5000, 4096),
    ):
        w = data(rng, rows, columns)
        options = {"bits": bits, "block_size": g, "scheme": scheme, "scale_dtype": scale_dtype}
        try:
            expected = quantized_by("reference", w, **options)
        except qcore.QcoreValueError as error:
            with pytest.raises(qcore.QcoreValueError) as caught:
                quantized_by(kernel, w, **options)
            # The first block to be found out depends on the threads.
            assert str(caught.value)[:70] == str(error)[:70]
        else:
            assert_same_bits(quantized_by(kernel, w, **options), expected)


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
@pytest.mark.parametrize("dtype", DTYPES, **by_name)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_takes_every_dtype_and_layout(kernel, dtype, layout):
    rng = np.random.default_rng(12)
    for data in (gaussian, subnormal, with_outliers, huge):
        with np.errstate(over="ignore"):
            w = data(rng, 19, 83).astype(dtype)
        w = np.where(np.isfinite(w), w, np.array(1, dtype))
        given_as = w if layout is None else LAYOUTS[layout](w)
        for g, scheme in ((5, "symmetric"), (32, "asymmetric"), (83, "symmetric")):
            expected = quantized_by("reference", w.astype(np.float32), block_size=g, scheme=scheme)
            assert_same_bits(quantized_by(kernel, given_as, block_size=g, scheme=scheme), expected)


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
@pytest.mark.parametrize("shape", [(5, 20, 3, 3), (4, 7, 1, 1), (3, 33, 2, 5), (17, 1, 3, 3)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_takes_convolution_weights(kernel, shape, dtype):
    w = np.random.default_rng(13).standard_normal(shape).astype(dtype)
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(w, 1, -1)), -1, 1)  # channels last
    for bits, scheme, g in ((4, "symmetric", 16), (8, "asymmetric", 3), (4, "asymmetric", 64)):
        options = {"bits": bits, "scheme": scheme, "block_size": g}
        expected = quantized_by("reference", w, **options)
        assert_same_bits(quantized_by(kernel, w, **options), expected)
        assert_same_bits(quantized_by(kernel, last, **options), expected)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_weighs_errors_like_the_reference(kernel, scheme):
    """Importances whose products with errors overflow or vanish in float32, ties, and errors of 0."""
    rng = np.random.default_rng(15)
    samples = rng.standard_normal((6, 64)).astype(np.float32)
    samples[:, ::3] *= 1e-18
    samples[:, 1::9] = 0
    samples[:, 2::9] *= 1e17
    for w in (gaussian(rng, 9, 64), gaussian(rng, 9, 64) * np.float32(1e-22), np.round(gaussian(rng, 9, 64))):
        options = {"method": "mse", "samples": samples, "scheme": scheme, "block_size": 16}
        assert_same_bits(quantized_by(kernel, w, **options), quantized_by("reference", w, **options))


@pytest.mark.parametrize("data", DATA, **by_name)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", ["mse", "awq"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_searches_like_the_reference(kernel, method, scheme, data):
    rng = np.random.default_rng(14)
    for shape, g in (((17, 70), 32), ((9, 33), 7), ((1, 1), 1), ((3, 130), 128), ((5, 20, 3, 3), 16)):
        w = data(rng, shape[0], math.prod(shape[1:])).reshape(shape)
        samples = rng.standard_normal((6, shape[1])) if method == "awq" else None
        for bits, scale_dtype in ((4, "float16"), (4, "float32"), (8, "float32")):
            options = {"bits": bits, "block_size": g, "scheme": scheme, "scale_dtype": scale_dtype}
            options |= {"method": method, "samples": samples}
            try:
                expected = quantized_by("reference", w, **options)
            except qcore.QcoreValueError as error:
                with pytest.raises(qcore.QcoreValueError) as caught:
                    quantized_by(kernel, w, **options)
                assert str(caught.value)[:70] == str(error)[:70]
            else:
                assert_same_bits(quantized_by(kernel, w, **options), expected)


# Activations

ACTIVATION_KERNELS = [
    row.name for row in qcore.kernels("quantize_activations") if row.device == "cpu" and row.available
]


def parts_of(x, g, mode):
    return oracle.activation_parts(qcore.quantize_activations(x, g, mode))


@pytest.mark.parametrize("data", DATA, **by_name)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("g", [1, 7, 16, 64, 133, 60000])
def test_activations_equal_oracle(data, mode, g):
    x = data(np.random.default_rng(11), 9, 133)
    assert_activations_equal(parts_of(x, g, mode), oracle.quantize_activations(x, g, mode), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_activations_poison_their_block_only(mode, value):
    x = gaussian(np.random.default_rng(12), 3, 40)
    x[1, 20] = value
    codes, scales, offsets, sums = parts_of(x, 16, mode)
    assert np.isnan(scales[1, 1])
    assert not codes[1, 16:32].any()
    assert sums[1, 1] == 0
    assert np.isfinite(scales).sum() == scales.size - 1
    assert_activations_equal((codes, scales, offsets, sums), oracle.quantize_activations(x, 16, mode), mode)


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_activation_dtypes_and_layouts(layout, mode, dtype):
    x = gaussian(np.random.default_rng(13), 6, 50).astype(dtype)
    expected = oracle.quantize_activations(x.astype(np.float32), 16, mode)
    assert_activations_equal(parts_of(LAYOUTS[layout](x), 16, mode), expected, mode)


@pytest.mark.parametrize("k", [65536, 70001])
def test_long_activation_blocks(k):
    x = np.ones((1, k), np.float32)
    for sign in (1, -1):
        activations = qcore.quantize_activations(sign * x, compute="int16")
        assert activations.block_size == k
        assert (activations.codes == sign * 32767).all()
    assert qcore.last_kernel("quantize_activations") == ("reference" if k > 65536 else ACTIVATION_KERNELS[0])


@pytest.mark.parametrize("kernel", ACTIVATION_KERNELS)
@pytest.mark.parametrize("mode", MODES)
def test_every_kernel_of_activations_gives_the_same(kernel, mode):
    rng = np.random.default_rng(14)
    for m, k, g in [(1, 1, 1), (3, 70, 16), (7, 130, 32), (4, 200, 300), (9, 96, 7), (0, 8, 4), (3, 0, 4)]:
        x = gaussian(rng, m, k)
        if m > 2 and k:
            x[1, 0], x[2] = np.nan, 0
        for scale in (None, 0.02) if mode == "int8" else (None,):
            with qcore.force_kernel("quantize_activations", kernel):
                actual = qcore.quantize_activations(x, g, mode, scale=scale)
            expected = oracle.quantize_activations(x, g, mode, scale)
            assert_activations_equal(oracle.activation_parts(actual), expected, mode)


@pytest.mark.parametrize("kernel", ACTIVATION_KERNELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("g", [16, 7, 64])
def test_activations_are_written_to_out(g, mode, kernel):
    x = gaussian(np.random.default_rng(16), 5, 70)
    count = -(-70 // g)
    codes = np.full((5, 140), 7, np.int16 if mode == "int16" else np.int8)
    scales, offsets = np.full((5, 2 * count), 7, np.float32), np.empty((5, count), np.float32)
    out = qcore.QuantizedActivations(
        codes[:, ::2], scales[:, ::2], offsets if mode == "int8_asym" else None, block_size=g, compute=mode
    )
    with qcore.force_kernel("quantize_activations", kernel):
        assert qcore.quantize_activations(x, g, mode, out=out) is out
    assert_activations_equal(oracle.activation_parts(out), oracle.quantize_activations(x, g, mode), mode)
    assert (codes[:, 1::2] == 7).all()
    assert (scales[:, 1::2] == 7).all()


def test_errors_of_out_of_activations():
    x = np.ones((2, 8), np.float32)
    out = qcore.quantize_activations(x, 4)
    for arguments, message in (
        ({}, "out.block_size is 4, expected 8, which is asked for"),
        ({"block_size": 4, "compute": "int16"}, "out.compute is 'int8', expected 'int16', which is asked for"),
    ):
        with pytest.raises(ValueError, match=f"quantize_activations: {message}"):
            qcore.quantize_activations(x, **arguments, out=out)
    with pytest.raises(TypeError, match="quantize_activations: out is a ndarray, expected QuantizedActivations"):
        qcore.quantize_activations(x, 4, out=x)
    with pytest.raises(ValueError, match="has shape"):
        qcore.quantize_activations(np.ones((3, 8), np.float32), 4, out=out)


def test_activations_of_any_rank_have_a_scale_per_row_by_default():
    x = gaussian(np.random.default_rng(15), 6, 50)
    activations = qcore.quantize_activations(x.reshape(2, 3, 50))
    assert (activations.shape, activations.scales.shape, activations.block_size) == ((2, 3, 50), (2, 3, 1), 50)
    assert repr(activations) == "QuantizedActivations(shape=(2, 3, 50), compute='int8', block_size=50)"
    expected = oracle.quantize_activations(x, 50, "int8")
    np.testing.assert_array_equal(activations.codes.reshape(6, 50), expected.codes)
    np.testing.assert_array_equal(activations.scales.reshape(6, 1), expected.scales)
    assert qcore.quantize_activations(x[0]).codes.tolist() == expected.codes[0].tolist()


@given(
    rows=st.integers(0, 9),
    columns=st.integers(0, 150),
    g=st.one_of(st.integers(1, 160), st.just(65536)),
    mode=st.sampled_from(MODES),
    data=st.sampled_from(DATA),
    seed=st.integers(0, 99),
)
def test_activations_of_any_shape_and_block_size(rows, columns, g, mode, data, seed):
    x = data(np.random.default_rng(seed), rows, columns)
    assert_activations_equal(parts_of(x, g, mode), oracle.quantize_activations(x, g, mode), mode)
