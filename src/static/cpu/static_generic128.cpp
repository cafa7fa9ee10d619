#include "simd/vector_generic128.h"
#include "static/cpu/depthwise_tile.h"
#include "static/cpu/tile.h"

namespace qcore {
namespace {

struct Codes128 : Generic128 {
  static constexpr int kBytes = 16;
  static constexpr int kStored = 4;

  QCORE_NUMERIC Int flip(Int a, Int b) { return a ^ b; }
  QCORE_NUMERIC Int load_first_bytes(const std::uint8_t* p, int count) {
    if (count == kBytes) return load(p);
    std::uint8_t bytes[kBytes] = {};
    memcpy(bytes, p, static_cast<std::size_t>(count));
    return load(bytes);
  }

  QCORE_NUMERIC void interleave(const Int (&rows)[4], Int (&out)[4]) {
    const Int low01 = low_bytes(rows[0], rows[1]), high01 = high_bytes(rows[0], rows[1]);
    const Int low23 = low_bytes(rows[2], rows[3]), high23 = high_bytes(rows[2], rows[3]);
    out[0] = low_words(low01, low23);
    out[1] = high_words(low01, low23);
    out[2] = low_words(high01, high23);
    out[3] = high_words(high01, high23);
  }

  // Bounds come before the zero point is added: sums may be as large as an int32.
  QCORE_NUMERIC Int narrow(const Int (&sums)[4], const StaticCodeFormat& format) {
    const Int lo = set1(format.lo - format.zero_point), hi = set1(format.hi - format.zero_point);
    const Int zero = set1(format.zero_point);
    Int codes[4];
    repeat<4>([&](int i) QCORE_UNROLLED {
      const Int raised = max(sums[i], lo);
      codes[i] = add(select(raised < hi, raised, hi), zero);
    });
    return narrow_to_bytes(codes) ^ set1(static_cast<int>(format.sign_xor_mask * 0x01010101u));
  }
  QCORE_NUMERIC Int in_order(Int codes) { return codes; }
  QCORE_NUMERIC void store_first_bytes(std::uint8_t* p, Int codes, int count) {
    if (count == kBytes) return store(p, codes);
    std::uint8_t bytes[kBytes];
    store(bytes, codes);
    memcpy(p, bytes, static_cast<std::size_t>(count));
  }

  QCORE_NUMERIC Int low_bytes(Int a, Int b) {
    return (Int)__builtin_shufflevector((Bytes)a, (Bytes)b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
  QCORE_NUMERIC Int high_bytes(Int a, Int b) {
    return (Int)__builtin_shufflevector((Bytes)a, (Bytes)b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                        31);
  }

 private:
  QCORE_NUMERIC Int low_words(Int a, Int b) {
    return (Int)__builtin_shufflevector((Words)a, (Words)b, 0, 8, 1, 9, 2, 10, 3, 11);
  }
  QCORE_NUMERIC Int high_words(Int a, Int b) {
    return (Int)__builtin_shufflevector((Words)a, (Words)b, 4, 12, 5, 13, 6, 14, 7, 15);
  }
};

// Both operands are widened to words of 16 bits, the even bytes and the odd ones.
struct Dot {
  using V = Codes128;
  struct Words {
    V::Int even, odd;
  };
  using Weights = Words;
  using Codes = Words;
  QCORE_NUMERIC Weights split(V::Int weights) {
    return {(V::Int)((V::Words)V::shift_left_16(weights, 8) >> 8), (V::Int)((V::Words)weights >> 8)};
  }
  QCORE_NUMERIC Codes operand(V::Int codes) {
    return {V::bit_and(codes, V::set1(0x00ff00ff)), V::shift_right_16(codes, 8)};
  }
  QCORE_NUMERIC void multiply(V::Int& acc, const Weights& w, const Codes& x) {
    acc = V::add(acc, V::multiply_pairs(w.even, x.even));
    acc = V::add(acc, V::multiply_pairs(w.odd, x.odd));
  }
};

// Four perfect shuffles of the 256 bytes of a square: the four upper bits of an index change places with the lower
// ones.
QCORE_NUMERIC void transpose_square(Codes128::Int (&square)[16]) {
  for (int level = 0; level < 4; ++level) {
    Codes128::Int shuffled[16];
    repeat<8>([&](int i) QCORE_UNROLLED {
      shuffled[2 * i] = Codes128::low_bytes(square[i], square[i + 8]);
      shuffled[2 * i + 1] = Codes128::high_bytes(square[i], square[i + 8]);
    });
    repeat<16>([&](int i) QCORE_UNROLLED { square[i] = shuffled[i]; });
  }
}

// Where there are 16 rows and columns, those that are left over are taken with some that were done already.
void transpose_bytes(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step,
                     std::int64_t rows, std::int64_t columns, std::int64_t) {
  if (rows < 16 || columns < 16) {
    for (std::int64_t column = 0; column < columns; ++column)
      for (std::int64_t row = 0; row < rows; ++row) to[column * to_step + row] = from[row * from_step + column];
    return;
  }
  for (std::int64_t next_column = 0; next_column < columns; next_column += 16) {
    const std::int64_t column = next_column + 16 <= columns ? next_column : columns - 16;
    for (std::int64_t next_row = 0; next_row < rows; next_row += 16) {
      const std::int64_t row = next_row + 16 <= rows ? next_row : rows - 16;
      Codes128::Int square[16];
      const std::uint8_t* in = from + row * from_step + column;
      repeat<16>([&](int i) QCORE_UNROLLED { square[i] = Codes128::load(in + i * from_step); });
      transpose_square(square);
      std::uint8_t* out = to + column * to_step + row;
      repeat<16>([&](int i) QCORE_UNROLLED { Codes128::store(out + i * to_step, square[i]); });
    }
  }
}

}  // namespace

extern const StaticTileKernels kStaticGeneric128 = {1,
                                                    Codes128::kBytes,
                                                    ProductTiles<Codes128, Dot, 1>::run,
                                                    DepthwiseTile<Codes128, Dot, 1>::run,
                                                    transpose_bytes,
                                                    false,
                                                    4};

}  // namespace qcore
