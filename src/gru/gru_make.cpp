#include <algorithm>
#include <cmath>

#include "gru/cpu/gru_packed.h"
#include "gru/gru_interp.h"
#include "gru/gru_tables.h"
#include "runtime/check.h"

namespace qcore {
namespace {

using numerics::GruCell;
using numerics::GruRange;

// Beyond that, a shift drops every bit of every product there can be, or leaves int64.
constexpr int kMaxShift = 62;
constexpr int kMaxExponent = 126;

void check_format(const char* tensor, const FixedFormat& format, bool zero_free) {
  QCORE_CHECK_VALUE(format.bits >= 2 && format.bits <= 16, "gru: format of ", tensor, " has ", format.bits,
                    " bits, expected 2 to 16");
  QCORE_CHECK_VALUE(std::abs(format.exponent) <= kMaxExponent, "gru: format of ", tensor, " has exponent ",
                    format.exponent, ", expected -126 to 126");
  QCORE_CHECK_VALUE(format.zero_point >= format.lowest() && format.zero_point <= format.highest(), "gru: format of ",
                    tensor, " has zero point ", format.zero_point, ", expected ", format.lowest(), " to ",
                    format.highest(), " so that 0 can be represented");
  QCORE_CHECK_VALUE(zero_free || format.zero_point == 0, "gru: format of ", tensor, " has zero point ",
                    format.zero_point, ", expected 0");
}

void check_formats(const GruFormats& f) {
  check_format("x", f.x, true);
  check_format("h", f.h, true);
  check_format("wx", f.wx, true);
  check_format("rh", f.rh, true);
  check_format("rb", f.rb, true);
  check_format("rrh", f.rrh, true);
  check_format("z_pre", f.z_pre, true);
  check_format("r_pre", f.r_pre, true);
  check_format("g_pre", f.g_pre, true);
  check_format("z", f.z, false);
  check_format("r", f.r, false);
  check_format("g", f.g, false);
  check_format("old_part", f.old_part, true);
  check_format("new_part", f.new_part, true);
  QCORE_CHECK_VALUE(f.x.is_signed && f.h.is_signed, "gru: formats of x and h are unsigned, expected signed ones");
  QCORE_CHECK_VALUE(f.z.exponent >= 0 && f.z.exponent <= 30, "gru: format of z has exponent ", f.z.exponent,
                    ", expected 0 to 30: 1.0 is 2^exponent");
}

template <class Integer>
void check_array(const char* name, const std::vector<Integer>& values, std::int64_t expected) {
  QCORE_CHECK_VALUE(static_cast<std::int64_t>(values.size()) == expected, "gru: ", name, " has ", values.size(),
                    " elements, expected ", expected);
}

template <class Integer>
void check_codes(const char* name, const std::vector<Integer>& codes, int bits) {
  const std::int64_t highest = (std::int64_t{1} << (bits - 1)) - 1;
  for (std::size_t i = 0; i < codes.size(); ++i)
    QCORE_CHECK_VALUE(codes[i] >= -highest - 1 && codes[i] <= highest, "gru: ", name, "[", i, "] is ", codes[i],
                      ", expected a code of ", bits, " bits");
}

void check_exponents(const char* name, const std::vector<std::int32_t>& exponents) {
  for (std::size_t i = 0; i < exponents.size(); ++i)
    QCORE_CHECK_VALUE(std::abs(exponents[i]) <= kMaxExponent, "gru: ", name, "[", i, "] is ", exponents[i],
                      ", expected -126 to 126");
}

void check_parameters(const GruParameters& p) {
  QCORE_CHECK_VALUE(p.input_size >= 1 && p.input_size <= 1 << 20, "gru: input_size is ", p.input_size,
                    ", expected 1 to ", 1 << 20);
  QCORE_CHECK_VALUE(p.hidden_size >= 1 && p.hidden_size <= 1 << 20, "gru: hidden_size is ", p.hidden_size,
                    ", expected 1 to ", 1 << 20);
  QCORE_CHECK_VALUE(p.weight_bits >= 2 && p.weight_bits <= 16, "gru: weight_bits is ", p.weight_bits,
                    ", expected 2 to 16");
  QCORE_CHECK_VALUE(p.bias_bits >= 2 && p.bias_bits <= 32, "gru: bias_bits is ", p.bias_bits, ", expected 2 to 32");
  check_formats(p.formats);
  const std::int64_t rows = 3 * p.hidden_size;
  check_array("w", p.w, rows * p.input_size);
  check_array("r", p.r, rows * p.hidden_size);
  check_array("bx", p.bx, rows);
  check_array("br", p.br, rows);
  check_array("w_exponents", p.w_exponents, rows);
  check_array("r_exponents", p.r_exponents, rows);
  check_array("bx_exponents", p.bx_exponents, rows);
  check_array("br_exponents", p.br_exponents, rows);
  check_codes("w", p.w, p.weight_bits);
  check_codes("r", p.r, p.weight_bits);
  check_codes("bx", p.bx, p.bias_bits);
  check_codes("br", p.br, p.bias_bits);
  check_exponents("w_exponents", p.w_exponents);
  check_exponents("r_exponents", p.r_exponents);
  check_exponents("bx_exponents", p.bx_exponents);
  check_exponents("br_exponents", p.br_exponents);
}

// A shift by `from - to` of a number of at most `largest`: within int64 if to the left, else at most kMaxShift.
int checked_shift(const char* what, int from, int to, std::int64_t largest) {
  const int shift = from - to;
  QCORE_CHECK_VALUE(shift <= kMaxShift, "gru: ", what, " is shifted right by ", shift, " (exponents ", from, " and ",
                    to, "), expected at most ", kMaxShift);
  const bool fits = shift >= 0 || (-shift <= 40 && largest <= (std::int64_t{1} << 60) >> -shift);
  QCORE_CHECK_VALUE(fits, "gru: ", what, " up to ", largest, " is shifted left by ", -shift, " (exponents ", from,
                    " and ", to, "), beyond 61 bits");
  return shift;
}

GruRange range_of(const FixedFormat& f) { return {f.lowest() - f.zero_point, f.highest() - f.zero_point}; }

// The largest distance of a code from the zero point.
std::int64_t reach(const FixedFormat& f) {
  return std::max<std::int64_t>(f.highest() - f.zero_point, std::int64_t{f.zero_point} - f.lowest());
}

GruCell make_cell(const GruParameters& p) {
  const GruFormats& f = p.formats;
  GruCell c{};
  c.wx = range_of(f.wx), c.rh = range_of(f.rh), c.rb = range_of(f.rb), c.rrh = range_of(f.rrh);
  c.z_pre = range_of(f.z_pre), c.r_pre = range_of(f.r_pre), c.g_pre = range_of(f.g_pre);
  c.old_part = range_of(f.old_part), c.new_part = range_of(f.new_part), c.h = range_of(f.h);
  c.one = std::int32_t{1} << f.z.exponent;
  c.wx_to_z = checked_shift("Wx for z", f.wx.exponent, f.z_pre.exponent, reach(f.wx));
  c.rh_to_z = checked_shift("Rh for z", f.rh.exponent, f.z_pre.exponent, reach(f.rh));
  c.wx_to_r = checked_shift("Wx for r", f.wx.exponent, f.r_pre.exponent, reach(f.wx));
  c.rh_to_r = checked_shift("Rh for r", f.rh.exponent, f.r_pre.exponent, reach(f.rh));
  c.wx_to_g = checked_shift("Wx for g", f.wx.exponent, f.g_pre.exponent, reach(f.wx));
  if (p.pipeline == GruPipeline::staged) {
    c.rh_to_rb = checked_shift("Rh for Rh + br", f.rh.exponent, f.rb.exponent, reach(f.rh));
    c.r_rb_to_rrh =
        checked_shift("r * (Rh + br)", f.r.exponent + f.rb.exponent, f.rrh.exponent, reach(f.r) * reach(f.rb));
    c.rrh_to_g = checked_shift("r * (Rh + br) for g", f.rrh.exponent, f.g_pre.exponent, reach(f.rrh));
    c.z_h_to_old = checked_shift("z * h", f.z.exponent + f.h.exponent, f.old_part.exponent, reach(f.z) * reach(f.h));
    c.z_g_to_new = checked_shift("(1 - z) * g", f.z.exponent + f.g.exponent, f.new_part.exponent,
                                 (std::int64_t{c.one} + reach(f.z)) * reach(f.g));
    c.old_to_h = checked_shift("z * h for h", f.old_part.exponent, f.h.exponent, reach(f.old_part));
    c.new_to_h = checked_shift("(1 - z) * g for h", f.new_part.exponent, f.h.exponent, reach(f.new_part));
  } else {
    c.r_rh_to_g =
        checked_shift("r * (Rh + br) for g", f.r.exponent + f.rh.exponent, f.g_pre.exponent, reach(f.r) * reach(f.rh));
    c.g_to_h = checked_shift("g for h", f.g.exponent, f.h.exponent, (std::int64_t{c.one} + reach(f.z)) * reach(f.g));
    c.z_bits = f.z.exponent;
  }
  return c;
}

std::int64_t rounded(const GruParameters& p, const char* what, std::int32_t value, int from, int to) {
  const int shift = checked_shift(what, from, to, std::abs(std::int64_t{value}));
  return p.rounding == ShiftRounding::half_away
             ? numerics::rounding_shift<numerics::ShiftRounding::half_away>(value, shift)
             : numerics::rounding_shift<numerics::ShiftRounding::half_even>(value, shift);
}

// Computes the shifts and offsets of each row of one product, and whether its sums fit in int32.
void prepare_product(const GruParameters& p, const std::vector<std::int16_t>& weights, std::int64_t features,
                     const FixedFormat& input, const std::vector<std::int32_t>& exponents, const FixedFormat& output,
                     const std::vector<std::int32_t>& bias, const std::vector<std::int32_t>& bias_exponents,
                     const char* name, std::vector<std::int64_t>& offsets, std::vector<int>& shifts,
                     std::int64_t& largest) {
  const bool fused = p.pipeline == GruPipeline::fused;
  for (std::int64_t n = 0; n < 3 * p.hidden_size; ++n) {
    std::int64_t sum = 0, magnitude = 0;
    for (std::int64_t k = 0; k < features; ++k) {
      const std::int64_t weight = weights[n * features + k];
      sum += weight;
      magnitude += std::abs(weight);
    }
    std::int64_t offset = -sum * input.zero_point;
    const int scale = exponents[n] + input.exponent;
    if (fused) offset += rounded(p, name, bias[n], bias_exponents[n], scale);
    const std::int64_t codes = std::max<std::int64_t>(-std::int64_t{input.lowest()}, input.highest());
    const std::int64_t bound = magnitude * codes + std::abs(offset);
    largest = std::max(largest, bound);
    offsets.push_back(offset);
    shifts.push_back(checked_shift(name, scale, output.exponent, bound));
  }
}

void interpolate_table(char gate, std::vector<std::int32_t>& table, GruKnots& knots) {
  knots = interp_knots(table);
  std::vector<std::int32_t> expanded = expand_knots(knots);
  const std::int32_t error = largest_difference(expanded, table);
  QCORE_CHECK_VALUE(error <= kMaxInterpError, "gru: the interpolated table of ", gate, " is ", error,
                    " codes beside the exact one, expected at most ", kMaxInterpError, ": use exact tables");
  table = std::move(expanded);
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
  made->tables[0] = sigmoid_table(f.z_pre, f.z);
  made->tables[1] = sigmoid_table(f.r_pre, f.r);
  made->tables[2] = tanh_table(f.g_pre, f.g);
  if (p.tables == GruTableKind::interp) {
    const FixedFormat* const arguments[] = {&f.z_pre, &f.r_pre, &f.g_pre};
    for (int gate = 0; gate < 3; ++gate)
      if (arguments[gate]->bits > 8) interpolate_table("zrg"[gate], made->tables[gate], made->knots[gate]);
  }
  made->cell = make_cell(p);
  prepare_product(p, p.w, p.input_size, f.x, p.w_exponents, f.wx, p.bx, p.bx_exponents, "W x", made->wx_offsets,
                  made->wx_shifts, made->largest_wx);
  prepare_product(p, p.r, p.hidden_size, f.h, p.r_exponents, f.rh, p.br, p.br_exponents, "R h", made->rh_offsets,
                  made->rh_shifts, made->largest_rh);
  if (p.pipeline == GruPipeline::staged)
    for (std::int64_t j = 0; j < p.hidden_size; ++j) {
      const auto bias = [&](std::int64_t gate, const FixedFormat& to) {
        const std::int64_t n = gate * p.hidden_size + j;
        return rounded(p, "bx", p.bx[n], p.bx_exponents[n], to.exponent);
      };
      const auto recurrent_bias = [&](std::int64_t gate, const FixedFormat& to) {
        const std::int64_t n = gate * p.hidden_size + j;
        return rounded(p, "br", p.br[n], p.br_exponents[n], to.exponent);
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
