"""Look-up tables on torch tensors."""

import numpy as np
import pytest
import torch

import qcore
from qcore import lut

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def tensor(*shape, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(1).normal(0, 3, shape).astype(np.float32)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_are_close_to_torchs(dtype):
    x = tensor(5, 300, dtype=dtype)
    pairs = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "exp": torch.exp,
        "erf": torch.erf,
        "sin": torch.sin,
        "cos": torch.cos,
        "softplus": torch.nn.functional.softplus,
        "mish": torch.nn.functional.mish,
        "hardswish": torch.nn.functional.hardswish,
        "relu": torch.relu,
    }
    step = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    for name, function in pairs.items():
        y = getattr(lut, name)(x)
        assert (y.dtype, y.shape, type(y)) == (dtype, x.shape, torch.Tensor)
        exact = function(x.double())
        error = (y.double() - exact).abs() / exact.abs().clamp_min(2.0**-14)
        assert error.mean() < 1e-3 + step, name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_are_kept_as_torch_keeps_them(dtype):
    x = tensor(4, 5, 6, dtype=dtype).permute(2, 0, 1)
    y = lut.tanh(x)
    assert y.stride() == torch.tanh(x).stride()
    assert torch.equal(y, lut.tanh(x.contiguous()))
    out = torch.empty(12, 4, 10, dtype=dtype)[::2, :, ::2]
    assert lut.tanh(x, out) is out and torch.equal(out, y)
    assert torch.equal(lut.tanh(x, x), y) and torch.equal(x, y)
    images = tensor(2, 3, 8, 8, dtype=dtype).to(memory_format=torch.channels_last)
    assert lut.relu(images).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows(dtype):
    x = tensor(7, 9, 33, dtype=dtype)
    tolerance = {torch.float32: 3e-3, torch.float16: 4e-3, torch.bfloat16: 1e-2}[dtype]
    for axis in (0, 1, -1):
        y = lut.softmax(x, axis)
        assert y.dtype == dtype
        torch.testing.assert_close(y.double(), torch.softmax(x.double(), axis), rtol=tolerance, atol=1e-6)
    weight = tensor(33, dtype=dtype)
    y = lut.rms_norm(x, weight, 1e-5)
    expected = torch.nn.functional.rms_norm(x.double(), (33,), weight.double(), 1e-5)
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=1e-6)


def test_gradients_are_not_recorded():
    x = tensor(3).requires_grad_()
    with pytest.raises(qcore.QcoreValueError, match=r"lut: x requires grad, .* pass x.detach\(\)"):
        lut.silu(x)
    with torch.no_grad():
        assert not lut.silu(x).requires_grad
    assert torch.equal(lut.silu(x.detach()), lut.silu(x.detach().clone()))


def test_a_callable_of_torch():
    """Any callable of arrays can be fitted, whatever library computes it."""
    options = {"domain": (0.25, 4), "cuts": 5, "segments": 4, "metric": "max_absolute"}
    table = lut.table(lambda x: torch.tanh(torch.as_tensor(x)).numpy(), **options)
    x = torch.linspace(0.25, 4, 1000)
    assert (table(x) - torch.tanh(x)).abs().max() < 5e-3
