"""The definition of docs/recurrent/lstm.md in NumPy integers, apart from the kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from qcore._recurrent.integers import CellBase, Given, Integers, Step
from qcore.lstm.formats import PROJECTED, STATES, TENSORS, UNSIGNED, ZERO_FREE

GATES = ("i", "f", "g", "o")
COMPUTED = ("wx", "rh", "i_pre", "i", "f_pre", "f", "g_pre", "g", "o_pre", "o", "c", "c_tanh", "h")
"""Tensors that a step computes, in this order; with a projection m comes before h."""


@dataclasses.dataclass(frozen=True)
class Cell(CellBase):
    """Parameters of one direction, as :meth:`qcore.lstm.observation.Observer` makes them.

    Args:
        parts: formats [14, 4], w [4H, C], r [4H, H], b [4H], and their exponents [4H].
        tables: codes of i, f, g, o and c_tanh for each code of their argument, lowest first.
        half_even: how shifts round ties.
    """

    op = "lstm"
    formats: ClassVar[tuple[str, ...]] = TENSORS
    unsigned = UNSIGNED
    zero_free = ZERO_FREE
    gates = len(GATES)
    biases = ("b",)
    states = STATES
    functions: ClassVar = {
        "i": ("i_pre", "sigmoid"),
        "f": ("f_pre", "sigmoid"),
        "g": ("g_pre", "tanh"),
        "o": ("o_pre", "sigmoid"),
        "c_tanh": ("c", "tanh"),
    }
    traced: ClassVar[tuple[str, ...]] = ("wx", "rh", "i_pre", "f_pre", "g_pre", "o_pre", *GATES, "c", "c_tanh", "h")
    options = ("half_even",)

    @classmethod
    def of_config(cls, parts: Mapping[str, Any], tables: tuple[NDArray[Any], ...], config: Any) -> Self:
        return cls(parts, tables, config.rounding == "half_even")

    @classmethod
    def variant(cls, parameters: Collection[str]) -> type[Cell]:
        return ProjectedCell if "projection" in parameters else Cell

    @property
    def tensors(self) -> tuple[str, ...]:
        return COMPUTED

    def step(self, x: Any, states: Sequence[Any], given: Given | None = None) -> dict[str, Integers]:
        h, memory = states
        step = Step(self, given)
        shift, settle = step.shift, step.settle
        e = {name: self.format(name).exponent for name in self.formats}
        products = step.product("x", "w", "b", x, "wx"), step.product("h", "r", None, h, "rh")
        gates: dict[str, Integers] = {}
        for gate, wx, rh in zip(GATES, *(np.split(each, len(GATES), axis=1) for each in products), strict=True):
            pre = f"{gate}_pre"
            settle(pre, shift(wx, e["wx"] - e[pre]) + shift(rh, e["rh"] - e[pre]))
            gates[gate] = step.look_up(gate)
        kept, new = gates["f"] * step.less_zero("c", memory), gates["i"] * gates["g"]
        scales = e["f"] + e["c"], e["i"] + e["g"]
        finer = max(scales)
        total = (kept << (finer - scales[0])) + (new << (finer - scales[1]))
        settle("c", shift(total, finer - e["c"]))
        shown = "m" if "projection" in self.matrices else "h"
        settle(shown, shift(gates["o"] * step.look_up("c_tanh"), e["o"] + e["c_tanh"] - e[shown]))
        if shown == "m":
            step.product("m", "projection", None, step.codes["m"], "h")
        return step.codes


class ProjectedCell(Cell):
    """With a projection: parts has its codes [P, H] and their exponents [P], and formats a row for m."""

    formats = PROJECTED
    traced = (*Cell.traced[:-1], "m", "h")
    matrices = (*Cell.matrices, "projection")

    @classmethod
    def shapes(cls, inputs: int, rows: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return super().shapes(inputs, rows, outputs) | {"projection": (outputs, rows // cls.gates)}

    @property
    def tensors(self) -> tuple[str, ...]:
        return (*COMPUTED[:-1], "m", "h")
