"""One layer of a float recurrent network in one direction."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qcore import _core

Doubles = NDArray[np.float64]


class DirectionBase:
    """One layer in one direction, kept in float64, its gates one after the other along the rows."""

    gates: ClassVar[int]
    biases: ClassVar[tuple[str, ...]] = ("bx", "br")
    """Names of the biases that are quantized."""
    others: tuple[str, ...] = ()
    """Names of parameters of 16 bits, whatever the widths of weights and biases."""

    def __init__(self, w: Any, r: Any, bx: Any, br: Any, where: str, projection: Any = None) -> None:
        self.w, self.r = _matrix(w, f"{where}: w"), _matrix(r, f"{where}: r")
        rows, self.state_size = self.r.shape
        self.input_size, self.hidden_size = self.w.shape[1], self.state_size
        self.projection: Doubles | None = None
        if projection is not None:
            self.projection = _matrix(projection, f"{where}: projection")
            self.hidden_size = self._projected(rows, self.projection.shape, where)
        elif rows != self.gates * self.hidden_size or self.w.shape[0] != rows:
            raise _core.QcoreValueError(
                f"{where}: w has shape {list(self.w.shape)} and r {list(self.r.shape)}, expected "
                f"[{self.gates}H, C] and [{self.gates}H, H]"
            )
        self.bx, self.br = _vector(bx, rows, f"{where}: bx"), _vector(br, rows, f"{where}: br")

    def _projected(self, rows: int, shape: tuple[int, ...], where: str) -> int:
        """Return H, if the projection's shape fits those of w and r."""
        if shape[0] != self.state_size or rows != self.gates * shape[1] or self.w.shape[0] != rows:
            raise _core.QcoreValueError(
                f"{where}: w has shape {list(self.w.shape)}, r {list(self.r.shape)} and projection {list(shape)}, "
                f"expected [{self.gates}H, C], [{self.gates}H, P] and [P, H]"
            )
        return shape[1]


def finite(values: Any, where: str) -> Doubles:
    """Return the numbers as float64.

    Args:
        values: an array of numbers, or what NumPy makes one of.
        where: what errors begin with.

    Raises:
        QcoreTypeError: they are no numbers.
        QcoreValueError: there is a NaN or an infinity.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        of = f" of dtype {values.dtype}" if isinstance(values, np.ndarray) else ""
        raise _core.QcoreTypeError(f"{where} is a {type(values).__name__}{of}, expected an array of numbers") from None
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        index = tuple(int(i) for i in bad[0])
        raise _core.QcoreValueError(f"{where} has {array[index]} at index {list(index)}, expected finite numbers")
    return array


def sigmoid(x: Doubles) -> Doubles:
    half: Doubles = 0.5 * np.tanh(0.5 * x) + 0.5
    return half


def _matrix(values: Any, where: str) -> Doubles:
    array = finite(values, where)
    if array.ndim != 2 or 0 in array.shape:
        raise _core.QcoreValueError(f"{where} has shape {list(array.shape)}, expected a matrix")
    return array


def _vector(values: Any, rows: int, where: str) -> Doubles:
    array = np.zeros(rows) if values is None else finite(values, where)
    if array.shape != (rows,):
        raise _core.QcoreValueError(f"{where} has shape {list(array.shape)}, expected [{rows}]")
    return array
