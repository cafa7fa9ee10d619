#pragma once

#include <cstring>

#include "formats/packed_layout.h"

// Codes of one row's block to and from their places in a panel, a step's word at a time.
namespace qcore {

// PackedLayout's places of whole blocks, without its divisions for each.
class BlockPlaces {
 public:
  explicit BlockPlaces(const PackedLayout& layout)
      : taps_(layout.taps),
        blocks_(layout.blocks()),
        steps_(layout.steps()),
        block_steps_(layout.block_first_step(1)) {}

  // Byte of the row's word in the block's first step.
  std::int64_t first(std::int64_t row, std::int64_t p, std::int64_t tap) const {
    constexpr std::int64_t kWord = 4;
    const std::int64_t panel = row / PackedLayout::kPanelRows * taps_ + tap;
    return (panel * steps_ + p * block_steps_) * PackedLayout::kStepBytes + kWord * (row % PackedLayout::kPanelRows);
  }
  // Returns the same index as PackedLayout::parameter_index.
  std::int64_t parameter(std::int64_t row, std::int64_t p) const {
    return (row / PackedLayout::kPanelRows * blocks_ + p) * PackedLayout::kPanelRows + row % PackedLayout::kPanelRows;
  }

 private:
  std::int64_t taps_, blocks_, steps_, block_steps_;
};

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

// The codes of one step, of which a byte each in the number's lowest bytes, and back.
template <int kBits>
struct PackedStep;

template <>
struct PackedStep<4> {
  using Codes = std::uint64_t;
  static QCORE_INLINE std::uint32_t word(Codes codes) { return word_of_nibbles(codes); }
  static QCORE_INLINE Codes codes(std::uint32_t word) { return codes_of_nibbles(word); }
};

template <>
struct PackedStep<8> {
  using Codes = std::uint32_t;
  static constexpr std::uint32_t kFlipSigns = 0x80808080u;
  static QCORE_INLINE std::uint32_t word(Codes codes) { return codes ^ kFlipSigns; }
  static QCORE_INLINE Codes codes(std::uint32_t word) { return word ^ kFlipSigns; }
};

template <int kBits>
void pack_steps(const std::int8_t* codes, std::int64_t count, std::uint8_t* first) {
  using Step = PackedStep<kBits>;
  constexpr std::int64_t kCodes = sizeof(typename Step::Codes);
  typename Step::Codes part;
  const std::int64_t steps = count / kCodes, rest = count % kCodes;
  for (std::int64_t step = 0; step < steps; ++step) {
    memcpy(&part, codes + step * kCodes, sizeof part);
    const std::uint32_t word = Step::word(part);
    memcpy(first + step * PackedLayout::kStepBytes, &word, sizeof word);
  }
  if (!rest) return;
  part = 0;
  memcpy(&part, codes + steps * kCodes, static_cast<std::size_t>(rest));
  const std::uint32_t word = Step::word(part);
  memcpy(first + steps * PackedLayout::kStepBytes, &word, sizeof word);
}

template <int kBits>
void unpack_steps(const std::uint8_t* first, std::int64_t count, std::int8_t* codes) {
  using Step = PackedStep<kBits>;
  constexpr std::int64_t kCodes = sizeof(typename Step::Codes);
  std::uint32_t word;
  const std::int64_t steps = count / kCodes, rest = count % kCodes;
  for (std::int64_t step = 0; step < steps; ++step) {
    memcpy(&word, first + step * PackedLayout::kStepBytes, sizeof word);
    const typename Step::Codes part = Step::codes(word);
    memcpy(codes + step * kCodes, &part, sizeof part);
  }
  if (!rest) return;
  memcpy(&word, first + steps * PackedLayout::kStepBytes, sizeof word);
  const typename Step::Codes part = Step::codes(word);
  memcpy(codes + steps * kCodes, &part, static_cast<std::size_t>(rest));
}

// int8 [count] to the steps; the last one is padded with code 0.
inline void pack_block(const std::int8_t* codes, std::int64_t count, int bits, std::uint8_t* first) {
  bits == 8 ? pack_steps<8>(codes, count, first) : pack_steps<4>(codes, count, first);
}

// The inverse of pack_block.
inline void unpack_block(const std::uint8_t* first, std::int64_t count, int bits, std::int8_t* codes) {
  bits == 8 ? unpack_steps<8>(first, count, codes) : unpack_steps<4>(first, count, codes);
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
