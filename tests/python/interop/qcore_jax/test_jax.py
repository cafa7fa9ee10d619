"""jax arrays in and out, without a copy."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from dlpack_memory import data_address

import qcore
from qcore import _core

MODES = ("float", "int8", "int8_asym", "int16")
DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16)
CPU = jax.devices("cpu")[0]


def values_of(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


WEIGHT = qcore.quantize(values_of(20, 70), bits=8, block_size=32, scheme="asymmetric")


def array(*shape, dtype=jnp.float32, seed=1):
    return jax.device_put(values_of(*shape, seed=seed).astype(dtype), CPU)


def pointer(x):
    return x.addressable_data(0).unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_dtypes(mode, dtype):
    x, bias = array(7, 70, dtype=dtype), array(20, dtype=dtype, seed=2)
    y = qcore.linear(x, WEIGHT, bias, compute=mode)
    assert isinstance(y, jax.Array)
    assert (y.dtype, y.shape) == (dtype, (7, 20))
    exact = qcore.linear(np.asarray(x), WEIGHT, np.asarray(bias).astype(np.float32), compute=mode, out_dtype="float32")
    np.testing.assert_array_equal(np.asarray(y), exact.astype(dtype))
    for out_dtype in DTYPES:
        y = qcore.linear(x, WEIGHT, bias, compute=mode, out_dtype=out_dtype)
        assert y.dtype == out_dtype
        np.testing.assert_array_equal(np.asarray(y), exact.astype(out_dtype))


@pytest.mark.parametrize("shape", [(70,), (0, 70), (2, 3, 70), (2, 1, 3, 70)], ids=str)
def test_shapes(shape):
    x = array(*shape)
    y = qcore.linear(x, WEIGHT)
    assert y.shape == (*shape[:-1], 20)
    np.testing.assert_array_equal(np.asarray(y), qcore.linear(np.asarray(x), WEIGHT))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_quantize_takes_arrays(dtype):
    w = array(9, 50, dtype=dtype)
    assert qcore.quantize(w, block_size=16) == qcore.quantize(np.asarray(w).astype(np.float32), block_size=16)


@pytest.mark.parametrize("mode", MODES[1:])
def test_quantize_activations(mode):
    x = array(3, 50)
    activations = qcore.quantize_activations(x, 16, mode)
    assert isinstance(activations.codes, jax.Array)
    assert isinstance(activations.scales, jax.Array)
    parts = oracle.activation_parts(activations)
    expected = oracle.quantize_activations(np.asarray(x), 16, mode)
    for part, value in zip(parts, (expected.codes, expected.scales, expected.offsets, expected.sums), strict=True):
        np.testing.assert_array_equal(part, value)
    weight = qcore.quantize(array(9, 50), bits=8, block_size=16)
    y = qcore.linear(activations, weight)
    assert isinstance(y, jax.Array)
    np.testing.assert_array_equal(y, qcore.linear(x, weight, compute=mode))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_memory_is_shared_both_ways(monkeypatch, dtype):
    """The core reads jax's own buffers, and jax's result is the very buffer that the core wrote."""
    seen = {}
    original = _core.linear

    def spy(x, weight, bias, out, *rest):
        seen.update(x=data_address(x), bias=data_address(bias), out=data_address(out))
        return original(x, weight, bias, out, *rest)

    monkeypatch.setattr(_core, "linear", spy)
    x, bias = array(4, 70, dtype=dtype), array(20, dtype=dtype)
    y = qcore.linear(x, WEIGHT, bias)
    assert seen == {"x": pointer(x), "bias": pointer(bias), "out": pointer(y)}
    assert pointer(y) % 64 == 0


def test_result_outlives_its_maker():
    results = [qcore.linear(array(4, 70, seed=seed), WEIGHT) for seed in range(40)]
    for seed, y in enumerate(results):
        np.testing.assert_array_equal(np.asarray(y), qcore.linear(values_of(4, 70, seed=seed), WEIGHT))
    np.testing.assert_array_equal(np.asarray(results[3] * 2), 2 * np.asarray(results[3]))


def test_out_of_jax_is_read_only():
    out = jnp.full((4, 20), 7.0)
    with pytest.raises(qcore.QcoreValueError) as caught:
        qcore.linear(array(4, 70), WEIGHT, out=out)
    assert str(caught.value) == "linear: out is read-only, expected a writable array"
    assert (out == 7).all()


def test_mixed_libraries():
    x, bias = array(4, 70), values_of(20, seed=3)
    expected = qcore.linear(np.asarray(x), WEIGHT, bias)
    y = qcore.linear(x, WEIGHT, bias)
    assert isinstance(y, jax.Array)
    np.testing.assert_array_equal(np.asarray(y), expected)
    y = qcore.linear(np.asarray(x), WEIGHT, jnp.asarray(bias))
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, expected)
    out = np.zeros((4, 20), np.float32)
    assert qcore.linear(x, WEIGHT, bias, out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    "dtype", [jnp.int8, jnp.int32, jnp.bool_, jnp.float8_e4m3fn, jnp.complex64], ids=lambda d: d.__name__
)
def test_other_dtypes(dtype):
    with pytest.raises(qcore.QcoreTypeError) as caught:
        qcore.linear(jnp.zeros((2, 70), dtype), WEIGHT)
    assert str(caught.value) == f"linear: x has dtype {np.dtype(dtype)}, expected float32, float16 or bfloat16"


def test_k_mismatch():
    with pytest.raises(
        qcore.QcoreValueError, match=r"linear: x has shape \[2, 69\], expected its last dimension to be K = 70"
    ):
        qcore.linear(jnp.zeros((2, 69)), WEIGHT)


def test_tracers_hold_no_values():
    with pytest.raises(
        qcore.QcoreTypeError, match=r"linear: x is a .*Tracer without memory to read, expected an array with"
    ):
        jax.jit(lambda x: qcore.linear(x, WEIGHT))(array(2, 70))


def test_deleted_array():
    x = array(2, 70)
    x.delete()
    with pytest.raises(
        qcore.QcoreTypeError, match=r"linear: x is a .* without memory to read, expected an array with values"
    ):
        qcore.linear(x, WEIGHT)
