"""The codecs of qcore.formats, found when a tensor needs one: opening a checkpoint loads none of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from qcore import _core


def codec(module: str, function: str, purpose: str) -> Callable[..., Any]:
    """``qcore.formats.<module>.<function>``.

    Raises:
        QcoreValueError: this version of qcore has no such codec; ``purpose`` begins the message.
    """
    name = f"qcore.formats.{module}"
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(name), function)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != name:
            raise
        raise _core.QcoreValueError(f"{purpose} needs {name}.{function}, which this version of qcore lacks") from None
    return found
