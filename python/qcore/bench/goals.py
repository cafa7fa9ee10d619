"""Goals of an operator against what was measured: how many places meet each, and the one furthest from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .tables import plain_table

if TYPE_CHECKING:
    from rich.table import Table


@dataclass
class Goal:
    text: str
    wanted: float
    at_least: bool = True
    values: list[tuple[str, float]] = field(default_factory=list)  # where, value

    def add(self, where: str, value: float | None) -> None:
        if value is not None:
            self.values.append((where, value))

    def met(self, value: float) -> bool:
        return value >= self.wanted if self.at_least else value <= self.wanted

    def worst(self) -> tuple[str, float]:
        return (min if self.at_least else max)(self.values, key=lambda pair: pair[1])


def goals_table(goals: list[Goal]) -> Table:
    """Goals without a single measurement are left out."""
    table = plain_table("goals")
    table.add_column("goal", overflow="fold")
    for heading in ("wanted", "met", "worst"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for goal in goals:
        if not goal.values:
            continue
        where, worst = goal.worst()
        met = sum(goal.met(value) for _, value in goal.values)
        sign = ">=" if goal.at_least else "<="
        table.add_row(goal.text, f"{sign} {goal.wanted:.2f}", f"{met}/{len(goal.values)}", f"{worst:.3f}", where)
    return table
