"""The Hadamard rotation: its definition on every kernel, and layers whose inputs have outliers."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import qcore

F32 = np.float32
KERNELS = [row.name for row in qcore.kernels("hadamard") if row.available]
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=F32)


def matrix(block):
    made = np.ones((1, 1))
    while len(made) < block:
        made = np.block([[made, made], [made, -made]])
    return made


def stages(x, block):
    """Return the definition in float32: neighbors first, then the factor."""
    made = np.array(x, F32)
    for h in (2**n for n in range(block.bit_length() - 1)):
        pairs = made.reshape(*made.shape[:-1], -1, 2, h)
        a, b = pairs[..., 0, :].copy(), pairs[..., 1, :].copy()
        pairs[..., 0, :], pairs[..., 1, :] = a + b, a - b
    return made * F32(1 / np.sqrt(np.float64(block)))


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64, 128, 256, 2048, 8192])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_has_the_bits_of_the_definition(kernel, block):
    with qcore.force_kernel("hadamard", kernel):
        for rows, blocks in ((1, 1), (7, 3), (33, 1)):
            x = normal(rows, blocks * block) * np.exp(4 * normal(rows, blocks * block, seed=1))
            y = qcore.hadamard(x, block)
            np.testing.assert_array_equal(y.view(np.int32), stages(x, block).view(np.int32))
    assert qcore.last_kernel("hadamard") == kernel


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_takes_every_dtype_and_layout(kernel, dtype):
    x = normal(5, 6, 96).astype(dtype)
    exact = stages(x.astype(F32), 32)
    with qcore.force_kernel("hadamard", kernel):
        for view in (x, np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 0)), 0, -1), x[::-1][::-1]):
            made = qcore.hadamard(view)
            assert made.dtype == dtype
            np.testing.assert_array_equal(made.astype(F32), exact.astype(dtype).astype(F32))
        reversed_rows = qcore.hadamard(x[::-1, ::2])
        np.testing.assert_array_equal(reversed_rows.astype(F32), exact[::-1, ::2].astype(dtype).astype(F32))
        for other in DTYPES:
            made = qcore.hadamard(x, out_dtype=np.dtype(other).name)
            np.testing.assert_array_equal(made.astype(F32), exact.astype(other).astype(F32))
            out = np.zeros((5, 6, 192), other)[..., ::2]
            assert qcore.hadamard(x, out=out) is out
            np.testing.assert_array_equal(out.astype(F32), exact.astype(other).astype(F32))


@pytest.mark.parametrize("k", [1, 6, 64, 96, 11008])
def test_it_is_the_matrix_and_its_own_inverse(k):
    x, block = normal(3, k), k & -k
    blocks = np.kron(np.eye(k // block), matrix(block) / np.sqrt(block)) if k < 1000 else None
    y = qcore.hadamard(x)
    if blocks is not None:
        np.testing.assert_allclose(y, x @ blocks, rtol=0, atol=3e-6)
    np.testing.assert_allclose(qcore.hadamard(y), x, rtol=0, atol=3e-6)
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), np.linalg.norm(x, axis=1), rtol=1e-5)


def test_results_do_not_depend_on_threads():
    x, threads = normal(300, 512), qcore.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            qcore.set_num_threads(count)
            results.append(qcore.hadamard(x))
    finally:
        qcore.set_num_threads(threads)
    np.testing.assert_array_equal(*results)


def test_empty_arrays_and_values_that_are_not_finite():
    assert qcore.hadamard(np.empty((0, 8), F32)).shape == (0, 8)
    assert qcore.hadamard(np.empty((3, 0), F32)).shape == (3, 0)
    x = normal(2, 16)
    x[0, 3] = np.nan
    y = qcore.hadamard(x, 8)
    assert np.isnan(y[0, :8]).all()
    assert np.isfinite(y[0, 8:]).all()
    assert np.isfinite(y[1]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((normal(2, 12), 8), "block is 8, expected a power of two that divides K = 12"),
        ((normal(2, 12), 3), "block is 3, expected a power of two"),
        ((normal(2, 12), 0), "block is 0, expected a power of two"),
        ((normal(2, 12), 2.0), "block is 2.0, expected an integer"),
        ((np.ones((2, 12)),), "x has dtype float64"),
        ((F32(1),), "x "),
        (([1, 2],), "x is a list, expected an array"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(qcore.QcoreError, match=f"hadamard: {message}"):
        qcore.hadamard(*arguments)


def test_bad_outputs_are_not_written():
    x = normal(2, 8)
    kept = x.copy()
    for out in (x, x[:, ::-1], np.empty((2, 9), F32), np.empty((2, 8))):
        with pytest.raises(qcore.QcoreError, match="hadamard: out"):
            qcore.hadamard(x, out=out)
    np.testing.assert_array_equal(x, kept)
    with pytest.raises(qcore.QcoreValueError, match="out and out_dtype are both given"):
        qcore.hadamard(x, out=np.empty_like(x), out_dtype="float16")


# Rotated layers


def relative_error(y, x, w):
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    return np.linalg.norm(np.asarray(y, np.float64) - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("compute", ["int8", "int8_asym"])
@pytest.mark.parametrize("g", [32, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("k", [1024, 1536])
def test_outliers_cost_nothing_once_rotated(k, bits, g, compute):
    w, x = normal(128, k), normal(200, k, seed=1)
    outliers = x.copy()
    outliers[:, ::100] *= 30
    options = {"bits": bits, "block_size": g, "method": "mse"}
    plain, rotated = qcore.quantize(w, **options), qcore.quantize_rotated(w, **options)
    without = relative_error(qcore.linear(x, plain, compute=compute), x, w)
    assert relative_error(qcore.linear(outliers, rotated, compute=compute), outliers, w) < 1.2 * without
    assert relative_error(qcore.linear(x, rotated, compute=compute), x, w) < 1.1 * without
    if (bits, g) == (8, 128):
        assert relative_error(qcore.linear(outliers, plain, compute=compute), outliers, w) > 1.6 * without


@pytest.mark.parametrize("method", ["rtn", "awq", "gptq"])
@pytest.mark.parametrize("rotation_block", [None, 16])
def test_the_weight_is_that_of_rotated_rows(rotation_block, method):
    w, x = normal(24, 96), normal(300, 96, seed=1)
    x[:, ::20] *= 30
    block = rotation_block or 32
    samples = None if method == "rtn" else x
    weight = qcore.quantize_rotated(w, rotation_block=rotation_block, block_size=32, method=method, samples=samples)
    rotated = None if samples is None else qcore.hadamard(x, block)
    expected = qcore.quantize(qcore.hadamard(w, block), block_size=32, method=method, samples=rotated)
    assert weight == qcore.RotatedTensor(expected, block)
    np.testing.assert_array_equal(weight.dequantize(), qcore.hadamard(expected.dequantize(), block))
    for dtype in DTYPES:
        given = x.astype(dtype)
        y = qcore.linear(given, weight, compute="float")
        assert y.dtype == dtype
        np.testing.assert_array_equal(
            y.astype(F32), qcore.linear(qcore.hadamard(given, block), expected, compute="float").astype(F32)
        )


def test_hessians_are_rotated():
    w, x = normal(24, 96), normal(300, 96, seed=1) @ normal(96, 96, seed=2)
    hessian = qcore.Hessian(96)
    hessian.add(x)
    expected = qcore.quantize_rotated(w, block_size=32, method="gptq", samples=x)
    exact = relative_error(x @ expected.dequantize().T, x, w)
    for given in (hessian, hessian.matrix):
        weight = qcore.quantize_rotated(w, block_size=32, method="gptq", hessian=given)
        assert relative_error(x @ weight.dequantize().T, x, w) == pytest.approx(exact, rel=0.05)


def test_properties_equality_and_pickles():
    weight = qcore.quantize_rotated(normal(8, 64), bits=8, block_size=16, scheme="asymmetric")
    assert (weight.shape, weight.bits, weight.block_size, weight.scheme) == ((8, 64), 8, 16, "asymmetric")
    assert (weight.device, weight.rotation_block, weight.nbytes) == ("cpu", 64, weight.weight.nbytes)
    assert weight.bits_per_weight == weight.weight.bits_per_weight
    assert pickle.loads(pickle.dumps(weight)) == weight
    assert weight != qcore.RotatedTensor(weight.weight, 32)
    assert weight != weight.weight
    assert repr(weight).endswith("rotation_block=64)")
    with pytest.raises(AttributeError, match="immutable"):
        weight.rotation_block = 32


def test_bad_layers():
    w = normal(4, 24)
    weight = qcore.quantize_rotated(w)
    for call, message in (
        (lambda: qcore.quantize_rotated(w, rotation_block=16), "rotation_block is 16, expected a power of two that"),
        (lambda: qcore.quantize_rotated(w, rotation_block=6), "rotation_block is 6"),
        (lambda: qcore.quantize_rotated(normal(4, 8, 3, 3)), r"weight has shape \[4, 8, 3, 3\], expected \[N, K\]"),
        (lambda: qcore.quantize_rotated(w * np.nan), "weight holds a NaN or an infinity, the first at index"),
        (lambda: qcore.quantize_rotated(w, method="awq", samples=normal(3, 25)), r"samples has shape \[3, 25\]"),
        (lambda: qcore.quantize_rotated(w, method="gptq", hessian=np.eye(3)), r"hessian is float64 \[3, 3\]"),
        (lambda: qcore.quantize_rotated(w, method="gptq"), "samples is missing"),
        (lambda: qcore.RotatedTensor(weight.weight, 5), "rotation_block is 5"),
        (lambda: qcore.RotatedTensor(w, 8), "weight is a ndarray, expected a QuantizedTensor"),
        (lambda: qcore.linear(normal(2, 25), weight), r"linear: x has shape \[2, 25\], expected \[..., 24\]"),
        (lambda: qcore.linear([1], weight), "linear: x is a list"),
    ):
        with pytest.raises(qcore.QcoreError, match=message):
            call()
