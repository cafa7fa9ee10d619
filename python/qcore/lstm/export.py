"""The LSTM's cell in C, for exported headers: what src/numerics/recurrent/lstm_cell.h does, operation by operation."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from qcore._recurrent.export.cell import CellSource, Direction, Layer, shifted
from qcore._recurrent.export.header import export_layers
from qcore._recurrent.export.sizes import ExportSizes
from qcore.lstm.core import LstmCore

_GATES = ("i", "f", "g", "o")
_PEEPHOLES = ("i", "f", "o")

_CELL = """
/* wx (the bias is part of it), rh and the states are codes less their zero points, as everything here. */
static inline @_wide @_cell(const @_layer *l, const int32_t *wx, const int32_t *rh, @_c *c#CHANNEL#) {
  @_wide i, f, g, o, sum;
  i = @_look_up_i(l, @_clamp(@_shift(wx[0], l->wx_to_i) + @_shift(rh[0], l->rh_to_i)#I#, l->i_pre));
  f = @_look_up_f(l, @_clamp(@_shift(wx[1], l->wx_to_f) + @_shift(rh[1], l->rh_to_f)#F#, l->f_pre));
  g = @_look_up_g(l, @_clamp(@_shift(wx[2], l->wx_to_g) + @_shift(rh[2], l->rh_to_g), l->g_pre));
  sum = @_shift(f * *c, l->f_c_to_sum) + @_shift(i * g, l->i_g_to_sum);
  *c = (@_c)@_clamp(@_shift(sum, l->sum_to_c), l->c);
  o = @_look_up_o(l, @_clamp(@_shift(wx[3], l->wx_to_o) + @_shift(rh[3], l->rh_to_o)#O#, l->o_pre));
  return @_clamp(@_shift(o * @_look_up_c_tanh(l, *c), l->o_c_tanh_to_$), l->$);
}
"""


def export_lstm(lstm: LstmCore, path: str | os.PathLike[str], name: str, x: Any) -> ExportSizes:
    """Write as :meth:`QuantLSTM.export_c`, with the tables that ``lstm`` has."""
    shown, peepholes = _shown(lstm.tensors), "peepholes" in lstm.cell_type.others
    cell = CellSource(
        about="with c and its tanh",
        gates=len(_GATES),
        tables={gate: f"{gate}_pre" for gate in _GATES} | {"c_tanh": "c"},
        states=("c",),
        ranges=("wx", "rh", *(f"{gate}_pre" for gate in _GATES), "c", *dict.fromkeys((shown, "h"))),
        function=_function(shown, peepholes),
        call=f"@_cell(l, wx, rh, &state->c[layer][j]{', j' if peepholes else ''})",
        layer=_layer,
    )
    return export_layers(lstm, cell, path, name, x)


def _shown(tensors: tuple[str, ...]) -> str:
    """Return what o * tanh(c) becomes: m with a projection, else h."""
    return "m" if "m" in tensors else "h"


def _function(shown: str, peepholes: bool) -> str:
    """Return the source of the cell; ``shown`` is what o * tanh(c) becomes."""
    text = _CELL.replace("$", shown).replace("#CHANNEL#", ", int j" if peepholes else "")
    for place, gate in enumerate(_PEEPHOLES):
        channel = f"{place} * @@_HIDDEN_SIZE + j" if place else "j"
        term = f"\n                              + @_shift((@_wide)l->peepholes[{channel}] * *c, l->p_c_to_{gate})"
        text = text.replace(f"#{gate.upper()}#", term if peepholes else "")
    return text


def _layer(direction: Direction) -> Layer:
    e = {name: direction.format(name).exponent for name in direction.tensors}
    shifts = {f"{source}_to_{gate}": e[source] - e[f"{gate}_pre"] for gate in _GATES for source in ("wx", "rh")}
    # Both products go to the finer of their scales, to the left, and are rounded once after the sum.
    kept, new = e["f"] + e["c"], e["i"] + e["g"]
    finer = max(kept, new)
    shifts |= {"f_c_to_sum": kept - finer, "i_g_to_sum": new - finer, "sum_to_c": finer - e["c"]}
    peepholes = direction.parts.get("peepholes")
    if peepholes is not None:
        for gate, exponent in zip(_PEEPHOLES, direction.parts["peepholes_exponents"].tolist(), strict=True):
            shifts[f"p_c_to_{gate}"] = exponent + e["c"] - e[f"{gate}_pre"]
    shown = _shown(direction.tensors)
    shifts[f"o_c_tanh_to_{shown}"] = direction.shift((("o", "c_tanh"), shown))
    return Layer(
        direction,
        direction.product("x", "w", "wx", "b"),
        direction.product("h", "r", "rh", None),
        np.zeros(0, np.int64),
        shifts,
        {f"{name}_zero": direction.format(name).zero_point for name in dict.fromkeys((shown, "h"))},
        _bound(direction, shifts),
        direction.product("m", "projection", "h", None) if shown == "m" else None,
        peepholes,
    )


def _bound(direction: Direction, shifts: dict[str, int]) -> int:
    """Return a bound of what :data:`_CELL` computes."""
    most = {name: direction.magnitude(name) for name in direction.tensors}
    gates = [sum(shifted(most[name], shifts[f"{name}_to_{gate}"]) for name in ("wx", "rh")) for gate in _GATES]
    seen = []
    for row, gate in enumerate(_PEEPHOLES if "peepholes" in direction.parts else ()):
        # 0 says nothing about how far 1 is shifted.
        product = max(int(np.abs(direction.parts["peepholes"][row].astype(np.int64)).max()), 1) * most["c"]
        argument = gates[_GATES.index(gate)] + shifted(product, shifts[f"p_c_to_{gate}"])
        seen += [product, argument]
    kept, new = most["f"] * most["c"], most["i"] * most["g"]
    total = shifted(kept, shifts["f_c_to_sum"]) + shifted(new, shifts["i_g_to_sum"])
    last = most["o"] * most["c_tanh"]
    ends = shifted(total, shifts["sum_to_c"]), shifted(last, shifts[f"o_c_tanh_to_{_shown(direction.tensors)}"])
    return max(*most.values(), *gates, *seen, kept, new, total, last, *ends)
