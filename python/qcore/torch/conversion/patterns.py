"""Matches patterns that choose modules of a model by their names."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from qcore import _core


def first_match(names: Iterable[str], patterns: Iterable[str]) -> str | None:
    """Return the first pattern that matches one of the names, or a module above it; None if none does."""
    given = list(names)
    return next((pattern for pattern in patterns if any(matches(name, pattern) for name in given)), None)


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern of ``fnmatch`` matches a dotted name or the name of a module above it."""
    parts = name.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:end]), pattern) for end in range(len(parts), 0, -1))


def check(patterns: Iterable[str], names: Sequence[str], where: str) -> None:
    """Raise QcoreValueError with the closest names if a pattern matches none of the names.

    Args:
        patterns: as of ``fnmatch``.
        names: of all modules of the model.
        where: begins the message: "quantize_: exclude".
    """
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise _core.QcoreValueError(
                f"{where} has {pattern!r}, which matches no module of the model, expected a pattern such as "
                f"{', '.join(repr(name) for name in _closest(pattern, names)) or 'the name of a module'}"
            )


def _closest(pattern: str, names: Sequence[str]) -> list[str]:
    """Return up to three names that are similar to the pattern or end like it."""
    plain = pattern.strip("*.?")
    by_ending = {name.rpartition(".")[2]: name for name in names}
    found = difflib.get_close_matches(plain, names, 3, 0.5)
    found += [by_ending[end] for end in difflib.get_close_matches(plain.rpartition(".")[2], list(by_ending), 3, 0.5)]
    return list(dict.fromkeys(found))[:3]
