#pragma once

#include <cstring>

#include "gemm/dequantize/vtable.h"
#include "numerics/portable.h"

// The functions of DequantizeKernels for vectors V: those of simd, and
//   Float codes<bits>(words, word_bytes, i)   the codes of a block from i on, a multiple of kLanes
//   stream<bytes>(to, from, whole)            copies the bytes of a vector past the caches, where kStreams: at once, or
//                                             in pieces of 16 bytes to a place that only these are aligned to
namespace qcore {
namespace {

// Values of y as they lie in memory.
template <class V>
struct Floats {
  using Item = float;
  QCORE_NUMERIC void store(Item* y, typename V::Float values) { V::store(y, values); }
};
template <class V>
struct Halves {
  using Item = std::uint16_t;
  QCORE_NUMERIC void store(Item* y, typename V::Float values) { V::store_half(y, values); }
};
template <class V>
struct Bfloats {
  using Item = std::uint16_t;
  QCORE_NUMERIC void store(Item* y, typename V::Float values) { V::store_bfloat(y, values); }
};

template <class V, class Values, int kBits, bool kPastCache>
void decode_blocks(const DequantizeRun& run, typename Values::Item* y) {
  using Item = typename Values::Item;
  constexpr int kWordBytes = 4, kWordCodes = 8 * kWordBytes / kBits;
  const std::uint8_t* words = run.codes;
  const std::int64_t word_bytes = run.word_bytes, block_size = run.block_size, count = run.count;
  const bool whole = reinterpret_cast<std::uintptr_t>(y) % (V::kLanes * sizeof(Item)) == 0;
  for (std::int64_t p = 0, begin = 0; begin < count; ++p, begin += block_size, words += run.block_bytes) {
    const std::int64_t left = count - begin, length = left < block_size ? left : block_size;
    const typename V::Float scale = V::set1(run.scales[p]), offset = V::set1(run.offsets[p]);
    Item* to = y + begin;
    std::int64_t i = 0;
    for (; i + V::kLanes <= length; i += V::kLanes) {
      const auto values = V::fma(scale, V::template codes<kBits>(words, word_bytes, i), offset);
      if constexpr (kPastCache) {
        alignas(64) Item parts[V::kLanes];
        Values::store(parts, values);
        V::template stream<sizeof parts>(to + i, parts, whole);
      } else {
        Values::store(to + i, values);
      }
    }
    if (i == length) continue;
    // A vector may need more words than the block has.
    std::uint8_t last[V::kLanes] = {};
    for (std::int64_t at = i - i % kWordCodes, n = 0; at < length; at += kWordCodes, n += kWordBytes)
      memcpy(last + n, words + at / kWordCodes * word_bytes, kWordBytes);
    Item parts[V::kLanes];
    Values::store(parts, V::fma(scale, V::template codes<kBits>(last, kWordBytes, i % kWordCodes), offset));
    memcpy(to + i, parts, static_cast<std::size_t>(length - i) * sizeof(Item));
  }
}

template <class V, class Values>
void decode(const DequantizeRun& run, typename Values::Item* y) {
  constexpr std::uintptr_t kPieceBytes = 16;
  const bool aligned = reinterpret_cast<std::uintptr_t>(y) % kPieceBytes == 0 && run.block_size % V::kLanes == 0;
  if (V::kStreams && run.past_cache && aligned)
    run.bits == 4 ? decode_blocks<V, Values, 4, V::kStreams>(run, y) : decode_blocks<V, Values, 8, V::kStreams>(run, y);
  else
    run.bits == 4 ? decode_blocks<V, Values, 4, false>(run, y) : decode_blocks<V, Values, 8, false>(run, y);
}

template <class V>
constexpr DequantizeKernels kDequantizeLanes{decode<V, Floats<V>>, decode<V, Halves<V>>, decode<V, Bfloats<V>>,
                                             V::kStreams ? V::fence : nullptr};

}  // namespace
}  // namespace qcore
