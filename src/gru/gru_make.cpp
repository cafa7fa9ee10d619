#include "gru/cpu/gru_packed.h"
#include "recurrent/gate_tables.h"
#include "recurrent/parameters.h"
#include "runtime/check.h"

namespace qcore {
namespace {

using numerics::GruCell;

constexpr const char* kOp = "gru";

template <class T>
std::vector<T> part_of(const std::vector<T>& all, std::int64_t first, std::int64_t end) {
  return {all.begin() + first, all.begin() + end};
}

void check_formats(const GruFormats& f) {
  check_format(kOp, "x", f.x, true);
  check_format(kOp, "h", f.h, true);
  check_format(kOp, "wx", f.wx, true);
  check_format(kOp, "rh", f.rh, true);
  check_format(kOp, "rb", f.rb, true);
  check_format(kOp, "rrh", f.rrh, true);
  check_format(kOp, "z_pre", f.z_pre, true);
  check_format(kOp, "r_pre", f.r_pre, true);
  check_format(kOp, "g_pre", f.g_pre, true);
  check_format(kOp, "z", f.z, false);
  check_format(kOp, "r", f.r, false);
  check_format(kOp, "g", f.g, false);
  check_format(kOp, "old_part", f.old_part, true);
  check_format(kOp, "new_part", f.new_part, true);
  QCORE_CHECK_VALUE(f.x.is_signed && f.h.is_signed, "gru: formats of x and h are unsigned, expected signed ones");
  QCORE_CHECK_VALUE(f.z.exponent >= 0 && f.z.exponent <= 30, "gru: format of z has exponent ", f.z.exponent,
                    ", expected 0 to 30: 1.0 is 2^exponent");
}

void check_parameters(const GruParameters& p) {
  check_sizes(kOp, p.input_size, p.hidden_size, p.weight_bits, p.bias_bits);
  check_formats(p.formats);
  QCORE_CHECK_VALUE(p.linear_before_reset || p.formats.rrh.is_signed,
                    "gru: format of rrh is unsigned, expected a signed one with linear_before_reset = 0");
  const std::int64_t rows = 3 * p.hidden_size;
  check_weights(kOp, "w", p.w, p.weight_bits, rows * p.input_size);
  check_weights(kOp, "r", p.r, p.weight_bits, rows * p.hidden_size);
  check_biases(kOp, "bx", p.bx, p.bias_bits, rows);
  check_biases(kOp, "br", p.br, p.bias_bits, rows);
  check_exponents(kOp, "w_exponents", p.w_exponents, rows);
  check_exponents(kOp, "r_exponents", p.r_exponents, rows);
  check_exponents(kOp, "bx_exponents", p.bx_exponents, rows);
  check_exponents(kOp, "br_exponents", p.br_exponents, rows);
}

GruCell make_cell(const GruParameters& p) {
  const GruFormats& f = p.formats;
  GruCell c{};
  c.wx = range_of(f.wx), c.rh = range_of(f.rh), c.rb = range_of(f.rb), c.rrh = range_of(f.rrh);
  c.z_pre = range_of(f.z_pre), c.r_pre = range_of(f.r_pre), c.g_pre = range_of(f.g_pre);
  c.old_part = range_of(f.old_part), c.new_part = range_of(f.new_part), c.h = range_of(f.h);
  c.one = std::int32_t{1} << f.z.exponent;
  c.wx_to_z = checked_shift(kOp, "Wx for z", f.wx.exponent, f.z_pre.exponent, reach(f.wx));
  c.rh_to_z = checked_shift(kOp, "Rh for z", f.rh.exponent, f.z_pre.exponent, reach(f.rh));
  c.wx_to_r = checked_shift(kOp, "Wx for r", f.wx.exponent, f.r_pre.exponent, reach(f.wx));
  c.rh_to_r = checked_shift(kOp, "Rh for r", f.rh.exponent, f.r_pre.exponent, reach(f.rh));
  c.wx_to_g = checked_shift(kOp, "Wx for g", f.wx.exponent, f.g_pre.exponent, reach(f.wx));
  if (!p.linear_before_reset)
    c.r_h_to_rrh = checked_shift(kOp, "r * h", f.r.exponent + f.h.exponent, f.rrh.exponent, reach(f.r) * reach(f.h));
  if (p.pipeline == GruPipeline::staged) {
    c.rh_to_rb = checked_shift(kOp, "Rh for Rh + br", f.rh.exponent, f.rb.exponent, reach(f.rh));
    if (p.linear_before_reset) {
      c.r_rb_to_rrh =
          checked_shift(kOp, "r * (Rh + br)", f.r.exponent + f.rb.exponent, f.rrh.exponent, reach(f.r) * reach(f.rb));
      c.rrh_to_g = checked_shift(kOp, "r * (Rh + br) for g", f.rrh.exponent, f.g_pre.exponent, reach(f.rrh));
    } else {
      c.rb_to_g = checked_shift(kOp, "R(r * h) + br for g", f.rb.exponent, f.g_pre.exponent, reach(f.rb));
    }
    c.z_h_to_old =
        checked_shift(kOp, "z * h", f.z.exponent + f.h.exponent, f.old_part.exponent, reach(f.z) * reach(f.h));
    c.z_g_to_new = checked_shift(kOp, "(1 - z) * g", f.z.exponent + f.g.exponent, f.new_part.exponent,
                                 (std::int64_t{c.one} + reach(f.z)) * reach(f.g));
    c.old_to_h = checked_shift(kOp, "z * h for h", f.old_part.exponent, f.h.exponent, reach(f.old_part));
    c.new_to_h = checked_shift(kOp, "(1 - z) * g for h", f.new_part.exponent, f.h.exponent, reach(f.new_part));
  } else {
    if (p.linear_before_reset)
      c.r_rh_to_g = checked_shift(kOp, "r * (Rh + br) for g", f.r.exponent + f.rh.exponent, f.g_pre.exponent,
                                  reach(f.r) * reach(f.rh));
    else
      c.rh_to_g = checked_shift(kOp, "R(r * h) + br for g", f.rh.exponent, f.g_pre.exponent, reach(f.rh));
    c.g_to_h =
        checked_shift(kOp, "g for h", f.g.exponent, f.h.exponent, (std::int64_t{c.one} + reach(f.z)) * reach(f.g));
    c.z_bits = f.z.exponent;
  }
  return c;
}

}  // namespace

QuantizedGru::QuantizedGru(std::shared_ptr<const GruStorage> storage) : storage_(std::move(storage)) {}

QuantizedGru QuantizedGru::make(const GruParameters& p) {
  check_parameters(p);
  auto made = std::make_shared<GruStorage>();
  made->parameters = p;
  const GruFormats& f = p.formats;
  made->x_format = CodeFormat(f.x);
  made->h_format = CodeFormat(f.h);
  made->tables[0] = gate_table(kOp, "z", sigmoid_table(f.z_pre, f.z), f.z_pre, p.tables, made->knots[0]);
  made->tables[1] = gate_table(kOp, "r", sigmoid_table(f.r_pre, f.r), f.r_pre, p.tables, made->knots[1]);
  made->tables[2] = gate_table(kOp, "g", tanh_table(f.g_pre, f.g), f.g_pre, p.tables, made->knots[2]);
  made->cell = make_cell(p);
  const bool fused = p.pipeline == GruPipeline::fused;
  made->wx = prepare_product(
      {kOp, "W x", p.rounding, p.w, p.w_exponents, p.input_size, f.x, f.wx, fused ? &p.bx : nullptr, &p.bx_exponents});
  const std::int64_t rows = 3 * p.hidden_size, reset = p.linear_before_reset ? rows : 2 * p.hidden_size;
  made->rh = prepare_product({kOp, "R h", p.rounding, p.r, part_of(p.r_exponents, 0, reset), p.hidden_size, f.h, f.rh,
                              fused ? &p.br : nullptr, &p.br_exponents});
  if (!p.linear_before_reset) {
    const auto bias = part_of(p.br, reset, rows), bias_exponents = part_of(p.br_exponents, reset, rows);
    made->reset_weights = part_of(p.r, reset * p.hidden_size, rows * p.hidden_size);
    made->reset =
        prepare_product({kOp, "R(r * h)", p.rounding, made->reset_weights, part_of(p.r_exponents, reset, rows),
                         p.hidden_size, f.rrh, f.rh, fused ? &bias : nullptr, &bias_exponents});
  }
  if (!fused)
    for (std::int64_t j = 0; j < p.hidden_size; ++j) {
      const auto bias = [&](std::int64_t gate, const FixedFormat& to) {
        const std::int64_t n = gate * p.hidden_size + j;
        return rounded(kOp, "bx", p.rounding, p.bx[n], p.bx_exponents[n], to.exponent);
      };
      const auto recurrent_bias = [&](std::int64_t gate, const FixedFormat& to) {
        const std::int64_t n = gate * p.hidden_size + j;
        return rounded(kOp, "br", p.rounding, p.br[n], p.br_exponents[n], to.exponent);
      };
      made->biases[0].push_back(bias(0, f.z_pre) + recurrent_bias(0, f.z_pre));
      made->biases[1].push_back(bias(1, f.r_pre) + recurrent_bias(1, f.r_pre));
      made->biases[2].push_back(bias(2, f.g_pre));
      made->biases[3].push_back(recurrent_bias(2, f.rb));
    }
  made->packed = pack_gru(*made);
  return QuantizedGru(std::move(made));
}

const GruParameters& QuantizedGru::parameters() const { return storage_->parameters; }

const std::vector<std::int32_t>& QuantizedGru::table(int gate) const {
  QCORE_CHECK_VALUE(gate >= 0 && gate < 3, "gru: gate is ", gate, ", expected 0, 1 or 2 for z, r or g");
  return storage_->tables[gate];
}

const GruKnots& QuantizedGru::knots(int gate) const {
  QCORE_CHECK_VALUE(gate >= 0 && gate < 3, "gru: gate is ", gate, ", expected 0, 1 or 2 for z, r or g");
  return storage_->knots[gate];
}

}  // namespace qcore
