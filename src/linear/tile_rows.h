#pragma once

#include "linear/tile_kernels.h"
#include "linear/unroll.h"
#include "numerics/activation_block.h"
#include "numerics/half_bits.h"

// Packing of activation rows before a tile, and storing of its results after, for the vector set V.
namespace qcore {
namespace {

constexpr int kF32 = 0, kF16 = 1;  // DType::f32, DType::f16; what is left is bf16

template <class V>
struct Rows {
  using Int = typename V::Int;
  using Float = typename V::Float;

  static void widen(const void* data, int dtype, std::int64_t count, float* out) {
    const auto* bits = static_cast<const std::uint16_t*>(data);
    std::int64_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes)
      V::store(out + i, dtype == kF16 ? V::load_half(bits + i) : V::load_bfloat(bits + i));
    for (; i < count; ++i)
      out[i] = dtype == kF16 ? numerics::half_to_float(bits[i]) : numerics::bfloat_to_float(bits[i]);
  }

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

  // The first code of quad `quad` of row `slot`; a quad's four codes follow each other.
  template <class Code>
  QCORE_NUMERIC Code* quad_place(const PackedRows& rows, std::int64_t quad, int slot) {
    return static_cast<Code*>(rows.codes) + 4 * (quad * rows.rows + slot);
  }

  // 16-bit codes of a quad lie in the order k0 k2 k1 k3: pairs for a multiply-add of even and of odd weight bytes.
  QCORE_NUMERIC void put_quad(std::int16_t* place, const std::int16_t* codes) {
    place[0] = codes[0];
    place[1] = codes[2];
    place[2] = codes[1];
    place[3] = codes[3];
  }
  QCORE_NUMERIC void put_quad(std::int8_t* place, const std::int8_t* codes) { memcpy(place, codes, 4); }
  QCORE_NUMERIC void put_quad(float* place, const float* values) { memcpy(place, values, 16); }

  // Codes of one block into its quads, zeros into the padding; their sum.
  template <class Code>
  QCORE_NUMERIC std::int32_t pack_block(const float* x, std::int64_t length, const numerics::BlockScale& scale,
                                        int mode, std::int64_t quad, std::int64_t end_quad, int slot,
                                        const PackedRows& rows) {
    std::int32_t sum = 0;
    std::int64_t i = 0;
    Code codes[V::kLanes];
    if (scale.inverse != 0.0f) {
      const Float offset = V::all(scale.offset), inverse = V::all(scale.inverse);
      const Float lowest = V::all(static_cast<float>(numerics::activation_lowest(mode)));
      const Float highest = V::all(static_cast<float>(numerics::activation_highest(mode)));
      Int sums = V::all(0);
      for (; i + V::kLanes <= length; i += V::kLanes) {
        const Float scaled = V::mul(V::sub(V::load(x + i), offset), inverse);
        const Int rounded = V::to_int(V::at_most(V::at_least(scaled, lowest), highest));
        sums = V::add(sums, rounded);
        if constexpr (sizeof(Code) == 1)
          V::store_low_bytes(codes, rounded);
        else
          V::store_low_words(codes, rounded);
        for (int q = 0; q < V::kLanes / 4; ++q) put_quad(quad_place<Code>(rows, quad++, slot), codes + 4 * q);
      }
      sum = V::total(sums);
    }
    for (; quad < end_quad; ++quad, i += 4) {
      for (int j = 0; j < 4; ++j) {
        codes[j] = static_cast<Code>(i + j < length ? numerics::activation_code(x[i + j], scale, mode) : 0);
        sum += codes[j];
      }
      put_quad(quad_place<Code>(rows, quad, slot), codes);
    }
    return sum;
  }

  template <class Code>
  static void pack_integer_row(const float* values, const PackedLayout& layout, int mode, int slot,
                               const PackedRows& rows) {
    const std::int64_t quads_per_step = layout.step_k() / 4, blocks = layout.blocks();
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
        const std::int64_t quad = layout.block_first_step(p) * quads_per_step;
        const std::int64_t end_quad = quad + layout.block_steps(p) * quads_per_step;
        const std::int32_t sum = pack_block<Code>(values + layout.block_begin(p), layout.block_length(p), scale, mode,
                                                  quad, end_quad, slot, rows);
        const std::int64_t at = p * rows.rows + slot;
        rows.scales[at] = scale.scale;
        rows.scaled_sums[at] = scale.scale * static_cast<float>(sum);
        rows.sums[at] = sum;
        rows.starts[at] = static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(layout.zero_code()) * static_cast<std::uint32_t>(sum));
        if (rows.offsets) rows.offsets[at] = scale.offset;
      }
    }
  }

  static void pack_float_row(const float* values, const PackedLayout& layout, int, int slot, const PackedRows& rows) {
    const std::int64_t quads_per_step = layout.step_k() / 4;
    for (std::int64_t p = 0; p < layout.blocks(); ++p) {
      const float* x = values + layout.block_begin(p);
      const std::int64_t length = layout.block_length(p), quads = layout.block_steps(p) * quads_per_step;
      const std::int64_t first = layout.block_first_step(p) * quads_per_step;
      for (std::int64_t quad = 0; quad < quads; ++quad) {
        float four[4];
        for (int j = 0; j < 4; ++j) four[j] = 4 * quad + j < length ? x[4 * quad + j] : 0.0f;
        put_quad(quad_place<float>(rows, first + quad, slot), four);
      }
    }
  }

  static void store_row(const float* values, std::int64_t columns, const OutputRow& row) {
    std::int64_t n = 0;
    const Float lo = V::all(row.lo), hi = V::all(row.hi);
    for (; n + V::kLanes <= columns; n += V::kLanes) {
      Float y = V::load(values + n);
      if (row.bias) y = V::add(y, V::load(row.bias + n));
      if (row.clamp) y = V::at_most(V::at_least(y, lo), hi);
      if (row.dtype == kF32) {
        V::store(static_cast<float*>(row.data) + n, y);
      } else if (row.dtype == kF16) {
        V::store_half(static_cast<std::uint16_t*>(row.data) + n, y);
      } else {
        float parts[V::kLanes];
        V::store(parts, y);
        for (int lane = 0; lane < V::kLanes; ++lane)
          static_cast<std::uint16_t*>(row.data)[n + lane] = numerics::float_to_bfloat(parts[lane]);
      }
    }
    for (; n < columns; ++n) {
      float y = values[n];
      if (row.bias) y += row.bias[n];
      if (row.clamp) y = y < row.lo ? row.lo : y > row.hi ? row.hi : y;
      if (row.dtype == kF32)
        static_cast<float*>(row.data)[n] = y;
      else
        static_cast<std::uint16_t*>(row.data)[n] =
            row.dtype == kF16 ? numerics::float_to_half(y) : numerics::float_to_bfloat(y);
    }
  }
};

// Picks the instance for the tile's bits, rows and panels.
template <template <int, int> class Tile8, template <int, int> class Tile4, int MaxRows, int MaxPanels>
void run_tile_of_size(const TileArguments& arguments) {
  unroll<MaxRows>([&](auto r) QCORE_UNROLLED {
    if (arguments.rows.rows != r.value + 1) return;
    unroll<MaxPanels>([&](auto panels) QCORE_UNROLLED {
      if (arguments.panels != panels.value + 1) return;
      if (arguments.layout->bits == 8)
        Tile8<r.value + 1, panels.value + 1>::run(arguments);
      else
        Tile4<r.value + 1, panels.value + 1>::run(arguments);
    });
  });
}

}  // namespace
}  // namespace qcore
