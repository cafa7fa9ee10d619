"""linear with activation="silu_mul": both halves of the results in one call, with the bits of the two operators."""

import numpy as np
import pytest
from linear_calls import DTYPES, assert_same

import qcore
from qcore import decoder

RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.standard_normal((48, 64), dtype=np.float32), RNG.standard_normal(48, dtype=np.float32)


@pytest.mark.parametrize("compute", ["int8", "int8_asym", "int16", "float", "int8_token"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_linear_and_the_gated_activation(compute, dtype):
    weight = qcore.quantize(WEIGHT, bits=8)
    x = RNG.standard_normal((2, 3, 64)).astype(dtype)
    halves = qcore.linear(x, weight, BIAS, compute=compute, out_dtype="float32")
    y = qcore.linear(x, weight, BIAS, compute=compute, activation="silu_mul")
    assert y.shape == (2, 3, 24) and y.dtype == dtype
    assert_same(y, decoder.gated_activation(halves, "silu", out_dtype=dtype))
    out = np.empty((2, 24, 3), np.float32).transpose(0, 2, 1)
    assert qcore.linear(x, weight, BIAS, compute=compute, activation="silu_mul", out=out) is out
    assert_same(out, decoder.gated_activation(halves, "silu"))
    wide = qcore.linear(x, weight, BIAS, compute=compute, activation="silu_mul", out_dtype="float32")
    assert_same(wide, np.ascontiguousarray(out))


def test_close_to_the_float_layer():
    x = RNG.standard_normal((5, 64), dtype=np.float32)
    both = (x @ WEIGHT.T + BIAS).astype(np.float64)
    expected = both[:, :24] / (1 + np.exp(-both[:, :24])) * both[:, 24:]
    y = qcore.linear(x, qcore.quantize(WEIGHT, bits=8), BIAS, activation="silu_mul", compute="float")
    assert np.linalg.norm(y - expected) < 0.02 * np.linalg.norm(expected)


def test_codes_and_other_weights():
    x = RNG.standard_normal((5, 64), dtype=np.float32)
    weight = qcore.quantize(WEIGHT, bits=8)
    codes = qcore.quantize_activations(x, 32)
    assert_same(qcore.linear(codes, weight, activation="silu_mul"), qcore.linear(x, weight, activation="silu_mul"))
    rotated = qcore.quantize_rotated(WEIGHT)
    halves = qcore.linear(x, rotated)
    assert_same(qcore.linear(x, rotated, activation="silu_mul"), decoder.gated_activation(halves))
    assert qcore.linear(x[:0], weight, activation="silu_mul").shape == (0, 24)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"stream": 0}, "linear: stream is given for activation='silu_mul', expected None"),
        ({"out": np.empty((5, 48), np.float32)}, "linear: out has shape [5, 48], expected [5, 24]"),
        ({"out": np.empty((5, 24))}, "linear: out is dtype('float64'), expected float32, float16 or bfloat16"),
        ({"out": np.empty((5, 24), np.float32), "out_dtype": "float16"}, "linear: out and out_dtype are both given"),
        ({"x": [1.0]}, "linear: x is a list"),
        ({"x": np.ones((5, 63), np.float32)}, "linear: x has shape [5, 63], expected"),
        ({"x": np.ones((), np.float32)}, "linear: x has shape []"),
        ({"compute": "int4"}, "linear: compute is 'int4'"),
        ({"activation": "silu_mull"}, "'sigmoid', 'silu_mul' or a pair (lo, hi)"),
        ({"weight": qcore.quantize(WEIGHT[:7])}, "weight has shape [7, 64], expected [N, K] with an even N"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors(changed, text):
    given = {"x": np.ones((5, 64), np.float32), "weight": qcore.quantize(WEIGHT), "activation": "silu_mul"} | changed
    with pytest.raises(qcore.QcoreError) as caught:
        qcore.linear(given.pop("x"), given.pop("weight"), **given)
    assert text in str(caught.value)


def test_operators_of_frameworks_refuse_it():
    torch = pytest.importorskip("torch")
    import qcore.torch

    layer = qcore.torch.Linear.from_float(torch.nn.Linear(64, 48), bits=8)
    halves = qcore.linear(torch.ones(3, 64, dtype=torch.bfloat16), layer.weight, activation="silu_mul")
    assert halves.shape == (3, 24) and halves.dtype == torch.bfloat16
    options = ([48, 64], 8, 32, torch.float16, None, "int8", "silu_mul")
    with pytest.raises(qcore.QcoreValueError, match="linear: activation is 'silu_mul', expected None, 'relu'"):
        torch.ops.qcore.linear(torch.ones(3, 64), layer.packed, None, *options)
