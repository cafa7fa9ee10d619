#pragma once

#include <cstring>

#include "awq/cpu/awq_columns.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

// Bytes are looked up: the weights' low ones and their high ones. Rows of codes are in their own order.
struct AwqColumns128 {
  static constexpr int kPieceBits = 8;
  struct Table {
    uint8x16_t low, high;
  };
  struct Weights {
    uint8x16_t rows[4];
  };

  QCORE_NUMERIC Table table(float zero, float scale) {
    uint8x16_t halves[2];
    unroll<2>([&](auto i) QCORE_UNROLLED {
      constexpr float first = 8 * i.value;
      const float32x4_t low = {first, first + 1, first + 2, first + 3}, four = Neon::set1(4.0f);
      halves[i.value] =
          vreinterpretq_u8_f16(vcombine_f16(products(low, zero, scale), products(Neon::add(low, four), zero, scale)));
    });
    return {vuzp1q_u8(halves[0], halves[1]), vuzp2q_u8(halves[0], halves[1])};
  }

  template <int shift>
  QCORE_NUMERIC Weights look_up(const Table& table, const std::uint8_t* piece) {
    Weights weights;
    repeat<2>([&](int i) QCORE_UNROLLED {
      const uint8x16_t codes = Neon::row_field(vld1q_u8(piece + 16 * i), shift, 15);
      const uint8x16_t low = vqtbl1q_u8(table.low, codes), high = vqtbl1q_u8(table.high, codes);
      weights.rows[2 * i] = vzip1q_u8(low, high);
      weights.rows[2 * i + 1] = vzip2q_u8(low, high);
    });
    return weights;
  }

  QCORE_NUMERIC void take_codes(const AwqRows& rows, std::int64_t first, std::uint8_t* codes) {
    const std::int64_t words = rows.columns / numerics::kAwqColumns;
    const auto row_of = [&](std::int64_t i) {
      const std::int64_t row = first + i < rows.rows ? first + i : rows.rows - 1;
      return rows.words + row * rows.row_words;
    };
    std::uint32_t by_word[kAwqTileWords][kAwqStepRows];
    std::int64_t word = 0;
    for (; word + 4 <= words; word += 4)
      for (int i = 0; i < kAwqStepRows; i += 4) {
        uint32x4_t square[4];
        repeat<4>([&](int r) QCORE_UNROLLED { square[r] = vld1q_u32(row_of(i + r) + word); });
        transpose(square);
        repeat<4>([&](int w) QCORE_UNROLLED { vst1q_u32(by_word[word + w] + i, square[w]); });
      }
    for (; word < words; ++word)
      for (int i = 0; i < kAwqStepRows; ++i) by_word[word][i] = row_of(i)[word];
    for (word = 0; word < words; ++word, codes += kAwqWordBytes)
      for (int i = 0; i < kAwqStepRows; i += 16) {
        const uint8x16x4_t pieces = vld4q_u8(reinterpret_cast<const std::uint8_t*>(by_word[word] + i));
        repeat<4>([&](int p) QCORE_UNROLLED { vst1q_u8(codes + p * kAwqStepRows + i, pieces.val[p]); });
      }
  }

  QCORE_NUMERIC void stream(std::uint16_t* to, const Weights& a) { store(to, a); }
  QCORE_NUMERIC void fence() {}
  QCORE_NUMERIC void store(std::uint16_t* to, const Weights& a) {
    repeat<4>([&](int i) QCORE_UNROLLED { vst1q_u16(to + 8 * i, vreinterpretq_u16_u8(a.rows[i])); });
  }
  QCORE_NUMERIC void store_first(std::uint16_t* to, const Weights& a, int count) {
    std::uint16_t all[kAwqStepRows];
    store(all, a);
    std::memcpy(to, all, static_cast<std::size_t>(count) * sizeof *to);
  }

 private:
  QCORE_NUMERIC float16x4_t products(float32x4_t codes, float zero, float scale) {
    return vcvt_f16_f32(Neon::mul(Neon::sub(codes, Neon::set1(zero - numerics::kAwqBias)), Neon::set1(scale)));
  }

  QCORE_NUMERIC void transpose(uint32x4_t (&a)[4]) {
    const uint64x2_t low01 = vreinterpretq_u64_u32(vzip1q_u32(a[0], a[1]));
    const uint64x2_t high01 = vreinterpretq_u64_u32(vzip2q_u32(a[0], a[1]));
    const uint64x2_t low23 = vreinterpretq_u64_u32(vzip1q_u32(a[2], a[3]));
    const uint64x2_t high23 = vreinterpretq_u64_u32(vzip2q_u32(a[2], a[3]));
    a[0] = vreinterpretq_u32_u64(vzip1q_u64(low01, low23));
    a[1] = vreinterpretq_u32_u64(vzip2q_u64(low01, low23));
    a[2] = vreinterpretq_u32_u64(vzip1q_u64(high01, high23));
    a[3] = vreinterpretq_u32_u64(vzip2q_u64(high01, high23));
  }
};

}  // namespace
}  // namespace qcore
