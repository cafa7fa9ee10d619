#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "formats/packed_layout.h"

// Unsigned numbers of 2 to 8 bits in vectors of `lanes` bytes. Eight vectors make a group of bits * lanes bytes, in
// planes of 4, 2 and 1 bits, as many as the width has:
//
//   4 bits: 4 vectors of the numbers' lowest four bits; vector i has those of number vectors 2i (low half) and 2i + 1
//   2 bits: 2 vectors of the next two bits; of vectors 4i to 4i + 3, the first lowest
//   1 bit:  1 vector of the highest bit; of all eight
//
// Numbers of 8 bits are stored as they are. A last group that is not full is padded with zeros.
namespace qcore {

struct Planes {
  static constexpr std::int64_t kGroup = PackedLayout::kGroupSteps;

  int bits;
  std::int64_t lanes;

  QCORE_INLINE constexpr std::int64_t group_bytes() const { return bits * lanes; }
  QCORE_INLINE constexpr std::int64_t bytes(std::int64_t vectors) const {
    return (vectors + kGroup - 1) / kGroup * group_bytes();
  }

  // The number in a lane of a vector, or the numbers of four lanes, a byte each (Word is uint8_t or uint32_t).
  template <class Word>
  QCORE_INLINE Word get(const std::uint8_t* data, std::int64_t vector, std::int64_t lane) const {
    const std::uint8_t* group = data + vector / kGroup * group_bytes() + lane;
    const int at = static_cast<int>(vector % kGroup);
    if (bits == 8) return load<Word>(group + at * lanes);
    std::uint32_t numbers = 0;
    for_planes([&](int width, int first_bit, std::int64_t plane) {
      const std::uint32_t word = load<Word>(group + plane + at * width / 8 * lanes);
      numbers |= (word >> at * width % 8 & mask(width)) << first_bit;
    });
    return static_cast<Word>(numbers);
  }

  // Writes such numbers where there are zeros.
  template <class Word>
  void put(std::uint8_t* data, std::int64_t vector, std::int64_t lane, Word numbers) const {
    std::uint8_t* group = data + vector / kGroup * group_bytes() + lane;
    const int at = static_cast<int>(vector % kGroup);
    if (bits == 8) return store<Word>(group + at * lanes, numbers);
    for_planes([&](int width, int first_bit, std::int64_t plane) {
      std::uint8_t* place = group + plane + at * width / 8 * lanes;
      const std::uint32_t moved = (std::uint32_t{numbers} >> first_bit & mask(width)) << at * width % 8;
      store<Word>(place, static_cast<Word>(load<Word>(place) | moved));
    });
  }

 private:
  // So many bits in each of four bytes.
  QCORE_INLINE static constexpr std::uint32_t mask(int width) { return ((1u << width) - 1) * 0x01010101u; }

  template <class Word>
  QCORE_INLINE static Word load(const std::uint8_t* from) {
    Word word;
    memcpy(&word, from, sizeof word);
    return word;
  }
  template <class Word>
  static void store(std::uint8_t* to, Word word) {
    memcpy(to, &word, sizeof word);
  }

  // Calls visit(width, its lowest bit within a number, where it begins in a group) for each plane.
  template <class Visit>
  QCORE_INLINE void for_planes(const Visit& visit) const {
    int first_bit = 0;
    std::int64_t plane = 0;
    for (const int width : {4, 2, 1}) {
      if (!(bits & width)) continue;
      visit(width, first_bit, plane);
      first_bit += width;
      plane += width * lanes;
    }
  }
};

}  // namespace qcore
