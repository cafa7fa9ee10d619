"""How an operator becomes part of a jax program: a call back into the core, one for all that ``vmap`` batches.

``jax.pure_callback``, and not the FFI: a handler for that needs the headers of jaxlib when qcore is built, of an
interface whose major version is 0. What it would save is in docs/jax.md.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct as Struct

from qcore import _core


class Call(ABC):
    """An operator with its constants and options. Subclasses are frozen dataclasses: equal calls are compiled once."""

    op: ClassVar[str]
    rank: int
    """Rank of the first array, before any ``vmap``."""

    @abstractmethod
    def run(self, *arrays: Any, **_: Any) -> Any:
        """Run the operator on arrays with values, of NumPy or jax: an array or a tuple of arrays."""

    @abstractmethod
    def results(self, *arrays: Any, **_: Any) -> Any:
        """Shapes and dtypes of what ``run`` returns; an error if it would refuse the arrays."""

    def run_batched(self, x: Any, *others: Any) -> Any:
        """Call ``run`` with more leading axes on x; the others have none. Most operators take any number."""
        return self.run(x, *others)

    def __call__(self, *arrays: Any) -> Any:
        """Run the operator for jax: leading axes beyond ``rank`` are ``vmap``'s, 1 where an array is not batched."""
        x, *others = (np.asarray(array) for array in arrays)
        extra = x.ndim - self.rank
        if extra == 0:
            return self.run(x, *others)
        if all(set(other.shape[:extra]) <= {1} for other in others):
            plain = [other.reshape(other.shape[extra:]) for other in others]
            return self.run_batched(x, *plain)
        return self._one_by_one(extra, x, *others)

    def _one_by_one(self, extra: int, *arrays: Any) -> Any:
        batch = np.broadcast_shapes(*(array.shape[:extra] for array in arrays))
        spread = [np.broadcast_to(array, batch + array.shape[extra:]) for array in arrays]
        made = np.stack([self.run(*(array[index] for array in spread)) for index in np.ndindex(batch)])
        return made.reshape(batch + made.shape[1:])


def apply(call: Call, *arrays: Any) -> Any:
    """Call the operator on arrays of jax: at once where they have values here, else as a node of the program."""
    given = tuple(jnp.asarray(array) for array in arrays)
    if all(is_here(array) for array in given):
        return call.run(*given)
    return _without_derivative(call, given)


def node(call: Call, arrays: tuple[Any, ...]) -> Any:
    """Call back, with arrays with values or without. Its errors at run time become jax's."""
    results = call.results(*(Struct(array.shape, array.dtype) for array in arrays))
    return jax.pure_callback(call, results, *arrays, vmap_method="expand_dims")


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _without_derivative(call: Call, arrays: tuple[Any, ...]) -> Any:
    return node(call, arrays)


@_without_derivative.defjvp
def _(call: Call, primals: Any, tangents: Any) -> Any:
    raise _core.QcoreValueError(
        f"{call.op}: jax asks for a derivative, and this operator has none: pass jax.lax.stop_gradient of its arguments"
    )


def is_here(array: Any) -> bool:
    """Return whether the array has values, on one device, a CPU."""
    if isinstance(array, jax.core.Tracer):
        return False
    devices = array.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def stand_in(struct: Struct, empty_axis: int | None = 0) -> Any:
    """Make an array of NumPy of this shape and dtype without elements, for the operator's own checks.

    An axis that it does not check is 0 long. Without such an axis it is a single zero seen everywhere.
    """
    shape = list(struct.shape)
    if empty_axis is not None and shape:
        shape[empty_axis] = 0
    return np.broadcast_to(np.zeros((), struct.dtype), shape)
