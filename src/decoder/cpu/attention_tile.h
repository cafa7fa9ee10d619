#pragma once

#include "decoder/cpu/row_lanes.h"
#include "gemm/cpu/tile_rows.h"
#include "simd/unroll.h"

// Attention of a tile of queries, chunk after chunk, for any lanes: numerics/attention.h has the definition.
//
// Both products are matrix products of fp32 panels in the first-level cache, by one kernel: scores [rows, keys] from
// the queries and kPanelKeys transposed keys, then results [rows, head_size] from the weights and kPanelKeys values. An
// element's sum is never split, so that it has the bits of the definition.
namespace qcore {
namespace {

template <class L>
struct AttentionLanes {
  using F = typename L::F;
  static constexpr int kLanes = L::kLanes;
  static constexpr int kRows = 6;                       // of a block that is computed in registers
  static constexpr int kVectors = kLanes == 8 ? 2 : 4;  // likewise, at most
  static constexpr int kUnit = 16;                      // columns are computed in multiples of it
  static constexpr int kUnitVectors = kUnit / kLanes;
  static constexpr std::int64_t kChunk = numerics::kAttentionChunk;
  static constexpr std::int64_t kPanels = kChunk / kPanelKeys;
  static_assert(numerics::kAttentionSums == kUnit && kHeadPadding == kUnit && kChunk % kPanelKeys == 0);

  static void run(const AttentionTile& t) {
    clear(t.rows, t.sums, t.out, padded_size(t));
    bool first = true;
    for (std::int64_t chunk = t.begin_chunk; chunk < t.end_chunk; ++chunk) {
      // The first chunk with any keys is computed in place.
      const bool any = has_keys(t, chunk);
      if (!any) continue;
      if (first) {
        attend_chunk(t, chunk, t.largest, t.sums, t.out);
      } else {
        attend_chunk(t, chunk, t.chunk_largest, t.chunk_sums, t.chunk_out);
        for (std::int64_t r = 0; r < t.rows; ++r)
          RowLanes<L>::merge_row(t.largest + r, t.sums + r, t.out + r * padded_size(t), t.chunk_largest + r,
                                 t.chunk_sums + r, t.chunk_out + r * padded_size(t), t.head_size);
      }
      first = false;
    }
  }

 private:
  // Rows of a tile that are computed together, and the keys of the chunk that any of them sees.
  struct Block {
    std::int64_t first_row;
    int rows;
    numerics::KeyRange keys;
  };

  struct Operand {
    const float* data;
    std::int64_t stride;  // of rows
  };
  struct Result {
    float* data;
    std::int64_t stride;
  };

  QCORE_NUMERIC std::int64_t padded_size(const AttentionTile& t) {
    return (t.head_size + kHeadPadding - 1) / kHeadPadding * kHeadPadding;
  }

  QCORE_NUMERIC void clear(std::int64_t rows, float* sums, float* out, std::int64_t size) {
    memset(sums, 0, static_cast<std::size_t>(rows) * sizeof *sums);
    memset(out, 0, static_cast<std::size_t>(rows * size) * sizeof *out);
  }

  // Keys that the rows [first_row, end_row) see, counted from the start of the chunk and cut to it.
  QCORE_NUMERIC numerics::KeyRange keys_of(const AttentionTile& t, std::int64_t chunk, std::int64_t first_row,
                                           std::int64_t end_row) {
    const auto lower = numerics::visible_keys(t.first_position + first_row / t.group, t.first, t.window);
    const auto upper = numerics::visible_keys(t.first_position + (end_row - 1) / t.group, t.first, t.window);
    const std::int64_t begin = lower.begin - chunk * kChunk, end = upper.end - chunk * kChunk;
    return {begin < 0 ? 0 : begin, end > kChunk ? kChunk : end};
  }

  QCORE_NUMERIC bool has_keys(const AttentionTile& t, std::int64_t chunk) {
    const auto keys = keys_of(t, chunk, 0, t.rows);
    return keys.begin < keys.end;
  }

  QCORE_NUMERIC std::int64_t blocks(const AttentionTile& t) { return (t.rows + kRows - 1) / kRows; }

  // Rows are spread evenly: 7 rows become blocks of 3 and 4, not of 6 and 1.
  QCORE_NUMERIC Block block_of(const AttentionTile& t, std::int64_t chunk, std::int64_t block) {
    const std::int64_t first = block * t.rows / blocks(t), end = (block + 1) * t.rows / blocks(t);
    return {first, static_cast<int>(end - first), keys_of(t, chunk, first, end)};
  }

  // Columns of scores that are computed for a block: its keys, from and to multiples of kUnit.
  QCORE_NUMERIC numerics::KeyRange columns_of(const Block& block) {
    return {block.keys.begin / kUnit * kUnit, (block.keys.end + kUnit - 1) / kUnit * kUnit};
  }

  static void attend_chunk(const AttentionTile& t, std::int64_t chunk, float* largest, float* sums, float* out) {
    const auto keys = keys_of(t, chunk, 0, t.rows);
    const std::int64_t first_panel = keys.begin / kPanelKeys, end_panel = (keys.end + kPanelKeys - 1) / kPanelKeys;
    const std::int64_t size = padded_size(t);
    for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
      const std::int64_t begin = panel * kPanelKeys;
      const std::int64_t end = keys.end < begin + kPanelKeys ? keys.end : begin + kPanelKeys;
      load_keys(t, chunk * kChunk + begin, end - begin);
      for (std::int64_t b = 0; b < blocks(t); ++b) {
        const Block block = block_of(t, chunk, b);
        const auto columns = columns_of(block);
        const std::int64_t from = columns.begin > begin ? columns.begin : begin;
        const std::int64_t to = columns.end < begin + kPanelKeys ? columns.end : begin + kPanelKeys;
        if (from < to)
          multiply(block.rows, {t.queries + block.first_row * t.head_size, t.head_size},
                   {t.key_panel + from - begin, kPanelKeys}, t.head_size,
                   {t.scores + block.first_row * kChunk + from, kChunk}, to - from, false);
      }
    }
    for (std::int64_t b = 0; b < blocks(t); ++b) {
      const Block block = block_of(t, chunk, b);
      for (std::int64_t r = block.first_row; r < block.first_row + block.rows; ++r)
        weigh_row(t, t.scores + r * kChunk, columns_of(block), keys_of(t, chunk, r, r + 1), largest + r, sums + r);
    }
    memset(out, 0, static_cast<std::size_t>(t.rows * size) * sizeof *out);
    for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
      const std::int64_t begin = keys.begin > panel * kPanelKeys ? keys.begin : panel * kPanelKeys;
      const std::int64_t end = keys.end < (panel + 1) * kPanelKeys ? keys.end : (panel + 1) * kPanelKeys;
      const Operand values = load_values(t, chunk * kChunk + begin, end - begin);
      for (std::int64_t b = 0; b < blocks(t); ++b) {
        const Block block = block_of(t, chunk, b);
        const std::int64_t from = block.keys.begin > begin ? block.keys.begin : begin;
        const std::int64_t to = block.keys.end < end ? block.keys.end : end;
        if (from < to)
          multiply(block.rows, {t.scores + block.first_row * kChunk + from, kChunk},
                   {values.data + (from - begin) * values.stride, values.stride}, to - from,
                   {out + block.first_row * size, size}, size, true);
      }
    }
  }

  // Transposes keys of consecutive positions into the key panel.
  static void load_keys(const AttentionTile& t, std::int64_t position, std::int64_t count) {
    if (t.dtype != kI8) {
      const auto item = static_cast<std::int64_t>(t.dtype == kF32 ? sizeof(float) : sizeof(std::uint16_t));
      const char* keys = static_cast<const char*>(t.keys) + position * t.key_stride * item;
      Transpose<L>::run(keys, t.dtype, t.key_stride, count, t.head_size, t.key_panel, kPanelKeys);
      return;
    }
    load_codes(static_cast<const std::int8_t*>(t.keys) + position * t.key_stride, t.key_stride,
               t.key_scales + position * t.key_scale_stride, t.key_scale_stride, count, t.head_size, t.value_panel,
               padded_size(t));
    Transpose<L>::run(t.value_panel, kF32, padded_size(t), count, t.head_size, t.key_panel, kPanelKeys);
  }

  // Returns values of consecutive positions as fp32: those of an fp32 cache where they are, others in the value panel.
  // The padding of a row is zero.
  static Operand load_values(const AttentionTile& t, std::int64_t position, std::int64_t count) {
    const std::int64_t size = padded_size(t);
    if (t.dtype == kF32 && size == t.head_size)
      return {static_cast<const float*>(t.values) + position * t.value_stride, t.value_stride};
    if (t.dtype == kI8) {
      load_codes(static_cast<const std::int8_t*>(t.values) + position * t.value_stride, t.value_stride,
                 t.value_scales + position * t.value_scale_stride, t.value_scale_stride, count, t.head_size,
                 t.value_panel, size);
    } else {
      const auto item = static_cast<std::int64_t>(t.dtype == kF32 ? sizeof(float) : sizeof(std::uint16_t));
      const char* values = static_cast<const char*>(t.values) + position * t.value_stride * item;
      for (std::int64_t j = 0; j < count; ++j)
        RowLanes<L>::load_row(values + j * t.value_stride * item, t.dtype, t.head_size, t.value_panel + j * size);
    }
    if (size != t.head_size)
      for (std::int64_t j = 0; j < count; ++j)
        memset(t.value_panel + j * size + t.head_size, 0, static_cast<std::size_t>(size - t.head_size) * sizeof(float));
    return {t.value_panel, size};
  }

  static void load_codes(const std::int8_t* codes, std::int64_t stride, const float* scales, std::int64_t scale_stride,
                         std::int64_t count, std::int64_t head_size, float* out, std::int64_t out_stride) {
    for (std::int64_t j = 0; j < count; ++j, codes += stride, out += out_stride) {
      const float scale = scales[j * scale_stride];
      std::int64_t i = 0;
      for (; i + kLanes <= head_size; i += kLanes) L::store(out + i, L::mul(L::load_codes(codes + i), L::set(scale)));
      for (; i < head_size; ++i) out[i] = static_cast<float>(codes[i]) * scale;
    }
  }

  // Turns a row's products into weights relative to their maximum. Columns that the row doesn't see become 0.
  static void weigh_row(const AttentionTile& t, float* scores, numerics::KeyRange columns, numerics::KeyRange keys,
                        float* largest, float* sum) {
    const float none = -numerics::bits_float(numerics::kInfinityBits);
    *largest = none;
    *sum = 0.0f;
    if (keys.begin >= keys.end) {
      for (std::int64_t j = columns.begin; j < columns.end; ++j) scores[j] = 0.0f;
      return;
    }
    if (t.soft_cap == 0.0f) {
      for (std::int64_t j = columns.begin; j < columns.end; j += kLanes)
        L::store(scores + j, L::mul(L::load(scores + j), L::set(t.scale)));
    } else {
      for (std::int64_t j = columns.begin; j < columns.end; j += kLanes)
        L::store(scores + j, numerics::attention_score<L>(L::load(scores + j), t.scale, t.soft_cap));
    }
    for (std::int64_t j = columns.begin; j < keys.begin; ++j) scores[j] = none;
    for (std::int64_t j = keys.end; j < columns.end; ++j) scores[j] = none;

    F most[kUnitVectors], sums[kUnitVectors];
    for (int v = 0; v < kUnitVectors; ++v) {
      most[v] = L::load(scores + columns.begin + v * kLanes);
      sums[v] = L::set(0.0f);
    }
    for (std::int64_t j = columns.begin; j < columns.end; j += kUnit)
      for (int v = 0; v < kUnitVectors; ++v) most[v] = L::at_least(L::load(scores + j + v * kLanes), most[v]);
    for (int v = 1; v < kUnitVectors; ++v) most[0] = L::at_least(most[0], most[v]);
    *largest = L::largest(most[0]);
    const F maximum = L::set(*largest);
    for (std::int64_t j = columns.begin; j < columns.end; j += kUnit)
      for (int v = 0; v < kUnitVectors; ++v) {
        const F p = numerics::exp_of_negative<L>(L::sub(L::load(scores + j + v * kLanes), maximum));
        L::store(scores + j + v * kLanes, p);
        sums[v] = L::add(sums[v], p);
      }
    alignas(64) float lanes[kUnit];
    for (int v = 0; v < kUnitVectors; ++v) L::store(lanes + v * kLanes, sums[v]);
    *sum = numerics::add_by_halves<kUnit>(lanes);
  }

  // c = a b, or c += a b: a [rows, k], b [k, columns], columns a multiple of kUnit.
  static void multiply(int rows, Operand a, Operand b, std::int64_t k, Result c, std::int64_t columns, bool add) {
    switch (rows) {
      case 1:
        return multiply_rows<1>(a, b, k, c, columns, add);
      case 2:
        return multiply_rows<2>(a, b, k, c, columns, add);
      case 3:
        return multiply_rows<3>(a, b, k, c, columns, add);
      case 4:
        return multiply_rows<4>(a, b, k, c, columns, add);
      case 5:
        return multiply_rows<5>(a, b, k, c, columns, add);
      default:
        return multiply_rows<kRows>(a, b, k, c, columns, add);
    }
  }

  template <int rows>
  static void multiply_rows(Operand a, Operand b, std::int64_t k, Result c, std::int64_t columns, bool add) {
    std::int64_t vectors = columns / kLanes;
    for (; vectors >= kVectors; vectors -= kVectors) {
      product<rows, kVectors>(a, b, k, c, add);
      b.data += kVectors * kLanes;
      c.data += kVectors * kLanes;
    }
    if constexpr (kVectors > kUnitVectors)
      for (; vectors > 0; vectors -= kUnitVectors) {
        product<rows, kUnitVectors>(a, b, k, c, add);
        b.data += kUnit;
        c.data += kUnit;
      }
  }

  template <int rows, int vectors>
  QCORE_NUMERIC void product(Operand a, Operand b, std::int64_t k, Result c, bool add) {
    F sums[rows][vectors];
    repeat<rows>([&](int r) QCORE_UNROLLED {
      repeat<vectors>(
          [&](int v) QCORE_UNROLLED { sums[r][v] = add ? L::load(c.data + r * c.stride + v * kLanes) : L::set(0.0f); });
    });
    for (std::int64_t i = 0; i < k; ++i) {
      F other[vectors];
      repeat<vectors>([&](int v) QCORE_UNROLLED { other[v] = L::load(b.data + i * b.stride + v * kLanes); });
      repeat<rows>([&](int r) QCORE_UNROLLED {
        const F factor = L::set(a.data[r * a.stride + i]);
        repeat<vectors>([&](int v) QCORE_UNROLLED { sums[r][v] = L::fma(factor, other[v], sums[r][v]); });
      });
    }
    repeat<rows>([&](int r) QCORE_UNROLLED {
      repeat<vectors>([&](int v) QCORE_UNROLLED { L::store(c.data + r * c.stride + v * kLanes, sums[r][v]); });
    });
  }
};

}  // namespace
}  // namespace qcore
