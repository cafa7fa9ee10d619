"""Gives freed memory back to the operating system."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


def trim() -> None:
    """Return the free heap of the C library to the operating system, where the library can (glibc)."""
    function = _malloc_trim()
    if function is not None:
        function(0)


@functools.cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another C library
        return None
