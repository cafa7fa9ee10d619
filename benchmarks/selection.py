"""Filters the cases and implementations of a benchmark run by the options of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from . import libraries
from .implementation import OURS, Implementation

Source = Callable[..., list[Implementation]]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Patterns that are searched for in names; operators add their shapes."""

    cases: re.Pattern[str] = re.compile("")
    ours: re.Pattern[str] = re.compile("")
    peers: re.Pattern[str] | None = re.compile("")  # None: no other library is imported

    def takes(self, implementation: Implementation) -> bool:
        pattern = self.ours if implementation.library == OURS else self.peers
        return pattern is not None and pattern.search(implementation.name) is not None

    def implementations(
        self, ours: Source, peers: Mapping[str, Source], *arguments: Any, unavailable: dict[str, str]
    ) -> list[Implementation]:
        """Collect what all sources make of the arguments; a source that fails is noted in `unavailable`."""
        sources = {OURS: ours, **(peers if self.peers is not None else {})}
        found: list[Implementation] = libraries.gather(
            [(name, partial(source, *arguments)) for name, source in sources.items()], unavailable
        )
        return [implementation for implementation in found if self.takes(implementation)]

    def settings(self) -> dict[str, object]:
        """All of it as JSON has it."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}


def _plain(value: Any) -> object:
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, (list, tuple)):
        return ["x".join(map(str, item)) if isinstance(item, tuple) else getattr(item, "name", item) for item in value]
    return value
