"""The operators that can be measured: a row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .linear import summary as linear
from .results import Document

if TYPE_CHECKING:
    from rich.console import RenderableType

# What ends a report: the figures that the operator's goals are about.
SUMMARIES: dict[str, Callable[[Document], list[RenderableType]]] = {"linear": linear.summarise}
