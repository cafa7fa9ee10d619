"""Linear layers, with a derivative."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Struct

import qcore
from qcore import _arrays, _core
from qcore._options import Compute
from qcore.jax import calls, constants
from qcore.jax.calls import Call
from qcore.jax.constants import Constant
from qcore.linear import activation_code
from qcore.quantized_tensor import QuantizedTensor
from qcore.reordered_tensor import ReorderedTensor


@dataclass(frozen=True)
class _Linear(Call):
    op: ClassVar[str] = "linear"

    weight: Constant
    rank: int
    compute: Compute
    activation: Any
    out_dtype: str | None

    def run(self, x: Any, bias: Any = None) -> Any:
        return qcore.linear(
            x, self.weight.value, bias, compute=self.compute, activation=self.activation, out_dtype=self.out_dtype
        )

    def results(self, x: Struct, bias: Struct | None = None) -> Struct:
        n, k = self.weight.value.shape
        if not x.shape or x.shape[-1] != k:
            raise _core.QcoreValueError(
                f"linear: x has shape {list(x.shape)}, expected its last dimension to be K = {k} of the weight {[n, k]}"
            )
        row = calls.stand_in(Struct((0, k), x.dtype))
        made = self.run(row, None if bias is None else calls.stand_in(bias, None))
        return Struct((*x.shape[:-1], n), made.dtype)


@dataclass(frozen=True)
class _Dequantize(Call):
    """The float32 weight [N, K], made where it is needed: in a program it would be a constant of 32 bits."""

    op: ClassVar[str] = "dequantize"
    rank: ClassVar[int] = 0  # type: ignore[misc]

    weight: Constant

    def run(self) -> Any:
        return self.weight.value.dequantize()

    def results(self) -> Struct:
        return Struct(self.weight.value.shape, jnp.float32)

    def __call__(self) -> Any:
        return self.run()


def linear(
    x: Any,
    weight: QuantizedTensor | ReorderedTensor,
    bias: Any = None,
    *,
    compute: Compute = "int8",
    activation: Any = None,
    out_dtype: Any = None,
) -> jax.Array:
    """Call :func:`qcore.linear` in programs of jax.

    Differentiable in reverse mode with respect to x and bias, as if x were not rounded and the weight were its
    dequantized value; nothing is differentiated with respect to the weight.

    Args:
        x: float32, float16 or bfloat16 [..., K].
        weight: [N, K] on the CPU, a constant of the program.
        bias: floating-point [N], or None.
        compute, activation: as for :func:`qcore.linear`, without "silu_mul".
        out_dtype: float32, float16 or bfloat16; x's dtype by default.

    Returns:
        [..., N].

    Raises:
        QcoreValueError, QcoreTypeError: when the program is traced, naming the argument, what was given and what was
            expected.
    """
    constants.check(weight, (QuantizedTensor, ReorderedTensor), "linear: weight")
    _, *bounds = activation_code(activation, "linear: activation")
    if not (activation is None or isinstance(activation, str)):
        activation = tuple(bounds)
    dtype = _arrays.floating_dtype(out_dtype, "linear: out_dtype")
    x = jnp.asarray(x)
    if isinstance(weight, ReorderedTensor):
        if x.ndim == 0 or x.shape[-1] != len(weight.order):
            raise _core.QcoreValueError(
                f"linear: x has shape {list(x.shape)}, expected [..., {len(weight.order)}] for a weight of shape "
                f"{list(weight.shape)}"
            )
        x, weight = jnp.take(x, weight.order, axis=-1), weight.weight
    if len(weight.shape) != 2:
        raise _core.QcoreValueError(f"linear: weight has shape {list(weight.shape)}, expected [N, K]")
    call = _Linear(Constant(weight), x.ndim, compute, activation, dtype)
    given = (x,) if bias is None else (x, jnp.asarray(bias))
    return _differentiable(call, given)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call: _Linear, arrays: tuple[Any, ...]) -> Any:
    return calls.apply(call, *arrays)


def _forward(call: _Linear, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    # x itself is needed for the slope of an activation only; without it an empty array tells its dtype.
    kept = arrays if call.activation is not None else (arrays[0][..., :0], *arrays[1:])
    return calls.apply(call, *arrays), kept


def _backward(call: _Linear, arrays: tuple[Any, ...], grad: Any) -> tuple[Any]:
    grad = grad.astype(jnp.float32)
    if call.activation is not None:
        before = replace(call, activation=None, out_dtype="float32")
        grad = grad * _slope(calls.apply(before, *arrays), call.activation)
    dequantize = _Dequantize(call.weight)
    # Outside of programs not a node: jax would keep one compiled for every weight it has met.
    weight = dequantize() if calls.is_here(grad) else calls.node(dequantize, ())
    grads = [(grad @ weight).astype(arrays[0].dtype)]
    if len(arrays) > 1:
        grads.append(grad.reshape(-1, grad.shape[-1]).sum(0).astype(arrays[1].dtype))
    return (tuple(grads),)


_differentiable.defvjp(_forward, _backward)


def _slope(z: Any, activation: Any) -> Any:
    """Return the derivative of a fused activation at z."""
    if activation == "silu":
        gate = jax.nn.sigmoid(z)
        return gate * (1 + z * (1 - gate))
    if activation == "tanh":
        return 1 - jnp.tanh(z) ** 2
    if activation == "sigmoid":
        return jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)
    if activation == "gelu_tanh":  # z * sigmoid(u); beyond 32 the product of both tails is 0
        z = jnp.clip(z, -32, 32)
        scale, square = math.sqrt(8 / math.pi), 0.044715 * z * z
        gate = jax.nn.sigmoid(scale * z * (1 + square))
        return gate * (1 + z * (1 - gate) * scale * (1 + 3 * square))
    if activation == "gelu":
        return 0.5 * jax.lax.erfc(-z * math.sqrt(0.5)) + z * jnp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    _, lo, hi = activation_code(activation, "linear: activation")
    return ((z > lo) & (z < hi)).astype(jnp.float32)
