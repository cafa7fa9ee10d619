"""Weights, layers and tables as constants of jax's programs."""

from __future__ import annotations

from typing import Any

import jax

from qcore import _core
from qcore.gru import QuantGRU
from qcore.lut import Table
from qcore.quantized_tensor import QuantizedTensor
from qcore.reordered_tensor import ReorderedTensor
from qcore.static import QConv2d, QLinear


class Constant:
    """An immutable object that equals itself only: jax's caches ask, and comparing weights takes long."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def register() -> None:
    """Make weights and layers nodes without leaves of jax's trees, so that they can stand among a model's parameters.

    ``jit`` sees a constant, ``grad`` and ``tree.map`` nothing at all.
    """
    for kind in (QuantizedTensor, ReorderedTensor, Table, QLinear, QConv2d, QuantGRU):
        jax.tree_util.register_pytree_node(kind, _flatten, _unflatten)


def _flatten(value: Any) -> tuple[tuple[()], Constant]:
    return (), Constant(value)


def _unflatten(constant: Constant, leaves: Any) -> Any:
    return constant.value


def check(value: Any, kinds: type | tuple[type, ...], where: str) -> None:
    """Refuse anything but an instance; a tracer with a word about it."""
    if isinstance(value, kinds):
        return
    names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    what = f"a {type(value).__name__}"
    if isinstance(value, jax.core.Tracer):
        what += ", which jax traces"
        names += ", a constant: there are no derivatives with respect to it"
    raise _core.QcoreTypeError(f"{where} is {what}, expected a {names}")
