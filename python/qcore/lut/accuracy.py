"""How far a table is from its function, on every fp16 number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qcore import _checks, _core
from qcore.lut.callables import evaluate
from qcore.lut.core import TableCore
from qcore.lut.functions import FUNCTIONS, LIMIT, Function
from qcore.lut.grid import FLOOR, Grid

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Errors:
    """Relative error of results y of f(x): |y - f(x)| / max(|f(x)|, 2^-14)."""

    each: Array  # float64 [n]
    mean: float
    max: float


@dataclass(frozen=True)
class Accuracy:
    """All finite fp16 x of a domain whose f(x) fp16 can hold, in their order; zero counts twice, as it does in fp16."""

    x: Array  # float64 [n]
    f: Array  # float64 [n]
    counts: Array  # float64 [n]

    def errors(self, y: Array) -> Errors:
        """Return the errors of any results, [n]."""
        each = np.abs(np.asarray(y, np.float64) - self.f) / np.maximum(np.abs(self.f), FLOOR)
        return Errors(each, float(np.average(each, weights=self.counts)), float(each.max()))

    def of_table(self, table: TableCore, dtype: str = "float32") -> Errors:
        """Return the errors of a table's results, as float32 or rounded to another dtype."""
        return self.errors(table(self.x.astype(np.float32)).astype(dtype))

    def of_rounding(self) -> Errors:
        """Return the errors of the function itself, rounded to fp16 once: nothing that writes fp16 is closer."""
        return self.errors(self.f.astype(np.float16))


def function_of(table: TableCore, function: Any = None) -> Function | None:
    """Return what a table is compared with: ``function``, a name or a callable, else the function of its name."""
    if function is None:
        return FUNCTIONS.get(table.name)
    if isinstance(function, str):
        return _checks.choice(function, FUNCTIONS, "lut: function")
    if not callable(function):
        raise _core.QcoreTypeError(f"lut: function is {function!r}, expected a function's name or a callable")
    return Function(table.name, lambda x: evaluate(function, x))


def accuracy(table: TableCore, function: Function, domain: tuple[float, float] | None = None) -> Accuracy:
    """Make the points where a table and its function are compared.

    They lie in a domain, by default the named function's, else between the table's ends.

    Raises:
        QcoreValueError: the function is NaN somewhere there, or there is no fp16 number.
    """
    reduction = table.range_reduction
    if domain is not None:
        low, high = domain
    elif reduction == "periodic":
        low, high = -LIMIT, LIMIT
    elif reduction != "none":
        low, high = next(known.domain for known in FUNCTIONS.values() if known.reduction == reduction)
    elif FUNCTIONS.get(function.name) is function:
        low, high = function.domain
    else:
        low, high = float(table.cuts[0]), float(table.cuts[-1])
    grid = Grid.of(function.evaluate, low, high, None)
    if not len(grid.x):
        raise _core.QcoreValueError(f"lut: no fp16 number lies within [{low:.9g}, {high:.9g}]")
    return Accuracy(grid.x, grid.f, grid.counts)
