"""Requirements of a public name's docstring: text, every parameter by name, and which errors there are."""

import inspect
import re

_SECTION = re.compile(r"^(?:Args|Attributes):\n((?: +.*\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (?:\*\*)?(\w+(?:, \w+)*): \S", re.MULTILINE)

OF_TORCH = ("extra_repr",)
"""Methods that torch calls, and no user."""
WITHOUT_ERRORS = ("Format.encode", "Format.decode", "Config.width")
"""Arithmetic on what was checked when it was made."""


def documented(text):
    """Names that the sections Args and Attributes have an entry for."""
    found = set()
    for section in _SECTION.findall(inspect.cleandoc(text) + "\n"):
        for names in _ENTRY.findall(section):
            found |= set(names.split(", "))
    return found


def missing(name, thing, *, made_elsewhere=()):
    """Complaints about a function, class or method; about a class's public members too.

    ``made_elsewhere``: classes that users get from functions and never construct.
    """
    text = thing.__doc__ or ""
    if not text.strip():
        yield f"{name} has no docstring"
    if inspect.isclass(thing):
        if not issubclass(thing, BaseException) and thing not in made_elsewhere:
            yield from _parameters(name, thing, text)
        for member, value in _members(thing):
            yield from missing(f"{name}.{member}", value)
    elif callable(thing):
        yield from _parameters(name, thing, text)
        takes = [parameter for parameter in inspect.signature(thing).parameters if parameter not in ("self", "cls")]
        if takes and "Raises:" not in text and not name.endswith(WITHOUT_ERRORS):
            yield f"{name} says nothing about errors"


def _parameters(name, thing, text):
    given = documented(text)
    for parameter in inspect.signature(thing).parameters:
        if parameter not in ("self", "cls") and parameter not in given:
            yield f"{name} says nothing about its parameter {parameter}"


def _members(kind):
    """Public ones, and calls, that qcore itself defines, in this class or in one that it is made of."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("qcore"):
            continue
        for member, value in vars(base).items():
            if member in seen or member in OF_TORCH or (member.startswith("_") and member != "__call__"):
                continue
            seen.add(member)
            if isinstance(value, (classmethod, staticmethod)):
                value = value.__func__
            if isinstance(value, property) or inspect.isfunction(value):
                yield member, value
