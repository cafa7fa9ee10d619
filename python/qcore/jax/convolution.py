"""Convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jax import ShapeDtypeStruct as Struct

import qcore
from qcore import _arrays, _conv_params, _core
from qcore._options import Compute
from qcore.jax import calls, constants
from qcore.jax.calls import Call
from qcore.jax.constants import Constant
from qcore.linear import activation_code
from qcore.quantized_tensor import QuantizedTensor


class ImageCall(Call):
    """A call whose x and result are [N, C, H, W]: ``vmap``'s axes join N."""

    rank: ClassVar[int] = 4  # type: ignore[misc]

    def run_batched(self, x: Any, *others: Any) -> Any:
        made = self.run(x.reshape(-1, *x.shape[-3:]), *others)
        return np.reshape(made, (*x.shape[:-3], *made.shape[1:]))


@dataclass(frozen=True)
class _Conv2d(ImageCall):
    op: ClassVar[str] = "conv2d"

    weight: Constant
    params: _core.ConvParams
    compute: Compute
    activation: Any
    out_dtype: str | None

    def run(self, x: Any, bias: Any = None) -> Any:
        return qcore.conv2d(
            x,
            self.weight.value,
            bias,
            stride=self.params.stride,
            dilation=self.params.dilation,
            padding=self.params.padding,
            groups=self.params.groups,
            compute=self.compute,
            activation=self.activation,
            out_dtype=self.out_dtype,
        )

    def results(self, x: Struct, bias: Struct | None = None) -> Struct:
        whole = _arrays.readable(calls.stand_in(x, None), "conv2d: x")
        shape = _core.conv2d_shape(whole, self.weight.value._handle, self.params)
        made = self.run(calls.stand_in(x), None if bias is None else calls.stand_in(bias, None))
        return Struct(shape, made.dtype)


def conv2d(
    x: Any,
    weight: QuantizedTensor,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    compute: Compute = "int8",
    activation: Any = None,
    out_dtype: Any = None,
) -> jax.Array:
    """Call :func:`qcore.conv2d` in programs of jax; without a derivative.

    Args:
        x: float32, float16 or bfloat16 [N, Ci, H, W].
        weight: [Co, Ci / groups, Kh, Kw] on the CPU, a constant of the program.
        bias: floating-point [Co], or None.
        stride, padding, dilation, groups, compute, activation, out_dtype: as for :func:`qcore.conv2d`.

    Returns:
        [N, Co, Ho, Wo].

    Raises:
        QcoreValueError, QcoreTypeError: when the program is traced, naming the argument, what was given and what was
            expected.
    """
    constants.check(weight, QuantizedTensor, "conv2d: weight")
    if not (activation is None or isinstance(activation, str)):
        _, *activation = activation_code(activation, "conv2d: activation")
        activation = tuple(activation)
    params = _conv_params.make(stride, padding, dilation, groups, "conv2d", weight.shape[2:] or (1, 1))
    dtype = _arrays.floating_dtype(out_dtype, "conv2d: out_dtype")
    call = _Conv2d(Constant(weight), params, compute, activation, dtype)
    made: jax.Array = calls.apply(call, x) if bias is None else calls.apply(call, x, bias)
    return made
