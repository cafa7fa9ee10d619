#pragma once

#include "simd/unroll.h"
#include "simd/vector_neon.h"
#include "static/cpu/vtable.h"

// Vectors of bytes in 128 bits, and what all of their kernels share.
namespace qcore {
namespace {

struct CodesNeon : Neon {
  static constexpr int kBytes = 16;
  static constexpr int kStored = 4;

  QCORE_NUMERIC Int flip(Int a, Int b) { return veorq_s32(a, b); }
  QCORE_NUMERIC Int load_first_bytes(const std::uint8_t* p, int count) {
    if (count == kBytes) return load(p);
    alignas(kBytes) std::uint8_t bytes[kBytes] = {};
    memcpy(bytes, p, static_cast<std::size_t>(count));
    return load(bytes);
  }

  QCORE_NUMERIC void interleave(const Int (&rows)[4], Int (&out)[4]) {
    uint8x16_t r[4];
    repeat<4>([&](int i) QCORE_UNROLLED { r[i] = vreinterpretq_u8_s32(rows[i]); });
    const uint16x8_t low01 = vreinterpretq_u16_u8(vzip1q_u8(r[0], r[1]));
    const uint16x8_t high01 = vreinterpretq_u16_u8(vzip2q_u8(r[0], r[1]));
    const uint16x8_t low23 = vreinterpretq_u16_u8(vzip1q_u8(r[2], r[3]));
    const uint16x8_t high23 = vreinterpretq_u16_u8(vzip2q_u8(r[2], r[3]));
    out[0] = vreinterpretq_s32_u16(vzip1q_u16(low01, low23));
    out[1] = vreinterpretq_s32_u16(vzip2q_u16(low01, low23));
    out[2] = vreinterpretq_s32_u16(vzip1q_u16(high01, high23));
    out[3] = vreinterpretq_s32_u16(vzip2q_u16(high01, high23));
  }

  QCORE_NUMERIC Int narrow(const Int (&sums)[4], const StaticCodeFormat& format) {
    const int16x8_t zero = vdupq_n_s16(static_cast<std::int16_t>(format.zero_point));
    const int16x8_t low = vcombine_s16(vqmovn_s32(sums[0]), vqmovn_s32(sums[1]));
    const int16x8_t high = vcombine_s16(vqmovn_s32(sums[2]), vqmovn_s32(sums[3]));
    uint8x16_t codes = vcombine_u8(vqmovun_s16(vqaddq_s16(low, zero)), vqmovun_s16(vqaddq_s16(high, zero)));
    codes = vmaxq_u8(codes, vdupq_n_u8(static_cast<std::uint8_t>(format.lo)));
    codes = vminq_u8(codes, vdupq_n_u8(static_cast<std::uint8_t>(format.hi)));
    return vreinterpretq_s32_u8(veorq_u8(codes, vdupq_n_u8(static_cast<std::uint8_t>(format.sign_xor_mask))));
  }
  QCORE_NUMERIC Int in_order(Int codes) { return codes; }
  QCORE_NUMERIC void store_first_bytes(std::uint8_t* p, Int codes, int count) {
    if (count == kBytes) return store(p, codes);
    alignas(kBytes) std::uint8_t bytes[kBytes];
    store(bytes, codes);
    memcpy(p, bytes, static_cast<std::size_t>(count));
  }
};

// Four times a perfect shuffle of the 256 bytes of a square: the four upper bits of an index change places with the
// lower ones.
QCORE_NUMERIC void transpose_square(uint8x16_t (&square)[16]) {
  unroll<4>([&](auto) QCORE_UNROLLED {
    uint8x16_t shuffled[16];
    repeat<8>([&](int i) QCORE_UNROLLED {
      shuffled[2 * i] = vzip1q_u8(square[i], square[i + 8]);
      shuffled[2 * i + 1] = vzip2q_u8(square[i], square[i + 8]);
    });
    repeat<16>([&](int i) QCORE_UNROLLED { square[i] = shuffled[i]; });
  });
}

// Up to four rows to fours of bytes, 16 columns at a time.
QCORE_NUMERIC std::int64_t transpose_quads(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to,
                                           std::int64_t rows, std::int64_t columns) {
  std::int64_t column = 0;
  for (; column + 16 <= columns; column += 16) {
    uint8x16x4_t fours;
    for (int r = 0; r < 4; ++r) fours.val[r] = r < rows ? vld1q_u8(from + r * from_step + column) : vdupq_n_u8(0);
    vst4q_u8(to + 4 * column, fours);
  }
  return column;
}

// Where there are 16 rows or columns, those that are left over are taken with some that were done already.
void transpose_bytes(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step,
                     std::int64_t rows, std::int64_t columns, std::int64_t writable) {
  if (rows < 16 || columns < 16) {
    std::int64_t column = 0;
    if (to_step == 4 && writable == 4) column = transpose_quads(from, from_step, to, rows, columns);
    for (; column < columns; ++column)
      for (std::int64_t row = 0; row < rows; ++row) to[column * to_step + row] = from[row * from_step + column];
    return;
  }
  // Columns outside: what is written together lies together.
  for (std::int64_t next_column = 0; next_column < columns; next_column += 16) {
    const std::int64_t column = next_column + 16 <= columns ? next_column : columns - 16;
    for (std::int64_t next_row = 0; next_row < rows; next_row += 16) {
      const std::int64_t row = next_row + 16 <= rows ? next_row : rows - 16;
      uint8x16_t square[16];
      const std::uint8_t* in = from + row * from_step + column;
      repeat<16>([&](int i) QCORE_UNROLLED { square[i] = vld1q_u8(in + i * from_step); });
      transpose_square(square);
      std::uint8_t* out = to + column * to_step + row;
      repeat<16>([&](int i) QCORE_UNROLLED { vst1q_u8(out + i * to_step, square[i]); });
    }
  }
}

}  // namespace
}  // namespace qcore
