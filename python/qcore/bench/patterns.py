"""Options that are regular expressions."""

from __future__ import annotations

import re

import typer


def pattern(text: str, option: str) -> re.Pattern[str]:
    """Compiled, or an error that names the option."""
    try:
        return re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"{text!r} is not a regular expression: {error}", param_hint=option) from None
