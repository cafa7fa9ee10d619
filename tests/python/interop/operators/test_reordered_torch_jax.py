"""linear gathers x in its own library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import qcore


def reordered():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 64), dtype=np.float32)
    return qcore.ReorderedTensor(qcore.quantize(w, bits=4, block_size=16), rng.permutation(64))


X = np.random.default_rng(1).standard_normal((2, 3, 64), dtype=np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torch(dtype):
    weight = reordered()
    x = torch.from_numpy(X).to(dtype)
    y = qcore.linear(x, weight)
    assert (y.dtype, y.shape) == (dtype, (2, 3, 16))
    assert torch.equal(y, qcore.linear(x[..., torch.tensor(weight.order)], weight.weight))
    with pytest.raises(qcore.QcoreValueError, match="linear: x requires grad"):
        qcore.linear(x.clone().requires_grad_(), weight)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_jax(dtype):
    weight = reordered()
    x = jnp.asarray(X, dtype)
    y = qcore.linear(x, weight)
    assert isinstance(y, jax.Array)
    assert (y.dtype, y.shape) == (dtype, (2, 3, 16))
    assert jnp.array_equal(y, qcore.linear(x[..., weight.order], weight.weight))
