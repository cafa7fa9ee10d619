"""The GRU's cell in C, for exported headers: what src/numerics/recurrent/gru_cell.h does, operation by operation."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qcore._recurrent.export.cell import CellSource, Direction, Layer, Product
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

_FUSED_RANGES = (*_SHARED_RANGES, "rrh")

# #Z# and #R# add biases in the staged pipeline, #REST# makes h of z, the sums for g and the state.
_RESET_GATES = """
/* wx, rh and the state are codes less their zero points, as everything here. */
static inline int64_t @_update(const @_layer *l, const int32_t *wx, const int32_t *rh, int j) {
  const int64_t z = @_shift(wx[0], l->wx_to_z) + @_shift(rh[0], l->rh_to_z)#Z#;
  (void)j;
  return @_look_up_z(l, @_clamp(z, l->z_pre));
}

/* r * h, which R is multiplied by. */
static inline int64_t @_reset(const @_layer *l, const int32_t *wx, const int32_t *rh, int j, int64_t h) {
  const int64_t r = @_shift(wx[1], l->wx_to_r) + @_shift(rh[1], l->rh_to_r)#R#;
  (void)j;
  return @_clamp(@_shift(@_look_up_r(l, @_clamp(r, l->r_pre)) * h, l->r_h_to_rrh), l->rrh);
}

static inline int64_t @_cell(const @_layer *l, int64_t z, int64_t wx, int64_t rh, int j, int64_t h) {
#REST#}
"""

_STAGED_RESET = """  const @_bias *bias = l->biases + j;
  const int64_t rb = @_clamp(@_shift(rh, l->rh_to_rb) + bias[3 * @@_HIDDEN_SIZE], l->rb);
  int64_t g, kept, fresh;
  g = @_shift(wx, l->wx_to_g) + @_shift(rb, l->rb_to_g) + bias[2 * @@_HIDDEN_SIZE];
  g = @_look_up_g(l, @_clamp(g, l->g_pre));
  kept = @_clamp(@_shift(z * h, l->z_h_to_old), l->old_part);
  fresh = @_clamp(@_shift((l->one - z) * g, l->z_g_to_new), l->new_part);
  return @_clamp(@_shift(kept, l->old_to_h) + @_shift(fresh, l->new_to_h), l->h);
"""

_FUSED_RESET = """  const int64_t sum = @_shift(wx, l->wx_to_g) + @_shift(rh, l->rh_to_g);
  const int64_t g = @_look_up_g(l, @_clamp(sum, l->g_pre));
  (void)j;
  return @_clamp(@_shift(z * h + (l->one - z) * @_shift(g, l->g_to_h), l->z_bits), l->h);
"""

_STAGED = """
/* wx, rh and the state are codes less their zero points, as everything here. */
static inline int64_t @_cell(const @_layer *l, const int32_t *wx, const int32_t *rh, int j, int64_t h) {
  const int size = @@_HIDDEN_SIZE;
  const @_bias *bias = l->biases + j;
  int64_t z, r, g, rb, rrh, kept, fresh;
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
static inline int64_t @_cell(const @_layer *l, const int32_t *wx, const int32_t *rh, int64_t h) {
  int64_t z, r, g;
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
        ranges=_FUSED_RANGES if fused else _STAGED_RANGES,
        function=text,
        call="",
        layer=_fused_reset_layer if fused else _staged_reset_layer,
        second="rrh",
    )


def _fused_reset_layer(direction: Direction) -> Layer:
    shifts = {name: direction.shift(exponents) for name, exponents in _FUSED_RESET_SHIFTS.items()}
    return Layer(
        direction,
        direction.product("x", "w", "wx", "bx"),
        _reset_product(direction, "br"),
        np.zeros(0, np.int64),
        shifts | {"z_bits": direction.format("z").exponent},
        _numbers(direction) | {"rrh_zero": direction.format("rrh").zero_point},
    )


def _staged_reset_layer(direction: Direction) -> Layer:
    return Layer(
        direction,
        direction.product("x", "w", "wx", None),
        _reset_product(direction, None),
        _biases(direction),
        {name: direction.shift(exponents) for name, exponents in _STAGED_RESET_SHIFTS.items()},
        _numbers(direction) | {"rrh_zero": direction.format("rrh").zero_point},
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
    return Layer(
        direction,
        direction.product("x", "w", "wx", "bx"),
        direction.product("h", "r", "rh", "br"),
        np.zeros(0, np.int64),
        shifts | {"z_bits": direction.format("z").exponent},
        _numbers(direction),
    )


def _staged_layer(direction: Direction) -> Layer:
    return Layer(
        direction,
        direction.product("x", "w", "wx", None),
        direction.product("h", "r", "rh", None),
        _biases(direction),
        {name: direction.shift(exponents) for name, exponents in _STAGED_SHIFTS.items()},
        _numbers(direction),
    )


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
