"""Look-up tables on jax arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qcore import lut


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float16, jnp.bfloat16), ids=lambda dtype: dtype.__name__)
def test_functions(dtype):
    x = jax.device_put(np.random.default_rng(1).normal(0, 3, (6, 40)).astype(dtype), jax.devices("cpu")[0])
    y = lut.silu(x)
    assert isinstance(y, jax.Array) and (y.dtype, y.shape) == (x.dtype, x.shape)
    np.testing.assert_array_equal(np.asarray(y), lut.silu(np.asarray(x)))
    assert isinstance(lut.softmax(x, 0), jax.Array)
    np.testing.assert_array_equal(np.asarray(lut.softmax(x, 0)), lut.softmax(np.asarray(x), 0))
    np.testing.assert_array_equal(np.asarray(lut.rms_norm(x, x[0])), lut.rms_norm(np.asarray(x), np.asarray(x[0])))
