"""Reads the arguments of convolutions: stride, padding, dilation and groups."""

from __future__ import annotations

from typing import Any

from qcore import _checks, _core


def make(stride: Any, padding: Any, dilation: Any, groups: Any, op: str) -> _core.ConvParams:
    """Return the parameters that an operator's arguments describe; the core checks their range."""
    sides = _integers(padding, f"{op}: padding", (1, 2, 4), "an integer, (H, W) or (top, left, bottom, right)")
    if len(sides) == 2:
        sides = (*sides, *sides)
    elif len(sides) == 1:
        sides *= 4
    strides, dilations = _pair(stride, f"{op}: stride"), _pair(dilation, f"{op}: dilation")
    return _core.ConvParams(strides, sides, dilations, _checks.integer(groups, f"{op}: groups"))


def _pair(value: Any, where: str) -> tuple[int, ...]:
    numbers = _integers(value, where, (1, 2), "an integer or (H, W)")
    return numbers if len(numbers) == 2 else numbers * 2


def _integers(value: Any, where: str, lengths: tuple[int, ...], expected: str) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (_checks.integer(value, where),)
    if isinstance(value, (str, bytes)):
        raise _core.QcoreTypeError(f"{where} is {value!r}, expected {expected}")
    try:
        items = tuple(value)
    except TypeError:
        return (_checks.integer(value, where),)
    if len(items) not in lengths:
        raise _core.QcoreValueError(f"{where} is {value!r}, expected {expected}")
    return tuple(_checks.integer(item, where) for item in items)
