#pragma once

#include "qcore/recurrent/lstm.h"
#include "random_gru.h"

namespace qcore {

// The same of an LSTM: numbers of about the size of a real layer's, in random formats, with shifts to both sides.
inline QuantizedLstm random_lstm(Random& random, std::int64_t c, std::int64_t h, GruWidths widths,
                                 ShiftRounding rounding, bool extreme = false, std::int64_t projection = 0,
                                 bool peepholes = false) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    LstmParameters p;
    p.input_size = c;
    p.hidden_size = h;
    p.projection_size = projection;
    p.rounding = rounding;
    p.weight_bits = widths.weights;
    p.bias_bits = between(random, 2, 32);
    LstmFormats& f = p.formats;
    f.x = random_format(random, widths.x, true, 1, 1);
    f.h = random_format(random, widths.h, true, 0, 1);
    const int cell_bits = random.below(3) ? 16 : between(random, 2, 16);
    f.c = zero_format(random_format(random, cell_bits, true, 1, 1));
    for (FixedFormat* format : {&f.wx, &f.rh, &f.i_pre, &f.f_pre, &f.g_pre, &f.o_pre}) {
      const int bits = random.below(3) ? 16 : between(random, 2, 16);
      *format = random_format(random, bits, true, 3, 2);
    }
    if (extreme) f.f_pre.exponent += 20;  // numbers beyond int32
    for (FixedFormat* format : {&f.i, &f.f, &f.o, &f.g, &f.c_tanh}) {
      const int bits = between(random, 2, 16);
      *format = zero_format(random_format(random, bits, format == &f.g || format == &f.c_tanh, 0, 1));
    }
    p.w = random_codes<std::int16_t>(random, 4 * h * c, p.weight_bits);
    p.r = random_codes<std::int16_t>(random, 4 * h * p.state_size(), p.weight_bits);
    p.b = random_codes<std::int32_t>(random, 4 * h, p.bias_bits);
    const auto exponent = [&](std::int64_t features) {
      return p.weight_bits - 1 + static_cast<int>(std::log2(static_cast<double>(features)) / 2) - random.below(2);
    };
    if (projection) {
      f.m = random_format(random, between(random, 2, 16), true, 0, 1);
      p.projection = random_codes<std::int16_t>(random, projection * h, p.weight_bits);
      for (std::int64_t n = 0; n < projection; ++n) p.projection_exponents.push_back(exponent(h));
    }
    if (peepholes) {
      p.peepholes = random_codes<std::int16_t>(random, 3 * h, between(random, 2, 16));
      for (int i = 0; i < 3; ++i) p.peephole_exponents.push_back(between(random, 6, 18));
    }
    for (std::int64_t n = 0; n < 4 * h; ++n) {
      p.w_exponents.push_back(exponent(c));
      p.r_exponents.push_back(exponent(p.state_size()));
      p.b_exponents.push_back(p.bias_bits - 1 + random.below(3));
    }
    try {
      return QuantizedLstm::make(p);
    } catch (const ValueError&) {  // a sum or a shift too far
    }
  }
  throw std::runtime_error("no format in a hundred was safe");
}

}  // namespace qcore
