#pragma once

#include <arm_neon.h>

#include "gemm/cpu/neon/register_tile.h"

// Tiles whose sums are products of matrices: USMMLA multiplies eight codes of two columns with eight of two rows, twice
// the products of USDOT.
//
// Sums and totals have the order of the products: a register has the first column's of both rows, then the second's.
// They are sorted at a tile's end only, because to pair scales takes fewer instructions than to sort sums. Stored codes
// of a step are four of each column; to zip two steps is a fourth of a tile's work and more, so that for several tiles
// decode_pairs() does it once for all of them.
namespace qcore {
namespace {

// Makes two registers of two columns by eight codes from the stored codes of four columns at `from`.
template <int Bits, bool Whole>
QCORE_NUMERIC void zip_codes(int32x4_t& low, int32x4_t& high, const std::uint8_t* from) {
  using V = Neon;
  int32x4_t first = V::load(from), last;  // codes 0 to 3 of four columns, and 4 to 7
  if constexpr (Bits == 4) {
    last = V::high_nibbles(first);
    first = V::bit_and(first, V::set1(0x0f0f0f0f));
  } else if constexpr (Whole) {
    last = V::load(from + PackedLayout::kStepBytes);
  } else {
    last = V::set1(0);
  }
  low = vzip1q_s32(first, last);
  high = vzip2q_s32(first, last);
}

// Part of a tile: Rows rows by Columns columns. Decoded says that the weights are decode_pairs()'s. Of an odd number of
// rows the last one makes a pair with itself.
template <int Rows, int Columns, int Bits, bool SmallSums, bool Decoded>
struct PairedBlocks {
  using V = Neon;
  using Int = int32x4_t;
  using Float = float32x4_t;
  static constexpr int kSorted = Columns / V::kLanes;  // vectors of columns
  static constexpr int kVectors = 2 * kSorted;         // of two columns
  using Totals = TileTotals<Neon, Rows, kSorted>;
  static constexpr int kPairs = (Rows + 1) / 2;
  static constexpr int kStepBytes = Bits == 8 ? 4 : 8;
  static constexpr int kStepsTogether = Bits == 8 ? 2 : 1;  // that hold eight codes of a column
  static constexpr std::int64_t kWeightStep = PackedLayout::kStepBytes * (Decoded && Bits == 4 ? 2 : 1);

  QCORE_NUMERIC void run(const BlockTileArguments& t, int column) {
    Float sorted[Rows][kSorted], y[kPairs][kVectors];
    Totals::load(t, sorted);
    unroll<kPairs>([&](auto pair) QCORE_UNROLLED {
      constexpr int kFirst = 2 * pair.value, kSecond = second(pair.value);
      repeat<kSorted>([&](int v) QCORE_UNROLLED {
        y[pair.value][2 * v] = vzip1q_f32(sorted[kFirst][v], sorted[kSecond][v]);
        y[pair.value][2 * v + 1] = vzip2q_f32(sorted[kFirst][v], sorted[kSecond][v]);
      });
    });
    add_taps(t, column, y);
    unroll<kPairs>([&](auto pair) QCORE_UNROLLED {
      constexpr int kFirst = 2 * pair.value, kSecond = second(pair.value);
      repeat<kSorted>([&](int v) QCORE_UNROLLED {
        const Float low = y[pair.value][2 * v], high = y[pair.value][2 * v + 1];
        sorted[kFirst][v] = vuzp1q_f32(low, high);
        if constexpr (kSecond != kFirst) sorted[kSecond][v] = vuzp2q_f32(low, high);
      });
    });
    Totals::store(t, sorted);
  }

 private:
  // Parameters of both rows of a pair, twice.
  struct Both {
    alignas(16) std::uint64_t twice[2];
  };

  static constexpr int second(int pair) { return 2 * pair + 1 < Rows ? 2 * pair + 1 : 2 * pair; }

  // Adds the products of all taps and blocks, as add_blocks() does for other tiles.
  QCORE_NUMERIC void add_taps(const BlockTileArguments& t, int column, Float (&y)[kPairs][kVectors]) {
    const std::int64_t first_step = t.first_block * t.block_steps;
    const std::uint8_t* codes = Decoded ? static_cast<const std::uint8_t*>(t.decoded) : t.codes;
    const char* const* x = t.x;
    const float* weight_sums = t.weight_sums;
    std::int64_t ahead = t.prefetch_distance[0];
    for (std::int64_t tap = 0; tap < t.layout->taps; ++tap, x += t.tap_stride) {
      TileRows<Rows> rows;
      repeat<Rows>([&](int r) QCORE_UNROLLED { rows.row[r] = x[r] + t.x_offset; });
      rows.at = t.codes_at + first_step * kStepBytes;
      for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
        if (p == t.prefetch_switch_block) ahead += t.prefetch_switch_bytes;
        std::int64_t steps = p + 1 < t.blocks ? t.block_steps : t.last_block_steps;
        Both starts[kPairs], scales[kPairs];
        repeat<kPairs>([&](int pair) QCORE_UNROLLED {
          put(starts[pair], rows, pair, PackedRows::kStart, t.blocks, p, SmallSums ? kFloatBits : 0);
          put(scales[pair], rows, pair, PackedRows::kScale, t.blocks, p, 0);
        });
        Int acc[kPairs][kVectors];
        repeat<kPairs>([&](int pair) QCORE_UNROLLED {
          repeat<kVectors>([&](int c) QCORE_UNROLLED { acc[pair][c] = get(starts[pair]); });
        });
        for (; steps >= kStepsTogether; steps -= kStepsTogether) {
          multiply<true>(acc, codes, rows, ahead);
          codes += kStepsTogether * kWeightStep;
          rows.at += kStepsTogether * kStepBytes;
        }
        if (steps > 0) {
          multiply<false>(acc, Decoded ? codes - 4 * column : codes, rows, ahead);  // as stored: half as many bytes
          codes += kWeightStep;
          rows.at += kStepBytes;
        }
        add_terms(t, y, acc, scales, rows, p, weight_sums);
      }
      if (weight_sums) weight_sums += t.weight_sums_tap;
    }
  }

  QCORE_NUMERIC void put(Both& both, const TileRows<Rows>& rows, int pair, PackedRows::Parameter which,
                         std::int64_t blocks, std::int64_t p, std::int32_t more) {
    const auto of_row = [&](int row) QCORE_UNROLLED {
      return static_cast<std::uint32_t>(rows.template parameter<std::uint32_t>(row, which, blocks, p) +
                                        static_cast<std::uint32_t>(more));
    };
    const std::uint64_t two = of_row(2 * pair) | static_cast<std::uint64_t>(of_row(second(pair))) << 32;
    asm volatile("stp %x1, %x1, %0" : "=Q"(both) : "r"(two));
  }

  // Volatile, so that each call loads: a copy of a register would take a pipe that multiplies.
  QCORE_NUMERIC Int get(const Both& both) {
    Int result;
    asm volatile("ldr %q0, %1" : "=w"(result) : "m"(both));
    return result;
  }

  // Adds the products of two columns of eight codes with two rows of as many.
  QCORE_NUMERIC void multiply_matrices(Int& acc, Int columns, int8x16_t rows) {
    asm("usmmla %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(columns), "w"(rows));
  }

  // Adds the products of eight codes. Where a last step of 8 bits has four only, the others of the weight are zeros: x
  // has bytes behind a row's codes.
  template <bool Whole>
  QCORE_NUMERIC void multiply(Int (&acc)[kPairs][kVectors], const std::uint8_t* codes, const TileRows<Rows>& rows,
                              std::int64_t ahead) {
    if constexpr (Decoded && Whole) {
      int8x16_t x[kPairs];
      repeat<kPairs>([&](int pair) QCORE_UNROLLED { x[pair] = codes_of(rows, pair); });
      repeat<kVectors>([&](int c) QCORE_UNROLLED {
        const Int w = V::load(codes + c * 4 * V::kLanes);
        repeat<kPairs>([&](int pair) QCORE_UNROLLED { multiply_matrices(acc[pair][c], w, x[pair]); });
      });
      return;
    }
    repeat<Whole ? kStepsTogether : 1>(
        [&](int step) QCORE_UNROLLED { __builtin_prefetch(codes + step * PackedLayout::kStepBytes + ahead, 0, 2); });
    Int w[kVectors];
    repeat<kSorted>([&](int v)
                        QCORE_UNROLLED { zip_codes<Bits, Whole>(w[2 * v], w[2 * v + 1], codes + v * 4 * V::kLanes); });
    repeat<kPairs>([&](int pair) QCORE_UNROLLED {
      const int8x16_t x = codes_of(rows, pair);
      repeat<kVectors>([&](int c) QCORE_UNROLLED { multiply_matrices(acc[pair][c], w[c], x); });
    });
  }

  QCORE_NUMERIC int8x16_t codes_of(const TileRows<Rows>& rows, int pair) {
    return vcombine_s8(vld1_s8(rows.template values<std::int8_t>(2 * pair)),
                       vld1_s8(rows.template values<std::int8_t>(second(pair))));
  }

  // As IntegerBlock::add_terms().
  QCORE_NUMERIC void add_terms(const BlockTileArguments& t, Float (&y)[kPairs][kVectors], Int (&acc)[kPairs][kVectors],
                               const Both (&scales)[kPairs], const TileRows<Rows>& rows, std::int64_t p,
                               const float* weight_sums) {
    repeat<kSorted>([&](int v) QCORE_UNROLLED {
      const std::int64_t at = parameters_at(t, 0, p) + v * V::kLanes;
      const Float scale = load_parameters<V>(t.scales, at);
      if (v == 0 && t.prefetch_parameters) prefetch_parameters(t.scales, at + t.prefetch_parameters);
      const Float offset = float_offset();
      Float of_rows[kPairs];
      repeat<kPairs>([&](int pair) QCORE_UNROLLED { of_rows[pair] = V::as_float(get(scales[pair])); });
      repeat<2>([&](int i) QCORE_UNROLLED {
        const int c = 2 * v + i;
        const Float columns = i == 0 ? vzip1q_f32(scale, scale) : vzip2q_f32(scale, scale);
        repeat<kPairs>([&](int pair) QCORE_UNROLLED {
          const Int sum = acc[pair][c];
          const Float value = SmallSums ? V::sub(V::as_float(sum), offset) : V::to_float(sum);
          y[pair][c] = V::fma(value, V::mul(of_rows[pair], columns), y[pair][c]);
        });
      });
      const auto add = [&](PackedRows::Parameter which, Float of_columns) QCORE_UNROLLED {
        repeat<kPairs>([&](int pair) QCORE_UNROLLED {
          Both both;
          put(both, rows, pair, which, t.blocks, p, 0);
          const Float of_pair = V::as_float(get(both));
          y[pair][2 * v] = V::fma(of_pair, vzip1q_f32(of_columns, of_columns), y[pair][2 * v]);
          y[pair][2 * v + 1] = V::fma(of_pair, vzip2q_f32(of_columns, of_columns), y[pair][2 * v + 1]);
        });
      };
      if (__builtin_expect(t.offsets.data != nullptr, 0))
        add(PackedRows::kScaledSum, load_parameters<V>(t.offsets, at));
      if (__builtin_expect(weight_sums != nullptr, 0))
        add(PackedRows::kOffset, V::load(weight_sums + p * PackedLayout::kPanelRows + v * V::kLanes));
    });
  }
};

template <int Rows, int Columns, int Bits, bool Decoded>
QCORE_NUMERIC void run_paired(const BlockTileArguments& t) {
  for_each_part<Columns>(t, [](const BlockTileArguments& part, int column) QCORE_UNROLLED {
    if (has_small_sums<Bits>(part))
      PairedBlocks<Rows, Columns, Bits, true, Decoded>::run(part, column);
    else
      PairedBlocks<Rows, Columns, Bits, false, Decoded>::run(part, column);
  });
}

template <int Rows, int Columns, int Bits>
struct DecodedPairedTile {
  // Out of line, so that benchmarks/mca finds its loop by this name.
  __attribute__((noinline)) static void run(const BlockTileArguments& t) { run_paired<Rows, Columns, Bits, true>(t); }
};

template <int Rows, int Columns, int Bits>
struct PairedTile {
  static void run(const BlockTileArguments& t) {
    if (!t.decoded) return run_paired<Rows, Columns, Bits, false>(t);
    if constexpr (Rows == 8) {
      // Four rows by 16 columns take fewer loads than eight by eight.
      constexpr int kHalf = Rows / 2;
      BlockTileArguments part = t;
      DecodedPairedTile<kHalf, 16, Bits>::run(part);
      part.x += kHalf;
      part.out += kHalf * part.out_stride;
      DecodedPairedTile<kHalf, 16, Bits>::run(part);
    } else {
      DecodedPairedTile<Rows, (Rows > 4 ? 8 : 16), Bits>::run(t);
    }
  }
};

// Writes the weights of a tile's blocks as DecodedPairedTile reads them: every two columns by eight codes in a row. Of
// an odd number of steps of four codes the last stays as it is.
template <int Bits>
QCORE_NUMERIC void decode_blocks(const BlockTileArguments& t, std::uint8_t* out) {
  constexpr int kStepsTogether = Bits == 8 ? 2 : 1, kVectorBytes = 16;
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::uint8_t* codes = t.codes + panel * t.panel_bytes;
    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      std::int64_t steps = p + 1 < t.blocks ? t.block_steps : t.last_block_steps;
      for (; steps >= kStepsTogether; steps -= kStepsTogether) {
        repeat<kStepsTogether>([&](int step) QCORE_UNROLLED {
          __builtin_prefetch(codes + step * PackedLayout::kStepBytes + t.prefetch_distance[0], 0, 2);
        });
        repeat<4>([&](int v) QCORE_UNROLLED {
          int32x4_t low, high;
          zip_codes<Bits, true>(low, high, codes + v * kVectorBytes);
          Neon::store(out + 2 * v * kVectorBytes, low);
          Neon::store(out + (2 * v + 1) * kVectorBytes, high);
        });
        codes += kStepsTogether * PackedLayout::kStepBytes;
        out += 8 * kVectorBytes;
      }
      if (steps > 0) {
        memcpy(out, codes, PackedLayout::kStepBytes);
        codes += PackedLayout::kStepBytes;
        out += PackedLayout::kStepBytes;
      }
    }
  }
}

static void decode_pairs(const BlockTileArguments& t, void* out) {
  if (t.layout->bits == 8)
    decode_blocks<8>(t, static_cast<std::uint8_t*>(out));
  else
    decode_blocks<4>(t, static_cast<std::uint8_t*>(out));
}

}  // namespace
}  // namespace qcore
