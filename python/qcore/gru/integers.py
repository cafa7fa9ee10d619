"""The definition of docs/gru.md in NumPy integers, apart from the kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from qcore._recurrent.formats import Format
from qcore._recurrent.integers import WIDE, CellBase, Given, Integers, Step
from qcore.gru.formats import STATES, TENSORS, UNSIGNED, ZERO_FREE

STAGED = ("wx", "rh", "z_pre", "z", "r_pre", "r", "rb", "rrh", "g_pre", "g", "old_part", "new_part", "h")
FUSED = ("wx", "rh", "z_pre", "z", "r_pre", "r", "rb", "g_pre", "g", "h")
"""Tensors that a step computes, in this order. In the fused pipeline rb is the part of rh for g."""
RESET = (*STAGED[:6], "rrh", "rh_g", "rb", *STAGED[8:])
FUSED_RESET = (*FUSED[:6], "rrh", "rh_g", *FUSED[7:])
"""The same with linear_before_reset = 0: rh has the rows of z and r, rh_g is the product of g's and rrh = r * h."""


@dataclasses.dataclass(frozen=True)
class Cell(CellBase):
    """Parameters of one direction, as :func:`qcore.gru.observation.quantize_direction` makes them.

    Args:
        parts: formats [14, 4], w [3H, C], r [3H, H], bx and br [3H], and their exponents [3H].
        tables: codes of z, r and g for each code of their argument, lowest first.
        half_even: how shifts round ties.
        fused: the pipeline.
    """

    op = "gru"
    formats = TENSORS
    unsigned = UNSIGNED
    zero_free = ZERO_FREE
    gates = 3
    biases = ("bx", "br")
    states = STATES
    functions: ClassVar = {"z": ("z_pre", "sigmoid"), "r": ("r_pre", "sigmoid"), "g": ("g_pre", "tanh")}
    traced: ClassVar[tuple[str, ...]] = (
        "wx",
        "rh",
        "z_pre",
        "r_pre",
        "rb",
        "rrh",
        "g_pre",
        "z",
        "r",
        "g",
        "old_part",
        "new_part",
        "h",
    )
    options = ("fused", "half_even")

    fused: bool

    @classmethod
    def variant(cls, names: Collection[str]) -> type[Cell]:
        return ResetCell if "rh_g" in names else Cell

    @classmethod
    def of_config(cls, parts: Mapping[str, Any], tables: tuple[NDArray[Any], ...], config: Any) -> Self:
        return cls(parts, tables, config.rounding == "half_even", config.pipeline == "fused")

    @property
    def tensors(self) -> tuple[str, ...]:
        return FUSED if self.fused else STAGED

    def format(self, name: str) -> Format:
        return super().format("rh" if self.fused and name == "rb" else name)

    @classmethod
    def allows(cls, name: str, exponent: int) -> bool:
        return name != "z" or 0 <= exponent <= 30  # 1 - z needs the code of 1

    def float_name(self, name: str) -> str:
        return f"{name}_with_bias" if self.fused and name in WIDE else name

    def step(self, x: Any, states: Sequence[Any], given: Given | None = None) -> dict[str, Integers]:
        (h,) = states
        step = Step(self, given)
        shift, settle, less_zero, p = step.shift, step.settle, step.less_zero, self.parts
        size = np.shape(h)[1]
        e = {name: self.format(name).exponent for name in TENSORS}
        gates = slice(0, size), slice(size, 2 * size), slice(2 * size, 3 * size)

        def bias(name: str, gate: int, to: str) -> Integers:
            return shift(p[name][gates[gate]], p[f"{name}_exponents"][gates[gate]].astype(np.int64) - e[to])

        def sigmoid_gate(gate: int, name: str) -> Integers:
            pre = f"{name}_pre"
            total = shift(wx[:, gates[gate]], e["wx"] - e[pre]) + shift(rh[:, gates[gate]], e["rh"] - e[pre])
            if not self.fused:
                total = total + bias("bx", gate, pre) + bias("br", gate, pre)
            settle(pre, total)
            return step.look_up(name)

        wx = step.product("x", "w", "bx" if self.fused else None, x, "wx")
        rh = self._state_product(step, h)
        z, r = sigmoid_gate(0, "z"), sigmoid_gate(1, "r")
        one, state = np.int64(1) << e["z"], less_zero("h", h)
        total = shift(wx[:, gates[2]], e["wx"] - e["g_pre"])
        br, bx = (0, 0) if self.fused else (bias("br", 2, "rb"), bias("bx", 2, "g_pre"))
        settle("g_pre", total + self._candidate(step, rh, r, state, br) + bx)
        g = step.look_up("g")
        if self.fused:
            settle("h", shift(z * state + (one - z) * shift(g, e["g"] - e["h"]), e["z"]))
        else:
            old = settle("old_part", shift(z * state, e["z"] + e["h"] - e["old_part"]))
            new = settle("new_part", shift((one - z) * g, e["z"] + e["g"] - e["new_part"]))
            settle("h", shift(old, e["old_part"] - e["h"]) + shift(new, e["new_part"] - e["h"]))
        return step.codes

    def _state_product(self, step: Step, h: Any) -> Integers:
        """Return rh."""
        return step.product("h", "r", "br" if self.fused else None, h, "rh")

    def _candidate(self, step: Step, rh: Integers, r: Integers, state: Integers, br: Any) -> Integers:
        """Return the part of g's argument that the state has, at its scale; br is the staged pipeline's bias of rb."""
        e = {name: self.format(name).exponent for name in ("rh", "rb", "rrh", "r", "g_pre")}
        of_g = rh[:, 2 * state.shape[1] :]
        if self.fused:
            return step.shift(r * step.settle("rb", of_g), e["r"] + e["rh"] - e["g_pre"])
        rb = step.settle("rb", step.shift(of_g, e["rh"] - e["rb"]) + br)
        rrh = step.settle("rrh", step.shift(r * rb, e["r"] + e["rb"] - e["rrh"]))
        return step.shift(rrh, e["rrh"] - e["g_pre"])


class ResetCell(Cell):
    """With linear_before_reset = 0: the reset gate multiplies h before its product."""

    traced = ("wx", "rh", "rh_g", *Cell.traced[2:])

    @property
    def tensors(self) -> tuple[str, ...]:
        return FUSED_RESET if self.fused else RESET

    def format(self, name: str) -> Format:
        return super().format("rh" if name == "rh_g" else name)

    def width(self, name: str) -> int:
        size = int(self.parts["r"].shape[1])
        return {"rh": 2 * size, "rh_g": size}.get(name, super().width(name))

    def float_steps(self, name: str, seen: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
        if name not in ("rh", "rh_g"):
            return super().float_steps(name, seen)
        size = int(self.parts["r"].shape[1])
        rows = slice(0, 2 * size) if name == "rh" else slice(2 * size, None)
        return [values[:, rows] for values in seen[self.float_name("rh")]]

    def _state_product(self, step: Step, h: Any) -> Integers:
        return step.product("h", "r", "br" if self.fused else None, h, "rh", slice(0, 2 * h.shape[1]))

    def _candidate(self, step: Step, rh: Integers, r: Integers, state: Integers, br: Any) -> Integers:
        e = {name: self.format(name).exponent for name in ("rh", "rb", "rrh", "r", "h", "g_pre")}
        step.settle("rrh", step.shift(r * state, e["r"] + e["h"] - e["rrh"]))
        rows = slice(2 * state.shape[1], None)
        rh_g = step.product("rrh", "r", "br" if self.fused else None, step.codes["rrh"], "rh_g", rows)
        if self.fused:
            return step.shift(rh_g, e["rh"] - e["g_pre"])
        rb = step.settle("rb", step.shift(rh_g, e["rh"] - e["rb"]) + br)
        return step.shift(rb, e["rb"] - e["g_pre"])
