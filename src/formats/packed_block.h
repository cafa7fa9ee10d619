#pragma once

#include <cstring>

#include "formats/packed_layout.h"

// Codes of one row's block to and from their places in a panel, a step's word at a time. `first` is the row's word of
// the block's first step.
namespace qcore {

QCORE_INLINE std::int64_t first_word(const PackedLayout& layout, std::int64_t row, std::int64_t p, std::int64_t tap) {
  constexpr std::int64_t kWord = 4;
  const std::int64_t panel = row / PackedLayout::kPanelRows * layout.taps + tap;
  return (panel * layout.steps() + layout.block_first_step(p)) * PackedLayout::kStepBytes +
         kWord * (row % PackedLayout::kPanelRows);
}

// The word of eight codes of 4 bits, of which a byte of `codes` each: the first four in the low nibbles.
QCORE_INLINE std::uint32_t word_of_nibbles(std::uint64_t codes) {
  const std::uint64_t stored = (codes & 0x0f0f0f0f0f0f0f0fu) ^ 0x0808080808080808u;
  return static_cast<std::uint32_t>(stored | stored >> 28);
}

QCORE_INLINE std::uint64_t codes_of_nibbles(std::uint32_t word) {
  const std::uint64_t stored = (word & 0x0f0f0f0fu) | static_cast<std::uint64_t>(word >> 4 & 0x0f0f0f0fu) << 32;
  // Less 8 in each byte; the bits that are set first and cleared last keep a byte from borrowing of the next.
  return ((stored | 0x8080808080808080u) - 0x0808080808080808u) ^ 0x8080808080808080u;
}

constexpr std::uint32_t kFlipSigns = 0x80808080u;

// int8 [count] to the steps; the last one is padded with code 0.
inline void pack_block(const std::int8_t* codes, std::int64_t count, int bits, std::uint8_t* first) {
  const std::int64_t step = bits == 8 ? 4 : 8;
  for (std::int64_t i = 0; i < count; i += step, first += PackedLayout::kStepBytes) {
    std::uint64_t part = 0;
    if (count - i < step)
      memcpy(&part, codes + i, static_cast<std::size_t>(count - i));
    else if (bits == 8)
      memcpy(&part, codes + i, 4);
    else
      memcpy(&part, codes + i, 8);
    const std::uint32_t word = bits == 8 ? static_cast<std::uint32_t>(part) ^ kFlipSigns : word_of_nibbles(part);
    memcpy(first, &word, sizeof word);
  }
}

// The inverse of pack_block.
inline void unpack_block(const std::uint8_t* first, std::int64_t count, int bits, std::int8_t* codes) {
  const std::int64_t step = bits == 8 ? 4 : 8;
  for (std::int64_t i = 0; i < count; i += step, first += PackedLayout::kStepBytes) {
    std::uint32_t word;
    memcpy(&word, first, sizeof word);
    const std::uint64_t part = bits == 8 ? word ^ kFlipSigns : codes_of_nibbles(word);
    if (count - i < step)
      memcpy(codes + i, &part, static_cast<std::size_t>(count - i));
    else if (bits == 8)
      memcpy(codes + i, &part, 4);
    else
      memcpy(codes + i, &part, 8);
  }
}

// int8 [count] in [-8, 7] to bytes [ceil(count / 2)]: each code plus 8, of a pair the first in the low half; an odd
// count ends with a zero.
inline void pair_nibbles(const std::int8_t* codes, std::int64_t count, std::uint8_t* pairs) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t part;
    memcpy(&part, codes + i, sizeof part);
    part = (part & 0x0f0f0f0f0f0f0f0fu) ^ 0x0808080808080808u;
    part = (part | part >> 4) & 0x00ff00ff00ff00ffu;
    part = (part | part >> 8) & 0x0000ffff0000ffffu;
    const std::uint32_t word = static_cast<std::uint32_t>(part | part >> 16);
    memcpy(pairs + i / 2, &word, sizeof word);
  }
  for (; i < count; i += 2) {
    const int low = codes[i] + 8, high = i + 1 < count ? codes[i + 1] + 8 : 0;
    pairs[i / 2] = static_cast<std::uint8_t>(low | high << 4);
  }
}

}  // namespace qcore
