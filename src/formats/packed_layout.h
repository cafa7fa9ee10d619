#pragma once

#include <cstdint>

#include "numerics/portable.h"

// Where the codes and parameters of a packed weight lie. One layout serves VNNI and AMX dot products:
//
//   a panel is 16 rows n; a step is one 64-byte vector of a panel: 4 consecutive k of each row (8 bits), or 8 (4 bits);
//   byte within a step = 4*(n%16) + k%4; with 4 bits the low nibbles hold the first 4 k, the high ones the last 4.
//
// Each block starts a new step, and a block whose length is no multiple of the step is padded. Codes are stored
// unsigned (q + 128, q + 8): they are the unsigned operand of the dot product. Padding is code 0, scale 0, offset 0.
namespace qcore {

// The values of the stored codes 0 to 15 of a plain weight of 4 bits.
inline constexpr float kPlainNibbles[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

struct PackedLayout {
  static constexpr std::int64_t kPanelRows = 16;
  static constexpr std::int64_t kStepBytes = 64;
  static constexpr std::int64_t kGroupSteps = 8;  // whose codes share bytes in an encoded weight, see formats/planes.h

  std::int64_t n = 0, k = 0, taps = 1;
  std::int64_t block_size = 1;
  int bits = 8;

  constexpr PackedLayout() = default;
  QCORE_INLINE constexpr PackedLayout(std::int64_t n_, std::int64_t k_, std::int64_t taps_, std::int64_t block,
                                      int bits_)
      : n(n_), k(k_), taps(taps_), block_size(block), bits(bits_) {}

  QCORE_INLINE constexpr std::int64_t step_k() const { return bits == 8 ? 4 : 8; }
  QCORE_INLINE constexpr int zero_code() const { return 1 << (bits - 1); }  // what a stored code is shifted by

  QCORE_INLINE constexpr std::int64_t panels() const { return (n + kPanelRows - 1) / kPanelRows; }
  QCORE_INLINE constexpr std::int64_t blocks() const { return (k + block_size - 1) / block_size; }  // P
  QCORE_INLINE constexpr std::int64_t block_begin(std::int64_t p) const { return p * block_size; }
  QCORE_INLINE constexpr std::int64_t block_length(std::int64_t p) const {
    return k - p * block_size < block_size ? k - p * block_size : block_size;
  }
  QCORE_INLINE constexpr std::int64_t block_steps(std::int64_t p) const {
    return (block_length(p) + step_k() - 1) / step_k();
  }
  QCORE_INLINE constexpr std::int64_t block_first_step(std::int64_t p) const {
    return p * ((block_size + step_k() - 1) / step_k());
  }
  QCORE_INLINE constexpr std::int64_t steps() const {  // of one panel and tap
    return blocks() == 0 ? 0 : block_first_step(blocks() - 1) + block_steps(blocks() - 1);
  }

  QCORE_INLINE constexpr std::int64_t panel_bytes() const { return taps * steps() * kStepBytes; }
  QCORE_INLINE constexpr std::int64_t code_bytes() const { return panels() * panel_bytes(); }
  QCORE_INLINE constexpr std::int64_t parameter_count() const { return panels() * blocks() * kPanelRows; }

  // Scales and offsets: a panel's blocks follow each other, 16 rows each.
  QCORE_INLINE constexpr std::int64_t parameter_index(std::int64_t row, std::int64_t p) const {
    return (row / kPanelRows * blocks() + p) * kPanelRows + row % kPanelRows;
  }

  struct Place {
    std::int64_t byte;
    int shift;  // of the nibble within the byte
  };
  QCORE_INLINE constexpr Place place(std::int64_t row, std::int64_t kk, std::int64_t tap = 0) const {
    const std::int64_t p = kk / block_size, within = kk % block_size;
    const std::int64_t step = block_first_step(p) + within / step_k();
    const std::int64_t byte = ((row / kPanelRows * taps + tap) * steps() + step) * kStepBytes + 4 * (row % kPanelRows) +
                              within % step_k() % 4;
    return {byte, static_cast<int>(within % step_k() / 4 * 4)};
  }
};

}  // namespace qcore
