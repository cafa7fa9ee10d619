"""A group of commands one of which is `all`."""

from __future__ import annotations

from typing import Any

import typer.core


class OptionsOfAll(typer.core.TyperGroup):
    """Passes options that no command precedes to `all`: `qcore bench --quick`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["all", *args]
        return super().parse_args(ctx, args)
