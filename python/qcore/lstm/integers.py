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
COMPUTED = ("wx", "rh", "i_pre", "i", "f_pre", "f", "g_pre", "g", "c", "o_pre", "o", "c_tanh", "h")
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
    def variant(cls, names: Collection[str]) -> type[Cell]:
        return _VARIANTS["projection" in names, "peepholes" in names]

    @property
    def tensors(self) -> tuple[str, ...]:
        return COMPUTED

    def step(self, x: Any, states: Sequence[Any], given: Given | None = None) -> dict[str, Integers]:
        h, memory = states
        step = Step(self, given)
        shift, settle = step.shift, step.settle
        e = {name: self.format(name).exponent for name in self.formats}
        products = step.product("x", "w", "b", x, "wx"), step.product("h", "r", None, h, "rh")
        arguments = {
            gate: shift(wx, e["wx"] - e[f"{gate}_pre"]) + shift(rh, e["rh"] - e[f"{gate}_pre"])
            for gate, wx, rh in zip(GATES, *(np.split(each, len(GATES), axis=1) for each in products), strict=True)
        }

        def look_up(gate: str, c: Integers) -> Integers:
            settle(f"{gate}_pre", arguments[gate] + self._peephole(step, gate, c))
            return step.look_up(gate)

        before = step.less_zero("c", memory)
        i, f, g = (look_up(gate, before) for gate in ("i", "f", "g"))
        scales = e["f"] + e["c"], e["i"] + e["g"]
        finer = max(scales)
        total = ((f * before) << (finer - scales[0])) + ((i * g) << (finer - scales[1]))
        o = look_up("o", settle("c", shift(total, finer - e["c"])))
        shown = "m" if "projection" in self.matrices else "h"
        settle(shown, shift(o * step.look_up("c_tanh"), e["o"] + e["c_tanh"] - e[shown]))
        if shown == "m":
            step.product("m", "projection", None, step.codes["m"], "h")
        return step.codes

    def _peephole(self, step: Step, gate: str, c: Integers) -> Any:
        """Return what a gate's argument gets of c."""
        return 0


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


class PeepholeCell(Cell):
    """With peepholes: parts has their codes [3, H] of i, f and o, and their exponents [3]."""

    others = ("peepholes",)

    @classmethod
    def shapes(cls, inputs: int, rows: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return super().shapes(inputs, rows, outputs) | {"peepholes": (3, rows // cls.gates)}

    def _peephole(self, step: Step, gate: str, c: Integers) -> Any:
        if gate == "g":
            return 0
        row = ("i", "f", "o").index(gate)
        scale = int(self.parts["peepholes_exponents"][row]) + self.format("c").exponent
        return step.shift(self.parts["peepholes"][row] * c, scale - self.format(f"{gate}_pre").exponent)


class ProjectedPeepholeCell(PeepholeCell, ProjectedCell):
    """With a projection and peepholes."""


_VARIANTS: dict[tuple[bool, bool], type[Cell]] = {
    (False, False): Cell,
    (True, False): ProjectedCell,
    (False, True): PeepholeCell,
    (True, True): ProjectedPeepholeCell,
}
"""By whether there are a projection and peepholes."""
