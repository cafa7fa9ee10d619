#pragma once

#include "numerics/recurrent/lanes.h"

// One channel of one step of a fixed-point GRU, torch.nn.GRU's cell (ONNX's with linear_before_reset = 1):
//   z = sigmoid(Wz x + Rz h + bxz + brz)   r = sigmoid(Wr x + Rr h + bxr + brr)
//   g = tanh(Wg x + bxg + r * (Rg h + brg))   h' = z * h + (1 - z) * g
// or the form that ONNX has by default (linear_before_reset = 0), in which
//   g = tanh(Wg x + bxg + Rg (r * h) + brg)
// Numbers are codes less their zero points throughout; gates are in the order z, r, g.
namespace qcore::numerics {

// Parameters that all channels share. A shift is the difference of two exponents, or what an L's lanes make of it.
template <class Shift>
struct GruCellOf {
  CodeRange wx, rh, rb, rrh, z_pre, r_pre, g_pre, old_part, new_part, h;
  Shift wx_to_z, rh_to_z, wx_to_r, rh_to_r, wx_to_g;
  Shift rh_to_rb, r_rb_to_rrh, rrh_to_g;             // staged
  Shift z_h_to_old, z_g_to_new, old_to_h, new_to_h;  // staged
  Shift r_rh_to_g, g_to_h, z_bits;                   // fused; z_bits is z's exponent
  Shift r_h_to_rrh, rb_to_g, rh_to_g;                // linear_before_reset = 0: both, staged, fused
  std::int32_t one;                                  // 1.0 with z's exponent
};
using GruCell = GruCellOf<int>;

// Sigmoid for z and for r, tanh for g, by their argument's code less its lowest.
template <class L>
struct GruTables {
  typename L::Table z, r, g;
};

// Biases of one channel, each at the scale of the sum that it is added to. In the fused pipeline biases are part of wx
// and rh.
template <class L>
struct GruBiases {
  typename L::I z, r, g, rb;
};

template <class L>
struct GruInputs {
  typename L::I wx[3], rh[3], h;
};

// h and everything on the way to it; rb, rrh, old_part and new_part only of the staged pipeline, except for rrh = r * h
// with linear_before_reset = 0.
template <class L>
struct GruOutputs {
  typename L::I z_pre, r_pre, rb, rrh, g_pre, z, r, g, old_part, new_part, h;
};

template <class L, class Shift>
QCORE_NUMERIC typename L::I gru_sum(typename L::I wx, const Shift& wx_shift, typename L::I rh, const Shift& rh_shift) {
  return L::add(L::shifted(wx, wx_shift), L::shifted(rh, rh_shift));
}

// A cell in three stages with look-ups between: the arguments of z and r, of g, and h. kResetsState: with
// linear_before_reset = 0 rh[2] is the product of R and rrh = r * h, which is to be computed before the second stage.

// Every tensor of the definition is rounded to its codes.
template <class L>
struct GruStagedCell {
  static constexpr bool kStaged = true, kResetsState = false;

  template <class Shift>
  QCORE_NUMERIC void gates(const GruInputs<L>& in, const GruBiases<L>& bias, const GruCellOf<Shift>& c,
                           GruOutputs<L>& out) {
    out.z_pre = L::clamped(L::add(gru_sum<L>(in.wx[0], c.wx_to_z, in.rh[0], c.rh_to_z), bias.z), c.z_pre);
    out.r_pre = L::clamped(L::add(gru_sum<L>(in.wx[1], c.wx_to_r, in.rh[1], c.rh_to_r), bias.r), c.r_pre);
  }
  template <class Shift>
  QCORE_NUMERIC void candidate(const GruInputs<L>& in, const GruBiases<L>& bias, const GruCellOf<Shift>& c,
                               GruOutputs<L>& out) {
    out.rb = L::clamped(L::add(L::shifted(in.rh[2], c.rh_to_rb), bias.rb), c.rb);
    out.rrh = L::clamped(L::shifted_product(out.r, out.rb, c.r_rb_to_rrh), c.rrh);
    out.g_pre = L::clamped(L::add(gru_sum<L>(in.wx[2], c.wx_to_g, out.rrh, c.rrh_to_g), bias.g), c.g_pre);
  }
  template <class Shift>
  QCORE_NUMERIC void state(const GruInputs<L>& in, const GruCellOf<Shift>& c, GruOutputs<L>& out) {
    out.old_part = L::clamped(L::shifted_product(out.z, in.h, c.z_h_to_old), c.old_part);
    out.new_part = L::clamped(L::shifted_product(L::sub(L::set(c.one), out.z), out.g, c.z_g_to_new), c.new_part);
    out.h = L::clamped(gru_sum<L>(out.old_part, c.old_to_h, out.new_part, c.new_to_h), c.h);
  }
};

// Fewer roundings: biases are in wx and rh, products go straight to the scale of what they are part of.
template <class L>
struct GruFusedCell {
  static constexpr bool kStaged = false, kResetsState = false;

  template <class Shift>
  QCORE_NUMERIC void gates(const GruInputs<L>& in, const GruBiases<L>&, const GruCellOf<Shift>& c, GruOutputs<L>& out) {
    out.z_pre = L::clamped(gru_sum<L>(in.wx[0], c.wx_to_z, in.rh[0], c.rh_to_z), c.z_pre);
    out.r_pre = L::clamped(gru_sum<L>(in.wx[1], c.wx_to_r, in.rh[1], c.rh_to_r), c.r_pre);
  }
  template <class Shift>
  QCORE_NUMERIC void candidate(const GruInputs<L>& in, const GruBiases<L>&, const GruCellOf<Shift>& c,
                               GruOutputs<L>& out) {
    const typename L::I reset = L::shifted_product(out.r, in.rh[2], c.r_rh_to_g);
    out.g_pre = L::clamped(L::add(L::shifted(in.wx[2], c.wx_to_g), reset), c.g_pre);
  }
  template <class Shift>
  QCORE_NUMERIC void state(const GruInputs<L>& in, const GruCellOf<Shift>& c, GruOutputs<L>& out) {
    const typename L::I candidate = L::shifted(out.g, c.g_to_h);
    const typename L::I rest = L::sub(L::set(c.one), out.z);
    out.h = L::clamped(L::shifted_mix(out.z, in.h, rest, candidate, c.z_bits), c.h);
  }
};

template <class L>
struct GruStagedResetCell : GruStagedCell<L> {
  static constexpr bool kResetsState = true;

  template <class Shift>
  QCORE_NUMERIC void candidate(const GruInputs<L>& in, const GruBiases<L>& bias, const GruCellOf<Shift>& c,
                               GruOutputs<L>& out) {
    out.rb = L::clamped(L::add(L::shifted(in.rh[2], c.rh_to_rb), bias.rb), c.rb);
    out.g_pre = L::clamped(L::add(gru_sum<L>(in.wx[2], c.wx_to_g, out.rb, c.rb_to_g), bias.g), c.g_pre);
  }
};

template <class L>
struct GruFusedResetCell : GruFusedCell<L> {
  static constexpr bool kResetsState = true;

  template <class Shift>
  QCORE_NUMERIC void candidate(const GruInputs<L>& in, const GruBiases<L>&, const GruCellOf<Shift>& c,
                               GruOutputs<L>& out) {
    out.g_pre = L::clamped(gru_sum<L>(in.wx[2], c.wx_to_g, in.rh[2], c.rh_to_g), c.g_pre);
  }
};

// Computes r * h in codes of rrh, whose product with R is part of g's argument.
template <class L, class Shift>
QCORE_NUMERIC typename L::I gru_reset_state(typename L::I r, typename L::I h, const GruCellOf<Shift>& c) {
  return L::clamped(L::shifted_product(r, h, c.r_h_to_rrh), c.rrh);
}

// Computes the first half of a step: z and r, and rrh if the cell resets the state.
template <class L, class Stages, class Shift>
QCORE_NUMERIC void gru_gates(const GruInputs<L>& in, const GruBiases<L>& bias, const GruCellOf<Shift>& c,
                             const GruTables<L>& tables, GruOutputs<L>& out) {
  Stages::gates(in, bias, c, out);
  out.z = L::look_up(tables.z, table_index<L>(out.z_pre, c.z_pre));
  out.r = L::look_up(tables.r, table_index<L>(out.r_pre, c.r_pre));
  if constexpr (Stages::kResetsState) out.rrh = gru_reset_state<L>(out.r, in.h, c);
}

// Computes the second half, from z and r (z alone if the cell resets the state) to h.
template <class L, class Stages, class Shift>
QCORE_NUMERIC void gru_new_state(const GruInputs<L>& in, const GruBiases<L>& bias, const GruCellOf<Shift>& c,
                                 const GruTables<L>& tables, GruOutputs<L>& out) {
  Stages::candidate(in, bias, c, out);
  out.g = L::look_up(tables.g, table_index<L>(out.g_pre, c.g_pre));
  Stages::state(in, c, out);
}

template <class L, class Stages, class Shift>
QCORE_NUMERIC GruOutputs<L> gru_cell(const GruInputs<L>& in, const GruBiases<L>& bias, const GruCellOf<Shift>& c,
                                     const GruTables<L>& tables) {
  GruOutputs<L> out{};
  gru_gates<L, Stages>(in, bias, c, tables, out);
  gru_new_state<L, Stages>(in, bias, c, tables, out);
  return out;
}

template <class L, class Shift>
QCORE_NUMERIC GruOutputs<L> gru_staged(const GruInputs<L>& in, const GruBiases<L>& bias, const GruCellOf<Shift>& c,
                                       const GruTables<L>& tables) {
  return gru_cell<L, GruStagedCell<L>>(in, bias, c, tables);
}

template <class L, class Shift>
QCORE_NUMERIC GruOutputs<L> gru_fused(const GruInputs<L>& in, const GruCellOf<Shift>& c, const GruTables<L>& tables) {
  return gru_cell<L, GruFusedCell<L>>(in, {}, c, tables);
}

}  // namespace qcore::numerics
