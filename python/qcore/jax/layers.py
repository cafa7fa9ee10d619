"""Layers that hold everything they need: static int8 ones and GRUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct as Struct

from qcore import _core
from qcore.gru import QuantGRU
from qcore.jax import calls, constants
from qcore.jax.calls import Call
from qcore.jax.constants import Constant
from qcore.jax.convolution import ImageCall
from qcore.static import QConv2d, QLinear


@dataclass(frozen=True)
class _StaticLinear(Call):
    op: ClassVar[str] = "static.qlinear"

    layer: Constant
    rank: int

    def run(self, x: Any) -> Any:
        return self.layer.value(x)

    def results(self, x: Struct) -> Struct:
        made = self.run(calls.stand_in(Struct((0, *x.shape[-1:]), x.dtype) if x.shape else x))
        return Struct((*x.shape[:-1], *made.shape[1:]), made.dtype)


@dataclass(frozen=True)
class _StaticConv2d(ImageCall):
    op: ClassVar[str] = "static.qconv2d"

    layer: Constant

    def run(self, x: Any) -> Any:
        return self.layer.value(x)

    def results(self, x: Struct) -> Struct:
        made = self.run(calls.stand_in(x))
        return Struct((x.shape[0], *made.shape[1:]), made.dtype)


def static(x: Any, layer: QLinear | QConv2d) -> jax.Array:
    """Call a static int8 layer in programs of jax: ``layer(x)``.

    Args:
        x: int8 or uint8, [..., K] or [N, Ci, H, W], as the layer takes it.
        layer: a :class:`qcore.static.QLinear` or :class:`qcore.static.QConv2d` on the CPU, a constant of the program.

    Returns:
        Codes of the layer's ``y_dtype``, [..., N] or [N, Co, Ho, Wo].

    Raises:
        QcoreValueError, QcoreTypeError: when the program is traced, naming the argument, what was given and what was
            expected.
    """
    constants.check(layer, (QLinear, QConv2d), "static: layer")
    call: Call = (
        _StaticLinear(Constant(layer), jnp.ndim(x)) if isinstance(layer, QLinear) else _StaticConv2d(Constant(layer))
    )
    made: jax.Array = calls.apply(call, x)
    return made


@dataclass(frozen=True)
class _Gru(Call):
    """x and the states have a batch of their own, which ``vmap``'s axes join."""

    op: ClassVar[str] = "gru"
    rank: ClassVar[int] = 3  # type: ignore[misc]

    gru: Constant

    def run(self, x: Any, h0: Any = None) -> Any:
        return self.gru.value(x, h0)

    def results(self, x: Struct, h0: Struct | None = None) -> tuple[Struct, Struct]:
        gru = self.gru.value
        if len(x.shape) != 3 or x.shape[2] != gru.input_size:
            axes = "[B, T, C]" if gru.batch_first else "[T, B, C]"
            raise _core.QcoreValueError(f"gru: x has shape {list(x.shape)}, expected {axes} with C = {gru.input_size}")
        batch_axis = 0 if gru.batch_first else 1
        states = (gru.num_layers * gru.directions, x.shape[batch_axis], gru.hidden_size)
        if h0 is not None and h0.shape != states:
            raise _core.QcoreValueError(f"gru: h0 has shape {list(h0.shape)}, expected {list(states)}")
        y, last = self.run(calls.stand_in(x, batch_axis), None if h0 is None else calls.stand_in(h0, 1))
        return Struct((*x.shape[:2], y.shape[2]), y.dtype), Struct(states, last.dtype)

    def __call__(self, *arrays: Any) -> Any:
        given = [np.asarray(array) for array in arrays]
        extra = given[0].ndim - 3
        if extra == 0:
            return self.run(*given)
        batch = np.broadcast_shapes(*(array.shape[:extra] for array in given))
        axes = (0, 1) if self.gru.value.batch_first else (1, 1)
        joined = [_join(array, batch, extra, axis) for array, axis in zip(given, axes, strict=False)]
        return tuple(_split(made, batch, axis) for made, axis in zip(self.run(*joined), axes, strict=True))


def _join(array: Any, batch: tuple[int, ...], extra: int, axis: int) -> Any:
    """Turn [V, ..., B, ...] into [..., V * B, ...], with B at ``axis`` of the rest."""
    spread = np.broadcast_to(array, batch + array.shape[extra:])
    moved = np.moveaxis(spread, range(extra), range(axis, axis + extra))
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + extra + 1 :])


def _split(array: Any, batch: tuple[int, ...], axis: int) -> Any:
    """Undo what ``_join`` did."""
    spread = array.reshape(*array.shape[:axis], *batch, -1, *array.shape[axis + 1 :])
    return np.moveaxis(spread, range(axis, axis + len(batch)), range(len(batch)))


def gru(x: Any, gru: QuantGRU, h0: Any = None) -> tuple[jax.Array, jax.Array]:
    """Call a GRU in programs of jax: ``gru(x, h0)``, without a derivative.

    Args:
        x: [T, B, C] ([B, T, C] if batch_first): float32, float16, bfloat16 or codes, as the GRU takes them.
        gru: a :class:`qcore.gru.QuantGRU`, a constant of the program.
        h0: [layers * directions, B, H], or None for zeros.

    Returns:
        y [T, B, directions * H] ([B, T, directions * H] if batch_first) and the last states [layers * directions, B,
        H], of x's dtype, or codes if x is codes.

    Raises:
        QcoreValueError, QcoreTypeError: when the program is traced, naming the argument, what was given and what was
            expected. A NaN in x is seen when the program runs, and is then an error of jax with this text.
    """
    constants.check(gru, QuantGRU, "gru: gru")
    call = _Gru(Constant(gru))
    y, last = calls.apply(call, x) if h0 is None else calls.apply(call, x, h0)
    return y, last
