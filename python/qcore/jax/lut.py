"""Look-up tables in programs of jax, under the names of :mod:`qcore.lut`: ``silu(x)``, ``exp(x)``, ...; no derivatives.

A table of one's own: :func:`apply`. Bits and ranges are those of :mod:`qcore.lut`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Struct

from qcore import _checks
from qcore import lut as tables
from qcore.jax import calls, constants
from qcore.jax.calls import Call
from qcore.jax.constants import Constant


@dataclass(frozen=True)
class _Lookup(Call):
    op: ClassVar[str] = "lut"

    table: Constant
    rank: int

    def run(self, x: Any) -> Any:
        return self.table.value(x)

    def results(self, x: Struct) -> Struct:
        self.run(calls.stand_in(Struct((0,), x.dtype)))
        return x


@dataclass(frozen=True)
class _Softmax(Call):
    op: ClassVar[str] = "softmax"

    rank: int
    axis: int

    def run(self, x: Any) -> Any:
        # Counted from the last axis, it stays where it is when vmap adds leading ones.
        return tables.softmax(x, self.axis - self.rank if self.axis >= 0 else self.axis)

    def results(self, x: Struct) -> Struct:
        tables.softmax(calls.stand_in(Struct((1,) * len(x.shape), x.dtype), None), self.axis)
        return x


@dataclass(frozen=True)
class _RmsNorm(Call):
    op: ClassVar[str] = "rms_norm"

    rank: int
    eps: float

    def run(self, x: Any, weight: Any = None) -> Any:
        return tables.rms_norm(x, weight, self.eps)

    def results(self, x: Struct, weight: Struct | None = None) -> Struct:
        row = calls.stand_in(Struct((0, x.shape[-1]), x.dtype) if x.shape else x)
        self.run(row, None if weight is None else calls.stand_in(weight, None))
        return x


def apply(x: Any, table: tables.Table) -> jax.Array:
    """Compute ``table(x)``, element by element.

    Args:
        x: float32, float16 or bfloat16, any shape.
        table: a :class:`qcore.lut.Table`, a constant of the program.

    Returns:
        As x.

    Raises:
        QcoreTypeError: when the program is traced, naming the argument, what was given and what was expected.
    """
    constants.check(table, tables.Table, "lut: table")
    made: jax.Array = calls.apply(_Lookup(Constant(table), jnp.ndim(x)), x)
    return made


def softmax(x: Any, axis: int = -1) -> jax.Array:
    """:func:`qcore.lut.softmax` along an axis, see there.

    Args:
        x: float32, float16 or bfloat16, at least one axis.
        axis: which axis, negative ones count from the last.

    Returns:
        As x.

    Raises:
        QcoreValueError, QcoreTypeError: when the program is traced, naming the argument.
    """
    made: jax.Array = calls.apply(_Softmax(jnp.ndim(x), _checks.integer(axis, "softmax: axis", bits=32)), x)
    return made


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-6) -> jax.Array:
    """:func:`qcore.lut.rms_norm` along the last axis, see there.

    Args:
        x: float32, float16 or bfloat16 [..., K].
        weight: float32, float16 or bfloat16 [K], or None for ones.
        eps: 0 to 1e30.

    Returns:
        As x.

    Raises:
        QcoreValueError, QcoreTypeError: when the program is traced, naming the argument.
    """
    call = _RmsNorm(jnp.ndim(x), _checks.number(eps, "rms_norm: eps"))
    made: jax.Array = calls.apply(call, x) if weight is None else calls.apply(call, x, weight)
    return made


def _function(name: str) -> Callable[[Any], jax.Array]:
    def function(x: Any) -> jax.Array:
        return apply(x, tables.table(name))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f""":func:`qcore.lut.{name}`, see there.

        Args:
            x: float32, float16 or bfloat16, any shape.

        Returns:
            As x.

        Raises:
            QcoreTypeError: when the program is traced: another dtype.
        """
    return function


def __getattr__(name: str) -> Callable[[Any], jax.Array]:
    if name not in tables.names():
        raise AttributeError(f"module 'qcore.jax.lut' has no attribute {name!r}")
    made = globals()[name] = _function(name)
    return made


def __dir__() -> list[str]:
    return sorted({*globals(), *tables.names()})
