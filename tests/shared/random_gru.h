#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "qcore/error.h"
#include "qcore/gru.h"
#include "random_numbers.h"

// GRUs of no float model at all, for tests that compare integers. No two numbers are drawn in one expression: compilers
// for different processors would draw them in different orders.
namespace qcore {

inline int between(Random& random, int low, int high) { return low + random.below(high - low + 1); }

inline FixedFormat random_format(Random& random, int bits, bool is_signed, int range_bits, int jitter) {
  FixedFormat format{bits, is_signed, bits - (is_signed ? 1 : 0) - range_bits + between(random, -jitter, jitter), 0};
  const int middle = (format.lowest() + format.highest()) / 2, reach = (format.highest() - format.lowest()) / 4;
  format.zero_point = middle + between(random, -reach, reach);
  return format;
}

inline FixedFormat zero_format(FixedFormat format) {
  format.zero_point = 0;
  return format;
}

template <class Integer>
std::vector<Integer> random_codes(Random& random, std::int64_t count, int bits) {
  std::vector<Integer> codes;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t high = random.below(1 << 16), low = random.below(1 << 16);
    const std::int64_t any = (high << 16 | low) - (std::int64_t{1} << 31);
    codes.push_back(static_cast<Integer>(any >> (32 - bits)));
  }
  if (count > 1) codes[0] = static_cast<Integer>(-(std::int64_t{1} << (bits - 1)));
  return codes;
}

struct GruWidths {
  int weights, x, h;
};

// Numbers of about the size of a real layer's, in random formats, with shifts to both sides.
inline QuantizedGru random_gru(Random& random, std::int64_t c, std::int64_t h, GruWidths widths, GruPipeline pipeline,
                               ShiftRounding rounding, bool extreme = false) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    GruParameters p;
    p.input_size = c;
    p.hidden_size = h;
    p.pipeline = pipeline;
    p.rounding = rounding;
    p.weight_bits = widths.weights;
    p.bias_bits = between(random, 2, 32);
    GruFormats& f = p.formats;
    f.x = random_format(random, widths.x, true, 1, 1);
    f.h = random_format(random, widths.h, true, 0, 1);
    const auto wide = [&](int range_bits) {
      const int bits = random.below(3) ? 16 : between(random, 2, 16);
      const bool is_signed = random.below(4) > 0;
      return random_format(random, bits, is_signed, range_bits, 2);
    };
    f.wx = wide(2), f.rh = wide(2), f.rb = wide(2), f.rrh = wide(2);
    f.z_pre = wide(3), f.r_pre = wide(3), f.g_pre = wide(2);
    f.old_part = wide(0), f.new_part = wide(0);
    if (extreme) f.z_pre.exponent += 20;  // numbers beyond int32
    const int gate_bits = between(random, 2, 16), reset_bits = between(random, 2, 16),
              new_bits = between(random, 2, 16);
    const bool reset_is_signed = random.below(2) > 0;
    f.z = zero_format(random_format(random, gate_bits, false, 0, 0));
    f.r = zero_format(random_format(random, reset_bits, reset_is_signed, 0, 1));
    f.g = zero_format(random_format(random, new_bits, true, 0, 1));
    p.w = random_codes<std::int16_t>(random, 3 * h * c, p.weight_bits);
    p.r = random_codes<std::int16_t>(random, 3 * h * h, p.weight_bits);
    p.bx = random_codes<std::int32_t>(random, 3 * h, p.bias_bits);
    p.br = random_codes<std::int32_t>(random, 3 * h, p.bias_bits);
    for (std::int64_t n = 0; n < 3 * h; ++n) {
      const auto exponent = [&](std::int64_t features) {
        return p.weight_bits - 1 + static_cast<int>(std::log2(static_cast<double>(features)) / 2) - random.below(2);
      };
      p.w_exponents.push_back(exponent(c));
      p.r_exponents.push_back(exponent(h));
      p.bx_exponents.push_back(p.bias_bits - 1 + random.below(3));
      p.br_exponents.push_back(p.bias_bits - 1 + random.below(3));
    }
    try {
      return QuantizedGru::make(p);
    } catch (const ValueError&) {  // a sum or a shift too far
    }
  }
  throw std::runtime_error("no format in a hundred was safe");
}

}  // namespace qcore
