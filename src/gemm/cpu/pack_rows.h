#pragma once

#include "gemm/cpu/vtable.h"
#include "numerics/activation_block.h"
#include "simd/unroll.h"

// Quantization of activation rows into the places that the tiles read, for the vector set V.
namespace qcore {
namespace {

// Places a block's codes one after the other.
template <class V>
struct StoreInOrder {
  template <class Code>
  QCORE_NUMERIC void store(Code* block, std::int64_t i, std::int64_t, typename V::Int codes) {
    V::store(block + i, codes);
  }
};

// Store::store(block, i, padded, codes) places a vector of codes, the i-th and following ones of a block of `padded`.
template <class V, class Code, class Store = StoreInOrder<V>>
struct PackRows {
  using Int = typename V::Int;
  using Float = typename V::Float;
  static constexpr int kParts = 4 / sizeof(Code);  // vectors of int32 that make one vector of codes
  static constexpr int kChunk = kParts * V::kLanes;
  static_assert(kChunk * sizeof(Code) <= PackedRows::kSlackBytes, "a row's last store would reach the next row");

  // Extremes that decide a block's scale, in vectors whose lanes are still to be combined.
  struct Range {
    Int magnitude;  // bits of |x|
    Float lo, hi;   // of activations with offsets only
  };

  template <bool Offsets>
  QCORE_NUMERIC Range range_of(const float* values, std::int64_t count) {
    const Int magnitude_mask = V::set1(0x7fffffff);
    Range range{V::set1(0), V::set1(numerics::kFloatMax), V::set1(-numerics::kFloatMax)};
    const auto add = [&](Float x) QCORE_UNROLLED {
      range.magnitude = V::max(range.magnitude, V::bit_and(V::as_int(x), magnitude_mask));
      if constexpr (Offsets) {
        range.lo = V::at_most(x, range.lo);
        range.hi = V::at_least(x, range.hi);
      }
    };
    std::int64_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes) add(V::load(values + i));
    if (i == count) return range;
    // The last vector overlaps the one before, or is the first element again and again: extremes may see one twice.
    if (count >= V::kLanes) {
      add(V::load(values + count - V::kLanes));
    } else {
      for (; i < count; ++i) add(V::set1(values[i]));
    }
    return range;
  }

  // One vector of codes, zeros after the first `count` of them; adds to their sums.
  template <bool Offsets, bool Short>
  QCORE_NUMERIC Int codes_of(const float* x, int count, const numerics::BlockScale& scale, int mode, Int& sums) {
    Int parts[kParts];
    unroll<kParts>([&](auto part) QCORE_UNROLLED {
      constexpr int kAt = part.value * V::kLanes;
      parts[part.value] = V::set1(0);
      if (Short && kAt >= count) return;
      const bool whole = !Short || count - kAt >= V::kLanes;
      Float scaled = whole ? V::load(x + kAt) : V::load_first(x + kAt, count - kAt);
      if constexpr (Offsets) scaled = V::sub(scaled, V::set1(scale.offset));
      scaled = V::mul(scaled, V::set1(scale.inverse));
      if constexpr (Offsets) {
        scaled = V::at_least(scaled, V::set1(static_cast<float>(numerics::activation_lowest(mode))));
        scaled = V::at_most(scaled, V::set1(static_cast<float>(numerics::activation_highest(mode))));
      }
      parts[part.value] = V::to_int(scaled);
      if (Offsets && !whole) parts[part.value] = V::keep_first(parts[part.value], count - kAt);
      sums = V::add(sums, parts[part.value]);
    });
    if constexpr (sizeof(Code) == 1)
      return V::narrow_to_bytes(parts);
    else
      return V::narrow_to_words(parts);
  }

  // Codes of one block, zeros up to `padded` and, because whole vectors are stored, beyond; the vector of their sums.
  // The next block overwrites what is beyond; after the last one there is kSlackBytes of room. Symmetric codes need no
  // clamp: the largest magnitude times the rounded inverse of its rounded scale is within 2^-21 of the largest code.
  template <bool Offsets>
  QCORE_NUMERIC Int pack_block(const float* x, std::int64_t length, std::int64_t padded,
                               const numerics::BlockScale& scale, int mode, Code* out) {
    Int sums = V::set1(0);
    std::int64_t i = 0;
    // A block of all zeros, or of a NaN, has the inverse 0 and codes 0 whatever its values are.
    if (scale.inverse != 0.0f) {
      for (; i + kChunk <= length; i += kChunk)
        Store::store(out, i, padded, codes_of<Offsets, false>(x + i, kChunk, scale, mode, sums));
      if (i < length) {
        Store::store(out, i, padded, codes_of<Offsets, true>(x + i, static_cast<int>(length - i), scale, mode, sums));
        i += kChunk;
      }
    }
    for (; i < padded; i += kChunk) Store::store(out, i, padded, V::set1(0));
    return sums;
  }

  // The parameters of a block where they do not follow from its values alone. `offset` is that of codes that x holds,
  // which block.offset must not be: those are taken as they are.
  struct Known {
    numerics::BlockScale block;
    float offset;
  };

  // One block: what to pack, and where.
  struct Place {
    const float* values;
    std::int64_t length, padded;
    Code* codes;
    float* parameters;
    Known known;
  };

  // Up to kLanes blocks. Scales of all of them come before their codes: divisions take longer than
  // codes, and one after the other the processor overlaps them. Lanes of all of them are combined at once.
  template <bool Offsets>
  QCORE_NUMERIC void find_scales(int count, int mode, float fixed, const Place (&places)[V::kLanes],
                                 Known (&known)[V::kLanes]) {
    Int lanes[V::kLanes];
    Float lowest[V::kLanes], highest[V::kLanes];
    for (int i = 0; i < V::kLanes; ++i) {
      const Place place = i < count ? places[i] : Place{};
      const Range range = range_of<Offsets>(place.values, place.length);
      lanes[i] = range.magnitude;
      if constexpr (Offsets) lowest[i] = range.lo, highest[i] = range.hi;
    }
    std::int32_t magnitudes[V::kLanes];
    float lo[V::kLanes] = {}, hi[V::kLanes] = {};
    V::store(magnitudes, combine_lanes(lanes, [](Int a, Int b) QCORE_UNROLLED { return V::max(a, b); }));
    if constexpr (Offsets) {
      V::store(lo, combine_lanes(lowest, [](Float a, Float b) QCORE_UNROLLED { return V::at_most(a, b); }));
      V::store(hi, combine_lanes(highest, [](Float a, Float b) QCORE_UNROLLED { return V::at_least(a, b); }));
    }
    for (int i = 0; i < count; ++i) {
      known[i].block = numerics::activation_scale(mode, lo[i], hi[i], static_cast<std::uint32_t>(magnitudes[i]), fixed);
      known[i].offset = known[i].block.offset;
    }
  }

  // The scale of a whole row, symmetric.
  static numerics::BlockScale row_scale(const float* x, std::int64_t k, int mode) {
    Int lanes[V::kLanes];
    for (Int& lane : lanes) lane = V::set1(0);
    lanes[0] = range_of<false>(x, k).magnitude;
    std::int32_t largest[V::kLanes];
    V::store(largest, lanes[0]);
    for (std::int32_t of_lane : largest) largest[0] = of_lane > largest[0] ? of_lane : largest[0];
    return numerics::activation_scale(mode, 0.0f, 0.0f, static_cast<std::uint32_t>(largest[0]));
  }

  template <bool Offsets>
  QCORE_NUMERIC void pack_blocks(int count, int mode, std::int64_t blocks, const PackedRows& rows,
                                 const Place (&places)[V::kLanes]) {
    Known known[V::kLanes];
    if (rows.per_row || mode == numerics::kActivationCodes)
      for (int i = 0; i < count; ++i) known[i] = places[i].known;
    else
      find_scales<Offsets>(count, mode, rows.fixed, places, known);

    Int lanes[V::kLanes];
    for (int i = 0; i < V::kLanes; ++i) {
      lanes[i] = V::set1(0);
      if (i >= count) continue;
      const Place& place = places[i];
      lanes[i] = pack_block<Offsets>(place.values, place.length, place.padded, known[i].block, mode, place.codes);
    }
    std::int32_t sums[V::kLanes];
    V::store(sums, combine_lanes(lanes, [](Int a, Int b) QCORE_UNROLLED { return V::add(a, b); }));
    for (int i = 0; i < count; ++i) {
      float* parameters = places[i].parameters;
      auto* integers = reinterpret_cast<std::int32_t*>(parameters);
      const float scale = known[i].block.scale;
      parameters[PackedRows::kScale * blocks] = scale;
      parameters[PackedRows::kScaledSum * blocks] = scale * static_cast<float>(sums[i]);
      integers[PackedRows::kSum * blocks] = sums[i];
      integers[PackedRows::kStart * blocks] = static_cast<std::int32_t>(
          0u - static_cast<std::uint32_t>(rows.zero_code) * static_cast<std::uint32_t>(sums[i]));
      if constexpr (Offsets) parameters[PackedRows::kOffset * blocks] = known[i].offset;
    }
  }

  // Lane i of the result combines all lanes of v[i].
  template <class Vector, class Combine>
  QCORE_NUMERIC Vector combine_lanes(Vector (&v)[V::kLanes], Combine&& combine) {
    unroll<V::kFolds>([&](auto level) QCORE_UNROLLED {
      for (int i = 0; i < V::kLanes >> (level.value + 1); ++i)
        v[i] = combine(V::template fold_low<level.value>(v[2 * i], v[2 * i + 1]),
                       V::template fold_high<level.value>(v[2 * i], v[2 * i + 1]));
    });
    return v[0];
  }

  // Rows may have few blocks, so that those of several rows are packed at once.
  static void run(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
                  const PackedRows& rows) {
    const std::int64_t blocks = layout.blocks(), block_k = layout.block_first_step(1) * layout.step_k();
    // Codes of 8 bits with a given scale are clamped as those with offsets.
    const bool offsets = mode != numerics::kActivationInt8 && mode != numerics::kActivationInt16;
    Place places[V::kLanes];
    int filled = 0;
    for (std::int64_t row = 0; row < count; ++row) {
      const float* x = values + row * stride;
      Known known{};
      if (rows.per_row) known.block = row_scale(x, layout.k, mode);
      char* data = rows.data + row * rows.row_bytes;
      auto* codes = reinterpret_cast<Code*>(data + rows.codes);
      for (std::int64_t p = 0; p < blocks; ++p) {
        if (mode == numerics::kActivationCodes) {
          const std::int64_t at = row * rows.row_scales + p / rows.blocks_per_scale;
          known = {{rows.scales[at], 1.0f, 0.0f}, rows.offsets ? rows.offsets[at] : 0.0f};
        }
        places[filled++] = {x + p * layout.block_size,
                            layout.block_length(p),
                            p + 1 < blocks ? block_k : layout.block_steps(p) * layout.step_k(),
                            codes + p * block_k,
                            reinterpret_cast<float*>(data) + p,
                            known};
        if (filled < V::kLanes && (p + 1 < blocks || row + 1 < count)) continue;
        if (offsets)
          pack_blocks<true>(filled, mode, blocks, rows, places);
        else
          pack_blocks<false>(filled, mode, blocks, rows, places);
        filled = 0;
      }
    }
  }
};

}  // namespace
}  // namespace qcore
