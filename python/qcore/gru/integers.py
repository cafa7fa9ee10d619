"""The definition of docs/gru.md in NumPy integers, apart from the kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from qcore._recurrent.formats import Format
from qcore._recurrent.integers import WIDE, CellBase, Given, Integers, Step
from qcore.gru.formats import STATES, TENSORS, UNSIGNED, ZERO_FREE

STAGED = ("wx", "rh", "z_pre", "z", "r_pre", "r", "rb", "rrh", "g_pre", "g", "old_part", "new_part", "h")
FUSED = ("wx", "rh", "z_pre", "z", "r_pre", "r", "rb", "g_pre", "g", "h")
"""Tensors that a step computes, in this order. In the fused pipeline rb is the part of rh for g."""


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
    traced = ("wx", "rh", "z_pre", "r_pre", "rb", "rrh", "g_pre", "z", "r", "g", "old_part", "new_part", "h")
    options = ("fused", "half_even")

    fused: bool

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
        rh = step.product("h", "r", "br" if self.fused else None, h, "rh")
        z, r = sigmoid_gate(0, "z"), sigmoid_gate(1, "r")
        one, state = np.int64(1) << e["z"], less_zero("h", h)
        total = shift(wx[:, gates[2]], e["wx"] - e["g_pre"])
        if self.fused:
            rb = settle("rb", rh[:, gates[2]])
            settle("g_pre", total + shift(r * rb, e["r"] + e["rh"] - e["g_pre"]))
            g = step.look_up("g")
            settle("h", shift(z * state + (one - z) * shift(g, e["g"] - e["h"]), e["z"]))
        else:
            rb = settle("rb", shift(rh[:, gates[2]], e["rh"] - e["rb"]) + bias("br", 2, "rb"))
            rrh = settle("rrh", shift(r * rb, e["r"] + e["rb"] - e["rrh"]))
            settle("g_pre", total + shift(rrh, e["rrh"] - e["g_pre"]) + bias("bx", 2, "g_pre"))
            g = step.look_up("g")
            old = settle("old_part", shift(z * state, e["z"] + e["h"] - e["old_part"]))
            new = settle("new_part", shift((one - z) * g, e["z"] + e["g"] - e["new_part"]))
            settle("h", shift(old, e["old_part"] - e["h"]) + shift(new, e["new_part"] - e["h"]))
        return step.codes
