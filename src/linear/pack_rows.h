#pragma once

#include "linear/tile_kernels.h"
#include "linear/unroll.h"
#include "numerics/activation_block.h"

// Quantisation of activation rows into the places that the tiles read, for the vector set V.
namespace qcore {
namespace {

template <class V, class Code>
struct PackRows {
  using Int = typename V::Int;
  using Float = typename V::Float;
  static constexpr int kParts = 4 / sizeof(Code);  // vectors of int32 that make one vector of codes
  static constexpr int kChunk = kParts * V::kLanes;
  static_assert(kChunk * sizeof(Code) <= PackedRows::kSlackBytes, "a row's last store would reach the next row");

  QCORE_NUMERIC numerics::BlockScale block_scale(const float* values, std::int64_t count, int mode) {
    if (count < V::kLanes) return numerics::activation_scale_of(values, count, mode);
    const Int magnitude_mask = V::all(0x7fffffff);
    Int magnitude = V::all(0);
    Float lo = V::load(values), hi = lo;
    for (std::int64_t i = 0;; i += V::kLanes) {
      // The last vector overlaps the one before: a maximum may see an element twice.
      if (i > count - V::kLanes) i = count - V::kLanes;
      const Float x = V::load(values + i);
      magnitude = V::max(magnitude, V::both(V::as_int(x), magnitude_mask));
      if (mode == numerics::kActivationInt8Asym) {
        lo = V::at_most(x, lo);
        hi = V::at_least(x, hi);
      }
      if (i == count - V::kLanes) break;
    }
    const auto magnitude_bits = static_cast<std::uint32_t>(V::largest(magnitude));
    if (mode != numerics::kActivationInt8Asym) return numerics::activation_scale(mode, 0.0f, 0.0f, magnitude_bits);
    return numerics::activation_scale(mode, V::smallest(lo), V::largest(hi), magnitude_bits);
  }

  // Codes of one block, zeros up to `padded` and, because whole vectors are stored, beyond; their sum. The next block
  // overwrites what is beyond; after the last one there is kSlackBytes of room.
  QCORE_NUMERIC std::int32_t pack_block(const float* x, std::int64_t length, std::int64_t padded,
                                        const numerics::BlockScale& scale, int mode, Code* out) {
    const Float offset = V::all(scale.offset), inverse = V::all(scale.inverse);
    const Float lowest = V::all(static_cast<float>(numerics::activation_lowest(mode)));
    const Float highest = V::all(static_cast<float>(numerics::activation_highest(mode)));
    Int sums = V::all(0);
    for (std::int64_t i = 0; i < padded; i += kChunk) {
      Int parts[kParts];
      unroll<kParts>([&](auto j) QCORE_UNROLLED {
        const std::int64_t at = i + j.value * V::kLanes, left = length - at;
        parts[j.value] = V::all(0);
        // A block of all zeros, or of a NaN, has the inverse 0 and codes 0 whatever its values are.
        if (left <= 0 || scale.inverse == 0.0f) return;
        const Float values = left >= V::kLanes ? V::load(x + at) : V::load_first(x + at, static_cast<int>(left));
        const Float scaled = V::mul(V::sub(values, offset), inverse);
        parts[j.value] = V::to_int(V::at_most(V::at_least(scaled, lowest), highest));
        if (left < V::kLanes) parts[j.value] = V::keep_first(parts[j.value], static_cast<int>(left));
        sums = V::add(sums, parts[j.value]);
      });
      if constexpr (sizeof(Code) == 1)
        V::store(out + i, V::narrow_to_bytes(parts));
      else
        V::store(out + i, V::narrow_to_words(parts));
    }
    return V::total(sums);
  }

  static void pack_row(const float* values, const PackedLayout& layout, int mode, int slot, const PackedRows& rows) {
    const std::int64_t blocks = layout.blocks(), block_k = layout.block_first_step(1) * layout.step_k();
    const std::int64_t last_block_k = blocks ? layout.block_steps(blocks - 1) * layout.step_k() : 0;
    Code* out = static_cast<Code*>(rows.codes) + slot * rows.row_stride;
    // Scales of a run of blocks first, then their codes: a block's divisions take longer than its codes, and in a loop
    // of their own the processor overlaps them.
    constexpr std::int64_t kRun = 32;
    numerics::BlockScale scales[kRun];
    for (std::int64_t first = 0; first < blocks; first += kRun) {
      const std::int64_t end = first + kRun < blocks ? first + kRun : blocks;
      for (std::int64_t p = first; p < end; ++p)
        scales[p - first] = block_scale(values + layout.block_begin(p), layout.block_length(p), mode);
      for (std::int64_t p = first; p < end; ++p) {
        const numerics::BlockScale scale = scales[p - first];
        const std::int64_t length = layout.block_length(p), padded = p + 1 < blocks ? block_k : last_block_k;
        const std::int32_t sum =
            pack_block(values + layout.block_begin(p), length, padded, scale, mode, out + p * block_k);
        const std::int64_t at = p * rows.rows + slot;
        rows.scales[at] = scale.scale;
        rows.scaled_sums[at] = scale.scale * static_cast<float>(sum);
        rows.sums[at] = sum;
        rows.starts[at] = static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(layout.zero_code()) *
                                                             static_cast<std::uint32_t>(sum));
        if (rows.offsets) rows.offsets[at] = scale.offset;
      }
    }
  }
};

// Float activations only move to the places where their blocks are padded like the weight's.
[[maybe_unused]] static void pack_float_row(const float* values, const PackedLayout& layout, int, int slot,
                                            const PackedRows& rows) {
  const std::int64_t block_k = layout.block_first_step(1) * layout.step_k();
  float* out = static_cast<float*>(rows.codes) + slot * rows.row_stride;
  for (std::int64_t p = 0; p < layout.blocks(); ++p) {
    const std::int64_t length = layout.block_length(p);
    memcpy(out + p * block_k, values + layout.block_begin(p), static_cast<std::size_t>(length) * sizeof(float));
    for (std::int64_t i = length; i < layout.block_steps(p) * layout.step_k(); ++i) out[p * block_k + i] = 0.0f;
  }
}

}  // namespace
}  // namespace qcore
