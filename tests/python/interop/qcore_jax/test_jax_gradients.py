"""Derivatives of qcore.jax.linear: those of the layer with the dequantized weight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcore
import qcore.jax

RNG = np.random.default_rng(0)
ACTIVATIONS = {
    None: lambda z: z,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "silu": jax.nn.silu,
    "gelu": lambda z: jax.nn.gelu(z, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    (-0.5, 2.0): lambda z: jnp.clip(z, -0.5, 2.0),
}


def normal(*shape, dtype=np.float32):
    return jnp.asarray(RNG.standard_normal(shape, dtype=np.float32), dtype)


WEIGHT = qcore.quantize(normal(20, 70) / 8, bits=8, block_size=32, scheme="asymmetric")
DEQUANTIZED = jnp.asarray(WEIGHT.dequantize())


def close(got, expected, tolerance=2e-5):
    got, expected = np.asarray(got, np.float32), np.asarray(expected, np.float32)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("shape", [(70,), (5, 70), (2, 3, 70)], ids=str)
def test_gradients(shape, activation):
    x, bias, weights = normal(*shape), normal(20), normal(*shape[:-1], 20)

    def ours(x, bias):
        y = qcore.jax.linear(x, WEIGHT, bias, compute="float", activation=activation)
        return (y * weights).sum()

    def exact(x, bias):
        return (ACTIVATIONS[activation](x @ DEQUANTIZED.T + bias) * weights).sum()

    for function in (lambda f: f, jax.jit):
        for got, expected in zip(
            function(jax.grad(ours, (0, 1)))(x, bias), jax.grad(exact, (0, 1))(x, bias), strict=True
        ):
            close(got, expected)
    close(jax.grad(ours)(x, bias), jax.grad(exact)(x, bias))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
def test_dtypes(dtype):
    x, bias = normal(5, 70, dtype=dtype), normal(20, dtype=dtype)
    grads = jax.grad(lambda x, b: qcore.jax.linear(x, WEIGHT, b, out_dtype="float32").sum(), (0, 1))(x, bias)
    assert [grad.dtype for grad in grads] == [dtype, dtype]
    close(grads[0], np.broadcast_to(DEQUANTIZED.sum(0), (5, 70)), 1e-2)
    np.testing.assert_array_equal(grads[1], np.full(20, 5))


def test_per_sample_gradients():
    x, weights = normal(6, 70), normal(6, 20)
    grad = jax.grad(lambda x, w: (qcore.jax.linear(x, WEIGHT) * w).sum())
    expected = weights @ DEQUANTIZED
    close(jax.vmap(grad)(x, weights), expected)
    close(jax.jit(jax.vmap(jax.vmap(grad)))(x.reshape(2, 3, 70), weights.reshape(2, 3, 20)), expected.reshape(2, 3, 70))


def test_rounding_is_passed_straight_through():
    """The gradient is that of the product, whatever x becomes inside."""
    x = normal(5, 70)
    grads = [
        jax.grad(lambda x, mode=mode: qcore.jax.linear(x, WEIGHT, compute=mode).sum())(x)
        for mode in ("float", "int8", "int8_asym", "int16")
    ]
    for grad in grads[1:]:
        np.testing.assert_array_equal(grad, grads[0])


def test_outside_of_programs_no_program_is_made(monkeypatch):
    monkeypatch.setattr(jax, "pure_callback", None)
    x = normal(5, 70)
    grad = jax.grad(lambda x: qcore.jax.linear(x, WEIGHT, activation="gelu").sum())(x)
    assert grad.shape == x.shape


def test_under_remat_and_scan():
    x = normal(5, 70)
    square = qcore.quantize(np.eye(70, dtype=np.float32) + normal(70, 70) / 50, bits=8, block_size=32)
    dequantized = jnp.asarray(square.dequantize())

    def ours(x):
        layer = jax.checkpoint(lambda x: qcore.jax.linear(x, square, compute="float"))
        return jax.lax.scan(lambda x, _: (layer(x), None), x, length=3)[0].sum()

    expected = jax.grad(lambda x: (x @ dequantized.T @ dequantized.T @ dequantized.T).sum())(x)
    close(jax.jit(jax.grad(ours))(x), expected)


def test_adapters_train():
    """LoRA over a frozen base of 4 bits: the loss falls, and the base stays what it is."""
    base = qcore.quantize(normal(32, 32) / 6, bits=4, block_size=32)
    x, target = normal(64, 32), normal(64, 32)
    parameters = {"base": base, "down": normal(32, 4) / 6, "up": jnp.zeros((4, 32))}

    @jax.jit
    def step(parameters):
        def loss(parameters):
            hidden = qcore.jax.linear(x, parameters["base"], activation="silu")
            y = qcore.jax.linear(hidden + x @ parameters["down"] @ parameters["up"], parameters["base"])
            return ((y - target) ** 2).mean()

        value, slopes = jax.value_and_grad(loss)(parameters)
        return value, jax.tree.map(lambda p, s: p - 0.5 * s, parameters, slopes)

    losses = []
    for _ in range(30):
        value, parameters = step(parameters)
        losses.append(float(value))
    assert losses[-1] < 0.95 * losses[0]
    assert parameters["base"] is base
