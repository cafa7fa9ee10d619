"""Reads the arguments of convolutions: stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qcore import _checks, _core

_EXPECTED = "'same', 'valid', an integer, (H, W) or (top, left, bottom, right)"


def make(
    stride: Any, padding: Any, dilation: Any, groups: Any, op: str, kernel: Sequence[int] | None = None
) -> _core.ConvParams:
    """Return the parameters that an operator's arguments describe; the core checks their range.

    Args:
        stride, padding, dilation, groups: the operator's arguments.
        op: begins the texts of errors.
        kernel: (Kh, Kw), for padding "same".
    """
    strides, dilations = _pair(stride, f"{op}: stride"), _pair(dilation, f"{op}: dilation")
    if isinstance(padding, str) and padding == "same":
        sides = _same(strides, dilations, kernel or (), op)
    elif isinstance(padding, str) and padding == "valid":
        sides = (0, 0, 0, 0)
    else:
        sides = _integers(padding, f"{op}: padding", (1, 2, 4), _EXPECTED)
    if len(sides) == 2:
        sides = (*sides, *sides)
    elif len(sides) == 1:
        sides *= 4
    return _core.ConvParams(strides, sides, dilations, _checks.integer(groups, f"{op}: groups"))


def _same(strides: tuple[int, ...], dilations: tuple[int, ...], kernel: Sequence[int], op: str) -> tuple[int, ...]:
    """Return the padding with which the result is as large as x; as in torch an odd one is larger at the end."""
    if strides != (1, 1):
        raise _core.QcoreValueError(f"{op}: padding is 'same' and stride is {strides}, expected stride 1 with it")
    totals = [reach * (size - 1) for reach, size in zip(dilations, kernel, strict=True)]
    before = [total // 2 for total in totals]
    return before[0], before[1], totals[0] - before[0], totals[1] - before[1]


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
