"""Calls that qcore.jax refuses while a program is traced; messages name operator and argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_jax_programs import FILTER, GRU, QCONV, QLINEAR, REORDERED, SQUARE, WEIGHT

import qcore
import qcore.jax

F32 = jnp.float32

WRONG = {
    "linear: x has shape [3, 69], expected its last dimension to be K = 70 of the weight [20, 70]": (
        lambda x: qcore.jax.linear(x, WEIGHT),
        (3, 69),
        F32,
    ),
    "linear: x has shape [], expected its last dimension to be K = 70 of the weight [20, 70]": (
        lambda x: qcore.jax.linear(x, WEIGHT),
        (),
        F32,
    ),
    "linear: x has shape [3, 69], expected [..., 70] for a weight of shape [20, 70]": (
        lambda x: qcore.jax.linear(x, REORDERED),
        (3, 69),
        F32,
    ),
    "linear: x has dtype int32, expected float32, float16 or bfloat16": (
        lambda x: qcore.jax.linear(x, WEIGHT),
        (3, 70),
        jnp.int32,
    ),
    "linear: bias has shape [21], expected [20]": (lambda x: qcore.jax.linear(x, WEIGHT, jnp.ones(21)), (3, 70), F32),
    "linear: bias has dtype int32, expected float32, float16 or bfloat16": (
        lambda x: qcore.jax.linear(x, WEIGHT, jnp.ones(20, int)),
        (3, 70),
        F32,
    ),
    "linear: compute is 'int4', expected one of 'float', 'int8', 'int8_asym', 'int16', 'int8_token'": (
        lambda x: qcore.jax.linear(x, WEIGHT, compute="int4"),
        (3, 70),
        F32,
    ),
    "linear: activation is [1], expected None, 'relu', 'relu6', 'silu', 'gelu', 'gelu_tanh', 'tanh', 'sigmoid' or a "
    "pair (lo, hi)": (
        lambda x: qcore.jax.linear(x, WEIGHT, activation=[1]),
        (3, 70),
        F32,
    ),
    "linear: activation is 'silu_mul', expected None, 'relu', 'relu6', 'silu', 'gelu', 'gelu_tanh', 'tanh', 'sigmoid' "
    "or a pair (lo, hi)": (
        lambda x: qcore.jax.linear(x, WEIGHT, activation="silu_mul"),
        (3, 70),
        F32,
    ),
    "linear: out_dtype is 'int8', expected float32, float16 or bfloat16": (
        lambda x: qcore.jax.linear(x, WEIGHT, out_dtype="int8"),
        (3, 70),
        F32,
    ),
    "linear: weight has shape [6, 2, 3, 3], expected [N, K]": (lambda x: qcore.jax.linear(x, FILTER), (3, 70), F32),
    "conv2d: x has shape [2, 3, 9, 9], expected Ci = 2 * 1 channels: those of the weight, times groups": (
        lambda x: qcore.jax.conv2d(x, FILTER),
        (2, 3, 9, 9),
        F32,
    ),
    "conv2d: bias has shape [2], expected [6]": (
        lambda x: qcore.jax.conv2d(x, FILTER, jnp.ones(2)),
        (2, 2, 9, 9),
        F32,
    ),
    "lut: x has dtype int32, expected float32, float16 or bfloat16": (qcore.jax.lut.exp, (3,), jnp.int32),
    "softmax: x has shape [], expected at least one axis": (qcore.jax.lut.softmax, (), F32),
    "rms_norm: weight has shape [2], expected [3]": (
        lambda x: qcore.jax.lut.rms_norm(x, jnp.ones(2)),
        (4, 3),
        F32,
    ),
    "gru: x has shape [7, 2, 4], expected [T, B, C] with C = 5": (lambda x: qcore.jax.gru(x, GRU), (7, 2, 4), F32),
    "gru: x has shape [7, 5], expected [T, B, C] with C = 5": (lambda x: qcore.jax.gru(x, GRU), (7, 5), F32),
    "gru: h0 has shape [1, 3, 8], expected [1, 2, 8]": (
        lambda x: qcore.jax.gru(x, GRU, jnp.ones((1, 3, 8))),
        (7, 2, 5),
        F32,
    ),
    "static.qlinear: x has dtype int8, expected uint8": (lambda x: qcore.jax.static(x, QLINEAR), (3, 17), jnp.int8),
    "static.qconv2d: x has dtype float32, expected uint8": (
        lambda x: qcore.jax.static(x, QCONV),
        (2, 4, 5, 5),
        F32,
    ),
    "linear: weight is a ndarray, expected a QuantizedTensor or ReorderedTensor": (
        lambda x: qcore.jax.linear(x, np.ones((20, 70))),
        (3, 70),
        F32,
    ),
    "conv2d: weight is a Table, expected a QuantizedTensor": (lambda x: qcore.jax.conv2d(x, SQUARE), (2, 3, 9, 9), F32),
    "lut: table is a str, expected a Table": (lambda x: qcore.jax.lut.apply(x, "silu"), (3,), F32),
    "static: layer is a QuantGRU, expected a QLinear or QConv2d": (lambda x: qcore.jax.static(x, GRU), (3, 17), F32),
    "gru: gru is a QLinear, expected a QuantGRU": (lambda x: qcore.jax.gru(x, QLINEAR), (7, 2, 5), F32),
}


@pytest.mark.parametrize("message", WRONG)
def test_arguments(message):
    function, shape, dtype = WRONG[message]
    struct = jax.ShapeDtypeStruct(shape, dtype)
    with pytest.raises(qcore.QcoreError) as caught:
        jax.eval_shape(function, struct)  # no values, so nothing ran
    assert str(caught.value) == message
    with pytest.raises(qcore.QcoreError):
        function(jnp.zeros(shape, dtype))


def test_no_derivative_with_respect_to_a_weight():
    with pytest.raises(qcore.QcoreTypeError, match=r"linear: weight is a .*Tracer, which jax traces, expected a Quant.*"
                       r" a constant: there are no derivatives with respect to it"):  # fmt: skip
        jax.grad(lambda w: qcore.jax.linear(jnp.ones((3, 70)), w).sum())(jnp.ones((20, 70)))


UNDIFFERENTIABLE = {
    "conv2d": (lambda x: qcore.jax.conv2d(x, FILTER), (1, 2, 5, 5)),
    "lut": (qcore.jax.lut.silu, (3,)),
    "softmax": (qcore.jax.lut.softmax, (3,)),
    "rms_norm": (qcore.jax.lut.rms_norm, (3,)),
    "gru": (lambda x: qcore.jax.gru(x, GRU)[0], (7, 2, 5)),
}


@pytest.mark.parametrize("op", UNDIFFERENTIABLE)
def test_operators_without_derivatives(op):
    function, shape = UNDIFFERENTIABLE[op]
    x = jnp.ones(shape)
    message = f"{op}: jax asks for a derivative, and this operator has none"
    for asked in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.jacfwd(f)):
        with pytest.raises(qcore.QcoreValueError, match=message):
            asked(lambda x: function(x).sum())(x)
    stopped = jax.grad(lambda x: function(jax.lax.stop_gradient(x)).sum() + x.sum())(x)
    np.testing.assert_array_equal(stopped, np.ones(shape))


def test_an_error_when_the_program_runs():
    """A NaN that the GRU refuses: jax's error has the text, and the next call works."""
    function = jax.jit(lambda x: qcore.jax.gru(x, GRU)[0])
    with pytest.raises(Exception, match="gru: x"):
        np.asarray(function(jnp.full((7, 2, 5), jnp.nan)))
    np.testing.assert_array_equal(function(jnp.ones((7, 2, 5))), GRU(np.ones((7, 2, 5), np.float32))[0])
