"""The definition of docs/gru.md in NumPy integers, apart from the kernels: it checks them, and counts clipping.

Nothing here is fast; every tensor is computed from the tensors it is defined by, all rows and channels at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore._recurrent.formats import Format
from qcore._recurrent.integers import Integers, rounding_shift
from qcore.gru.formats import TENSORS

Codes = Mapping[str, NDArray[Any]]

STAGED = ("wx", "rh", "z_pre", "z", "r_pre", "r", "rb", "rrh", "g_pre", "g", "old_part", "new_part", "h")
FUSED = ("wx", "rh", "z_pre", "z", "r_pre", "r", "rb", "g_pre", "g", "h")
"""Tensors that a step computes, in this order. In the fused pipeline rb is the part of rh for g."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Parameters of one direction, as :func:`qcore.gru.calibration.quantize_direction` makes them.

    Args:
        parts: formats [14, 4], w [3H, C], r [3H, H], bx and br [3H], and their exponents [3H].
        tables: codes of z, r and g for each code of their argument, lowest first.
    """

    parts: Mapping[str, Any]
    tables: tuple[NDArray[Any], ...]
    fused: bool
    half_even: bool

    @property
    def tensors(self) -> tuple[str, ...]:
        return FUSED if self.fused else STAGED

    def format(self, name: str) -> Format:
        if self.fused and name == "rb":
            name = "rh"
        bits, signed, exponent, zero = (int(value) for value in self.parts["formats"][TENSORS.index(name)])
        return Format(bits, bool(signed), exponent, zero)

    def step(self, x: Any, h: Any, given: Callable[[str, Integers], Any] | None = None) -> dict[str, Integers]:
        """Return codes of all tensors of one step, from codes x [B, C] and h [B, H].

        ``given(name, unclamped)`` is told each tensor before it is clamped; codes it returns take its place.
        """
        codes: dict[str, Integers] = {}
        size = np.shape(h)[1]
        e = {name: self.format(name).exponent for name in TENSORS}
        e["rb"] = self.format("rb").exponent
        gates = slice(0, size), slice(size, 2 * size), slice(2 * size, 3 * size)
        p = self.parts

        def less_zero(name: str, values: Any) -> Integers:
            return np.asarray(values, np.int64) - self.format(name).zero_point

        def shift(values: Any, bits: Any) -> Integers:
            return rounding_shift(values, bits, half_even=self.half_even)

        def settle(name: str, values: Integers) -> Integers:
            """Return codes of `values`, which count from the zero point; less that zero point again."""
            form = self.format(name)
            values = values + form.zero_point
            replaced = None if given is None else given(name, values)
            codes[name] = np.clip(values, form.lowest, form.highest) if replaced is None else np.asarray(replaced)
            return less_zero(name, codes[name])

        def bias(name: str, gate: int, to: str) -> Integers:
            return shift(p[name][gates[gate]], p[f"{name}_exponents"][gates[gate]].astype(np.int64) - e[to])

        def product(source: str, weights: str, biases: str, values: Any, to: str) -> Integers:
            total = less_zero(source, values) @ p[weights].astype(np.int64).T
            scale = p[f"{weights}_exponents"].astype(np.int64) + e[source]
            if self.fused:
                total = total + shift(p[biases], p[f"{biases}_exponents"].astype(np.int64) - scale)
            return settle(to, shift(total, scale - e[to]))

        def look_up(gate: int, name: str, argument: str) -> Integers:
            entries = np.asarray(self.tables[gate], np.int64)
            form = self.format(name)
            return settle(name, entries[codes[argument] - self.format(argument).lowest] - form.zero_point)

        def sigmoid_gate(gate: int, name: str) -> Integers:
            pre = f"{name}_pre"
            total = shift(wx[:, gates[gate]], e["wx"] - e[pre]) + shift(rh[:, gates[gate]], e["rh"] - e[pre])
            if not self.fused:
                total = total + bias("bx", gate, pre) + bias("br", gate, pre)
            settle(pre, total)
            return look_up(gate, name, pre)

        wx = product("x", "w", "bx", x, "wx")
        rh = product("h", "r", "br", h, "rh")
        z, r = sigmoid_gate(0, "z"), sigmoid_gate(1, "r")
        one, state = np.int64(1) << e["z"], less_zero("h", h)
        total = shift(wx[:, gates[2]], e["wx"] - e["g_pre"])
        if self.fused:
            rb = settle("rb", rh[:, gates[2]])
            settle("g_pre", total + shift(r * rb, e["r"] + e["rh"] - e["g_pre"]))
            g = look_up(2, "g", "g_pre")
            settle("h", shift(z * state + (one - z) * shift(g, e["g"] - e["h"]), e["z"]))
        else:
            rb = settle("rb", shift(rh[:, gates[2]], e["rh"] - e["rb"]) + bias("br", 2, "rb"))
            rrh = settle("rrh", shift(r * rb, e["r"] + e["rb"] - e["rrh"]))
            settle("g_pre", total + shift(rrh, e["rrh"] - e["g_pre"]) + bias("bx", 2, "g_pre"))
            g = look_up(2, "g", "g_pre")
            old = settle("old_part", shift(z * state, e["z"] + e["h"] - e["old_part"]))
            new = settle("new_part", shift((one - z) * g, e["z"] + e["g"] - e["new_part"]))
            settle("h", shift(old, e["old_part"] - e["h"]) + shift(new, e["new_part"] - e["h"]))
        return codes


def replay(
    cell: Cell, x: NDArray[Any], h0: NDArray[Any], trace: Codes, *, reverse: bool = False
) -> Iterator[tuple[int, str, Integers, NDArray[Any]]]:
    """Yield each tensor of each step from the trace's own tensors before it: (t, name, unclamped, the trace's codes).

    Args:
        x: codes [T, B, C].
        h0: codes [B, H].
        trace: codes [T, B, ...] of ``cell.tensors``.
        reverse: from the last step to the first.
    """
    h = h0
    for t in range(len(x) - 1, -1, -1) if reverse else range(len(x)):
        seen: list[tuple[str, Integers]] = []

        def given(name: str, unclamped: Integers, t: int = t, seen: list[tuple[str, Integers]] = seen) -> Any:
            seen.append((name, unclamped))
            return trace[name][t]

        cell.step(x[t], h, given)
        for name, unclamped in seen:
            yield t, name, unclamped, trace[name][t]
        h = trace["h"][t]
