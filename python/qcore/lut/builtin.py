"""Tables by name: those that ship with qcore, and fitted ones."""

from __future__ import annotations

import functools
from typing import Any

from qcore import _core
from qcore.lut.fitting import fit
from qcore.lut.table import Table


def names() -> list[str]:
    """Return the functions that ship with qcore."""
    return sorted({name for name, _ in _core.builtin_luts()})


@functools.cache
def _reduced() -> frozenset[str]:
    return frozenset(name for name, reduced in _core.builtin_luts() if reduced)


@functools.cache
def _builtin(name: str, range_reduction: bool) -> Table:
    return Table(_core.LutTable.builtin(name, range_reduction), name)


def table(name_or_callable: Any, *, range_reduction: bool | None = None, **fit_options: Any) -> Table:
    """Return the table of a function.

    Args:
        name_or_callable: a name of :func:`names`, or any callable of arrays or of numbers.
        range_reduction: whether exp, log, reciprocal, sqrt, rsqrt, sin and cos split off the exponent (or whole
            periods) so that the table covers one binade (one period): their default. Other functions have none.
        **fit_options: as for :func:`fit`. Without any, a name gives the table that ships with qcore; with some, or for
            a callable, the table is fitted now, which takes seconds.

    Raises:
        QcoreValueError, QcoreTypeError: an unknown name, range reduction for a function that has none, or bad options.
    """
    if callable(name_or_callable) or fit_options:
        return fit(name_or_callable, range_reduction=range_reduction, **fit_options)
    name = name_or_callable
    if not isinstance(name, str):
        raise _core.QcoreTypeError(f"lut table: name_or_callable is {name!r}, expected a name or a callable")
    if range_reduction is not None and not isinstance(range_reduction, bool):
        raise _core.QcoreTypeError(f"lut table: range_reduction is {range_reduction!r}, expected True, False or None")
    if range_reduction is None and name not in names():
        raise _core.QcoreValueError(
            f"lut table: there is no table {name!r}, expected one of {', '.join(names())}, or a callable"
        )
    return _builtin(name, name in _reduced() if range_reduction is None else range_reduction)
