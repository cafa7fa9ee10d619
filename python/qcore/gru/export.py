"""The GRU's cell in C, for exported headers: what src/numerics/recurrent/gru_cell.h does, operation by operation."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore._recurrent.export.cell import CellSource, Direction, Layer, Product, shifted
from qcore._recurrent.export.header import export_layers
from qcore._recurrent.export.sizes import ExportSizes
from qcore.gru.core import GruCore

_SHARED_SHIFTS = {
    "wx_to_z": (("wx",), "z_pre"),
    "rh_to_z": (("rh",), "z_pre"),
    "wx_to_r": (("wx",), "r_pre"),
    "rh_to_r": (("rh",), "r_pre"),
    "wx_to_g": (("wx",), "g_pre"),
}
_STAGED_SHIFTS = _SHARED_SHIFTS | {
    "rh_to_rb": (("rh",), "rb"),
    "r_rb_to_rrh": (("r", "rb"), "rrh"),
    "rrh_to_g": (("rrh",), "g_pre"),
    "z_h_to_old": (("z", "h"), "old_part"),
    "z_g_to_new": (("z", "g"), "new_part"),
    "old_to_h": (("old_part",), "h"),
    "new_to_h": (("new_part",), "h"),
}
_FUSED_SHIFTS = _SHARED_SHIFTS | {"r_rh_to_g": (("r", "rh"), "g_pre"), "g_to_h": (("g",), "h")}
_RESET = {"r_h_to_rrh": (("r", "h"), "rrh")}
_STAGED_RESET_SHIFTS = {
    name: exponents for name, exponents in _STAGED_SHIFTS.items() if name not in ("r_rb_to_rrh", "rrh_to_g")
} | (_RESET | {"rb_to_g": (("rb",), "g_pre")})
_FUSED_RESET_SHIFTS = {name: exponents for name, exponents in _FUSED_SHIFTS.items() if name != "r_rh_to_g"} | (
    _RESET | {"rh_to_g": (("rh",), "g_pre")}
)
_SHARED_RANGES = ("wx", "rh", "z_pre", "r_pre", "g_pre", "h")
_STAGED_RANGES = (*_SHARED_RANGES, "rb", "rrh", "old_part", "new_part")
_FUSED_RESET_RANGES = (*_SHARED_RANGES, "rrh")

# #Z# and #R# add biases in the staged pipeline, #REST# makes h of z, the sums for g and the state.
_RESET_GATES = """
/* wx, rh and the state are codes less their zero points, as everything here. */
static inline @_wide @_update(const @_layer *l, const int32_t *wx, const int32_t *rh, int j) {
  const @_wide z = @_shift(wx[0], l->wx_to_z) + @_shift(rh[0], l->rh_to_z)#Z#;
  (void)j;
  return @_look_up_z(l, @_clamp(z, l->z_pre));
}

/* r * h, which R is multiplied by. */
static inline @_wide @_reset(const @_layer *l, const int32_t *wx, const int32_t *rh, int j, @_wide h) {
  const @_wide r = @_shift(wx[1], l->wx_to_r) + @_shift(rh[1], l->rh_to_r)#R#;
  (void)j;
  return @_clamp(@_shift(@_look_up_r(l, @_clamp(r, l->r_pre)) * h, l->r_h_to_rrh), l->rrh);
}

static inline @_wide @_cell(const @_layer *l, @_wide z, @_wide wx, @_wide rh, int j, @_wide h) {
#REST#}
"""

_STAGED_RESET = """  const @_bias *bias = l->biases + j;
  const @_wide rb = @_clamp(@_shift(rh, l->rh_to_rb) + bias[3 * @@_HIDDEN_SIZE], l->rb);
  @_wide g, kept, fresh;
  g = @_shift(wx, l->wx_to_g) + @_shift(rb, l->rb_to_g) + bias[2 * @@_HIDDEN_SIZE];
  g = @_look_up_g(l, @_clamp(g, l->g_pre));
  kept = @_clamp(@_shift(z * h, l->z_h_to_old), l->old_part);
  fresh = @_clamp(@_shift((l->one - z) * g, l->z_g_to_new), l->new_part);
  return @_clamp(@_shift(kept, l->old_to_h) + @_shift(fresh, l->new_to_h), l->h);
"""

_FUSED_RESET = """  const @_wide sum = @_shift(wx, l->wx_to_g) + @_shift(rh, l->rh_to_g);
  const @_wide g = @_look_up_g(l, @_clamp(sum, l->g_pre));
  (void)j;
  return @_clamp(@_shift(z * h + (l->one - z) * @_shift(g, l->g_to_h), l->z_bits), l->h);
"""

_STAGED = """
/* wx, rh and the state are codes less their zero points, as everything here. */
static inline @_wide @_cell(const @_layer *l, const int32_t *wx, const int32_t *rh, int j, @_wide h) {
  const int size = @@_HIDDEN_SIZE;
  const @_bias *bias = l->biases + j;
  @_wide z, r, g, rb, rrh, kept, fresh;
  z = @_shift(wx[0], l->wx_to_z) + @_shift(rh[0], l->rh_to_z) + bias[0];
  z = @_look_up_z(l, @_clamp(z, l->z_pre));
  r = @_shift(wx[1], l->wx_to_r) + @_shift(rh[1], l->rh_to_r) + bias[size];
  r = @_look_up_r(l, @_clamp(r, l->r_pre));
  rb = @_clamp(@_shift(rh[2], l->rh_to_rb) + bias[3 * size], l->rb);
  rrh = @_clamp(@_shift(r * rb, l->r_rb_to_rrh), l->rrh);
  g = @_shift(wx[2], l->wx_to_g) + @_shift(rrh, l->rrh_to_g) + bias[2 * size];
  g = @_look_up_g(l, @_clamp(g, l->g_pre));
  kept = @_clamp(@_shift(z * h, l->z_h_to_old), l->old_part);
  fresh = @_clamp(@_shift((l->one - z) * g, l->z_g_to_new), l->new_part);
  return @_clamp(@_shift(kept, l->old_to_h) + @_shift(fresh, l->new_to_h), l->h);
}
"""

_FUSED = """
/* wx, rh (biases are part of them) and the state are codes less their zero points, as everything here. */
static inline @_wide @_cell(const @_layer *l, const int32_t *wx, const int32_t *rh, @_wide h) {
  @_wide z, r, g;
  z = @_shift(wx[0], l->wx_to_z) + @_shift(rh[0], l->rh_to_z);
  z = @_look_up_z(l, @_clamp(z, l->z_pre));
  r = @_shift(wx[1], l->wx_to_r) + @_shift(rh[1], l->rh_to_r);
  r = @_look_up_r(l, @_clamp(r, l->r_pre));
  g = @_shift(wx[2], l->wx_to_g) + @_shift(r * rh[2], l->r_rh_to_g);
  g = @_look_up_g(l, @_clamp(g, l->g_pre));
  return @_clamp(@_shift(z * h + (l->one - z) * @_shift(g, l->g_to_h), l->z_bits), l->h);
}
"""


def export_gru(gru: GruCore, path: str | os.PathLike[str], name: str, x: Any) -> ExportSizes:
    """Write as :meth:`QuantGRU.export_c`, with the tables that ``gru`` has."""
    fused = gru.config.pipeline == "fused"
    if not gru.linear_before_reset:
        return export_layers(gru, _reset_cell(fused), path, name, x)
    cell = CellSource(
        about=f"pipeline {gru.config.pipeline}",
        gates=3,
        tables={"z": "z_pre", "r": "r_pre", "g": "g_pre"},
        states=(),
        ranges=_SHARED_RANGES if fused else _STAGED_RANGES,
        function=_FUSED if fused else _STAGED,
        call=f"@_cell(l, wx, rh,{'' if fused else ' j,'} h[j] - l->h_zero)",
        layer=_fused_layer if fused else _staged_layer,
    )
    return export_layers(gru, cell, path, name, x)


def _reset_cell(fused: bool) -> CellSource:
    """Return the cell with linear_before_reset = 0."""
    text = _RESET_GATES.replace("#REST#", _FUSED_RESET if fused else _STAGED_RESET)
    text = text.replace("#Z#", "" if fused else " + l->biases[j]")
    text = text.replace("#R#", "" if fused else " + l->biases[@@_HIDDEN_SIZE + j]")
    return CellSource(
        about=f"linear_before_reset 0, pipeline {'fused' if fused else 'staged'}",
        gates=3,
        tables={"z": "z_pre", "r": "r_pre", "g": "g_pre"},
        states=(),
        ranges=_FUSED_RESET_RANGES if fused else _STAGED_RANGES,
        function=text,
        call="",
        layer=_fused_reset_layer if fused else _staged_reset_layer,
        second="rrh",
    )


def _fused_reset_layer(direction: Direction) -> Layer:
    shifts = {name: direction.shift(exponents) for name, exponents in _FUSED_RESET_SHIFTS.items()}
    shifts["z_bits"] = direction.format("z").exponent
    return Layer(
        direction,
        direction.product("x", "w", "wx", "bx"),
        _reset_product(direction, "br"),
        np.zeros(0, np.int64),
        shifts,
        _numbers(direction) | {"rrh_zero": direction.format("rrh").zero_point},
        _fused_reset_bound(direction, shifts),
    )


def _fused_reset_bound(direction: Direction, shifts: dict[str, int]) -> int:
    """Return a bound of what the cell of :data:`_FUSED_RESET` computes."""
    most = {name: direction.magnitude(name) for name in (*_FUSED_RESET_RANGES, "z", "r", "g")}
    sums = (sum(shifted(most[name], shifts[f"{name}_to_{gate}"]) for name in ("wx", "rh")) for gate in "zrg")
    product, new = most["r"] * most["h"], shifted(most["g"], shifts["g_to_h"])
    total = most["z"] * most["h"] + max(_numbers(direction)["one"], most["z"]) * new
    return max(*most.values(), *sums, product, shifted(product, shifts["r_h_to_rrh"]), total)


def _staged_reset_layer(direction: Direction) -> Layer:
    shifts = {name: direction.shift(exponents) for name, exponents in _STAGED_RESET_SHIFTS.items()}
    biases = _biases(direction)
    return Layer(
        direction,
        direction.product("x", "w", "wx", None),
        _reset_product(direction, None),
        biases,
        shifts,
        _numbers(direction) | {"rrh_zero": direction.format("rrh").zero_point},
        _staged_bound(direction, shifts, int(np.abs(biases).max(initial=0))),
    )


def _reset_product(direction: Direction, bias: str | None) -> Product:
    """Return the numbers of R's rows: those of z and r multiply h, those of g rrh = r * h."""
    rows = 2 * direction.parts["r"].shape[1]
    first, second = (direction.product(name, "r", "rh", bias) for name in ("h", "rrh"))
    return Product(
        np.concatenate([first.offsets[:rows], second.offsets[rows:]]),
        np.concatenate([first.shifts[:rows], second.shifts[rows:]]),
        max(first.bound, second.bound),
    )


def _fused_layer(direction: Direction) -> Layer:
    shifts = {name: direction.shift(exponents) for name, exponents in _FUSED_SHIFTS.items()}
    shifts["z_bits"] = direction.format("z").exponent
    return Layer(
        direction,
        direction.product("x", "w", "wx", "bx"),
        direction.product("h", "r", "rh", "br"),
        np.zeros(0, np.int64),
        shifts,
        _numbers(direction),
        _fused_bound(direction, shifts),
    )


def _fused_bound(direction: Direction, shifts: dict[str, int]) -> int:
    """Return a bound of what :data:`_FUSED` computes."""
    most = {name: direction.magnitude(name) for name in (*_SHARED_RANGES, "z", "r", "g")}
    z, r = (sum(shifted(most[name], shifts[f"{name}_to_{gate}"]) for name in ("wx", "rh")) for gate in "zr")
    product, new = most["r"] * most["rh"], shifted(most["g"], shifts["g_to_h"])
    g = shifted(most["wx"], shifts["wx_to_g"]) + shifted(product, shifts["r_rh_to_g"])
    total = most["z"] * most["h"] + max(_numbers(direction)["one"], most["z"]) * new
    return max(*most.values(), z, r, product, g, total)


def _staged_layer(direction: Direction) -> Layer:
    shifts = {name: direction.shift(exponents) for name, exponents in _STAGED_SHIFTS.items()}
    biases = _biases(direction)
    return Layer(
        direction,
        direction.product("x", "w", "wx", None),
        direction.product("h", "r", "rh", None),
        biases,
        shifts,
        _numbers(direction),
        _staged_bound(direction, shifts, int(np.abs(biases).max(initial=0))),
    )


def _staged_bound(direction: Direction, shifts: dict[str, int], bias: int) -> int:
    """Return a bound of what :data:`_STAGED` or the cell of :data:`_STAGED_RESET` computes."""
    most = {name: direction.magnitude(name) for name in (*_STAGED_RANGES, "z", "r", "g")}

    def after(name: str, shift: str) -> int:
        return shifted(most[name], shifts[shift])

    z, r = (after("wx", f"wx_to_{gate}") + after("rh", f"rh_to_{gate}") + bias for gate in "zr")
    rb, reset_before = after("rh", "rh_to_rb") + bias, "r_h_to_rrh" in shifts
    product = most["r"] * most["h" if reset_before else "rb"]
    g = after("wx", "wx_to_g") + (after("rb", "rb_to_g") if reset_before else after("rrh", "rrh_to_g")) + bias
    kept, new = most["z"] * most["h"], max(_numbers(direction)["one"], most["z"]) * most["g"]
    rounded = [
        shifted(product, shifts["r_h_to_rrh" if reset_before else "r_rb_to_rrh"]),
        shifted(kept, shifts["z_h_to_old"]),
        shifted(new, shifts["z_g_to_new"]),
        after("old_part", "old_to_h") + after("new_part", "new_to_h"),
    ]
    return max(*most.values(), z, r, rb, product, g, kept, new, *rounded)


def _numbers(direction: Direction) -> dict[str, int]:
    return {"one": 1 << direction.format("z").exponent, "h_zero": direction.format("h").zero_point}


def _biases(direction: Direction) -> NDArray[np.int64]:
    """Return z, r, g and rb, H each, at the scale of what they are added to."""
    size = direction.parts["r"].shape[1]

    def bias(name: str, gate: int, to: str) -> NDArray[np.int64]:
        return direction.bias(name, slice(gate * size, (gate + 1) * size), direction.format(to).exponent)

    return np.concatenate(
        [
            bias("bx", 0, "z_pre") + bias("br", 0, "z_pre"),
            bias("bx", 1, "r_pre") + bias("br", 1, "r_pre"),
            bias("bx", 2, "g_pre"),
            bias("br", 2, "rb"),
        ]
    )
