#pragma once

#include "numerics/fixed_point.h"

// One channel of one step of a fixed-point GRU, torch.nn.GRU's cell (ONNX's with linear_before_reset = 1):
//   z = sigmoid(Wz x + Rz h + bxz + brz)   r = sigmoid(Wr x + Rr h + bxr + brr)
//   g = tanh(Wg x + bxg + r * (Rg h + brg))   h' = z * h + (1 - z) * g
// rs is rounding_shift, cl a clamp to the codes of what is computed, z_* a zero point; gates are in the order z, r, g.
namespace qcore::numerics {

// The codes of a tensor.
struct GruCodes {
  std::int32_t zero, lo, hi;
};

// What all channels share. A shift is the difference of two exponents.
struct GruCell {
  GruCodes wx, rh, rb, rrh, z_pre, r_pre, g_pre, z, r, g, old_part, new_part, h;
  int wx_to_z, rh_to_z, wx_to_r, rh_to_r, wx_to_g;
  int rh_to_rb, r_rb_to_rrh, rrh_to_g;             // staged
  int z_h_to_old, z_g_to_new, old_to_h, new_to_h;  // staged
  int r_rh_to_g, g_to_h, z_bits;                   // fused; z_bits is z's exponent
  std::int64_t one;                                // 1.0 with z's exponent
  // Codes of sigmoid and tanh by the code of their argument less its lowest.
  const std::int32_t *z_table, *r_table, *g_table;
};

// Biases of one channel at the scale of what they are added to. In the fused pipeline they are part of wx and rh.
struct GruBiases {
  std::int64_t z, r, g, rb;
};

struct GruInputs {
  std::int32_t wx[3], rh[3], h;  // codes
};

struct GruOutputs {
  std::int32_t z, r, g, rh_with_bias, h;  // codes
};

// wx and rh: cl( rs(sum of products - zero_point * sum of weights [+ bias], shift) + zero ).
template <ShiftRounding kRounding>
QCORE_NUMERIC std::int32_t gru_rescale(std::int64_t total, int shift, const GruCodes& to) {
  return static_cast<std::int32_t>(clamp_code(rounding_shift<kRounding>(total, shift) + to.zero, to.lo, to.hi));
}

template <ShiftRounding kRounding>
QCORE_NUMERIC std::int32_t gru_gate(std::int32_t wx, std::int32_t rh, int wx_shift, int rh_shift, std::int64_t bias,
                                    const GruCell& cell, const GruCodes& pre, const std::int32_t* table) {
  const std::int64_t sum = rounding_shift<kRounding>(std::int64_t{wx} - cell.wx.zero, wx_shift) +
                           rounding_shift<kRounding>(std::int64_t{rh} - cell.rh.zero, rh_shift) + bias + pre.zero;
  return table[clamp_code(sum, pre.lo, pre.hi) - pre.lo];
}

// Every tensor of the definition is rounded to its codes.
template <ShiftRounding kRounding>
QCORE_NUMERIC GruOutputs gru_staged(const GruInputs& in, const GruBiases& bias, const GruCell& c) {
  GruOutputs out;
  out.z = gru_gate<kRounding>(in.wx[0], in.rh[0], c.wx_to_z, c.rh_to_z, bias.z, c, c.z_pre, c.z_table);
  out.r = gru_gate<kRounding>(in.wx[1], in.rh[1], c.wx_to_r, c.rh_to_r, bias.r, c, c.r_pre, c.r_table);
  const auto product = [](std::int64_t a, std::int64_t b) { return a * b; };

  out.rh_with_bias = static_cast<std::int32_t>(
      clamp_code(rounding_shift<kRounding>(std::int64_t{in.rh[2]} - c.rh.zero, c.rh_to_rb) + bias.rb + c.rb.zero,
                 c.rb.lo, c.rb.hi));
  const std::int32_t rrh = gru_rescale<kRounding>(
      product(std::int64_t{out.r} - c.r.zero, std::int64_t{out.rh_with_bias} - c.rb.zero), c.r_rb_to_rrh, c.rrh);
  const std::int64_t g_sum = rounding_shift<kRounding>(std::int64_t{in.wx[2]} - c.wx.zero, c.wx_to_g) +
                             rounding_shift<kRounding>(std::int64_t{rrh} - c.rrh.zero, c.rrh_to_g) + bias.g +
                             c.g_pre.zero;
  out.g = c.g_table[clamp_code(g_sum, c.g_pre.lo, c.g_pre.hi) - c.g_pre.lo];

  const std::int64_t z = std::int64_t{out.z} - c.z.zero, g = std::int64_t{out.g} - c.g.zero;
  const std::int32_t old_part =
      gru_rescale<kRounding>(product(z, std::int64_t{in.h} - c.h.zero), c.z_h_to_old, c.old_part);
  const std::int32_t new_part = gru_rescale<kRounding>(product(c.one - z, g), c.z_g_to_new, c.new_part);
  const std::int64_t h = rounding_shift<kRounding>(std::int64_t{old_part} - c.old_part.zero, c.old_to_h) +
                         rounding_shift<kRounding>(std::int64_t{new_part} - c.new_part.zero, c.new_to_h) + c.h.zero;
  out.h = static_cast<std::int32_t>(clamp_code(h, c.h.lo, c.h.hi));
  return out;
}

// Fewer roundings: biases are in wx and rh, products go straight to the scale of what they are part of.
template <ShiftRounding kRounding>
QCORE_NUMERIC GruOutputs gru_fused(const GruInputs& in, const GruCell& c) {
  GruOutputs out;
  out.z = gru_gate<kRounding>(in.wx[0], in.rh[0], c.wx_to_z, c.rh_to_z, 0, c, c.z_pre, c.z_table);
  out.r = gru_gate<kRounding>(in.wx[1], in.rh[1], c.wx_to_r, c.rh_to_r, 0, c, c.r_pre, c.r_table);
  out.rh_with_bias = in.rh[2];
  const std::int64_t reset = (std::int64_t{out.r} - c.r.zero) * (std::int64_t{in.rh[2]} - c.rh.zero);
  const std::int64_t g_sum = rounding_shift<kRounding>(std::int64_t{in.wx[2]} - c.wx.zero, c.wx_to_g) +
                             rounding_shift<kRounding>(reset, c.r_rh_to_g) + c.g_pre.zero;
  out.g = c.g_table[clamp_code(g_sum, c.g_pre.lo, c.g_pre.hi) - c.g_pre.lo];

  const std::int64_t z = std::int64_t{out.z} - c.z.zero;
  const std::int64_t g = rounding_shift<kRounding>(std::int64_t{out.g} - c.g.zero, c.g_to_h);
  const std::int64_t mixed = z * (std::int64_t{in.h} - c.h.zero) + (c.one - z) * g;
  out.h = gru_rescale<kRounding>(mixed, c.z_bits, c.h);
  return out;
}

}  // namespace qcore::numerics
