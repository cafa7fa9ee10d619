"""Checks of plain Python arguments, worded like those of the core."""

from __future__ import annotations

import itertools
import operator
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from qcore import _core

T = TypeVar("T")


def integer(value: Any, where: str, bits: int = 64) -> int:
    """Return the value if it is a Python or NumPy integer; a bool or a float is an error."""
    if isinstance(value, bool):
        raise _core.QcoreTypeError(f"{where} is {value!r}, expected an integer")
    try:
        number = operator.index(value)
    except TypeError:
        raise _core.QcoreTypeError(f"{where} is {value!r}, expected an integer") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise _core.QcoreValueError(f"{where} is {value!r}, expected an integer of {bits} bits")
    return number


def number(value: Any, where: str) -> float:
    """Return the value if it is a Python or NumPy number; a bool or a string is an error."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _core.QcoreTypeError(f"{where} is {value!r}, expected a number") from None


def text(value: Any, where: str) -> str:
    """Return the value if it is a string; anything else is an error."""
    if not isinstance(value, str):
        raise _core.QcoreTypeError(f"{where} is {value!r}, expected a string")
    return value


def path(value: Any, where: str) -> Path:
    """Return the value as a path if it is a string or an object with ``__fspath__``; anything else is an error."""
    if isinstance(value, (str, os.PathLike)):
        found = os.fspath(value)
        if isinstance(found, str) and found and "\0" not in found:
            return Path(found)
        raise _core.QcoreValueError(f"{where} is {value!r}, expected the path of a file")
    raise _core.QcoreTypeError(f"{where} is a {type(value).__name__}, expected a path: a string or a pathlib.Path")


def suffix(name: Path | None, endings: tuple[str, ...], where: str) -> None:
    """Raise an error if a file to write has another format's suffix; None and a name without suffix pass."""
    if name is not None and name.suffix and name.suffix.lower() not in endings:
        raise _core.QcoreValueError(f"{where} is {str(name)!r}, expected a name that ends with {' or '.join(endings)}")


def first_names(names: Iterable[str]) -> str:
    """Return the first three names as a text for an error, or "none"."""
    first = list(itertools.islice(names, 4))
    return ", ".join(first[:3]) + (", ..." if len(first) > 3 else "") or "none"


def choice(value: Any, choices: Mapping[Any, T], where: str) -> T:
    """Return the entry that ``value`` names."""
    try:
        return choices[value]
    except (KeyError, TypeError):
        names = ", ".join(repr(name) for name in choices)
        shown = repr(value)
        if len(shown) > 100 or "\n" in shown:
            shown = f"a {type(value).__name__}"
        raise _core.QcoreValueError(f"{where} is {shown}, expected one of {names}") from None


def device(value: Any, where: str) -> tuple[bool, int]:
    """Return (whether it is a CUDA device, its index) of "cpu", "cuda", "cuda:1" or an object that prints so."""
    match = re.fullmatch(r"(cpu|cuda)(?::(\d{1,4}))?", str(value))
    if match is None or (match[1] == "cpu" and match[2] not in (None, "0")):
        raise _core.QcoreValueError(f"{where} is {value!r}, expected 'cpu', 'cuda' or 'cuda:<index>'")
    return match[1] == "cuda", int(match[2] or 0)
