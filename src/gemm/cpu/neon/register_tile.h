#pragma once

#include <arm_neon.h>

#include "gemm/cpu/tile_integer.h"
#include "simd/vector_neon.h"

// Tiles of SDOT and USDOT for three rows and more, whose sums and totals both stay in registers.
//
// A store of a vector takes one of the pipes that multiply, and so does a copy of a register. A tile of more than three
// rows therefore goes through a panel twice, for eight columns each: seven rows have 14 registers of sums and as many
// of totals. What all sums of a row start with is written to memory from general registers and loaded for each of them.
//
// Assembly, because of the order of instructions: the four other registers serve load after load.
namespace qcore {
namespace {

// The bits of 1.5 * 2^23. As a float, their sum with an integer of up to 2^22 in magnitude is 1.5 * 2^23 more than it.
constexpr std::int32_t kFloatBits = 0x4b400000;
alignas(16) constexpr float kFloatOffsets[4] = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};

// Returns 1.5 * 2^23. Volatile, so that it takes a register only where it is used.
QCORE_NUMERIC float32x4_t float_offset() {
  float32x4_t result;
  asm volatile("ldr %q0, %1" : "=w"(result) : "m"(kFloatOffsets));
  return result;
}

// An operand of assembly that reads a row, which the compiler must not move before stores to it.
using RowMemory = char[1 << 30];

// Dot is as of IntegerTile, and has
//   multiply_two(acc, w, codes)  adds the products of two weights with four of eight codes each
// SmallSums says that sums of a block are at most 2^22 in magnitude: a subtraction then makes them floats, where a
// conversion would take four times as long.
template <class Dot, int Rows, int Vectors, int Bits, bool SmallSums>
struct RegisterBlock {
  using V = Neon;
  using Int = int32x4_t;
  using Float = float32x4_t;
  static constexpr int kVectors = Vectors;
  static constexpr int kStepBytes = Bits == 8 ? 4 : 8;  // of a row's codes
  static constexpr int kStepsTogether = Bits == 8 ? 2 : 1;
  // Whether 32 registers have room for codes of all rows beside sums, totals, two weights and a mask.
  static constexpr bool kHoldsRows = 2 * Rows * Vectors + Rows + 3 <= 32;

  QCORE_INLINE explicit RegisterBlock(const BlockTileArguments& arguments)
      : t(arguments), weight_sums(arguments.weight_sums), ahead(arguments.prefetch_distance[0]) {}

  QCORE_INLINE void add(Float (&y)[Rows][Vectors], const TileRows<Rows>& rows, const std::uint8_t* codes,
                        std::int64_t p, std::int64_t steps) {
    if (p == t.prefetch_switch_block) ahead += t.prefetch_switch_bytes;
    Int acc[Rows][Vectors];
    start(acc, rows, p);
    TileRows<Rows> x = rows;
    for (; steps >= kStepsTogether; steps -= kStepsTogether) {
      multiply(acc, codes, x);
      codes += kStepsTogether * PackedLayout::kStepBytes;
      x.at += kStepsTogether * kStepBytes;
    }
    if (steps > 0) multiply_last(acc, codes, x);
    add_terms(y, acc, rows, p);
  }

  QCORE_INLINE void next_tap() {
    if (weight_sums) weight_sums += t.weight_sums_tap;
  }

 private:
  QCORE_INLINE void start(Int (&acc)[Rows][Vectors], const TileRows<Rows>& rows, std::int64_t p) const {
    alignas(16) std::uint64_t starts[Rows][2];
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      const auto first = rows.template parameter<std::uint32_t>(r, PackedRows::kStart, t.blocks, p) +
                         (SmallSums ? static_cast<std::uint32_t>(kFloatBits) : 0u);
      const std::uint64_t two = first | static_cast<std::uint64_t>(first) << 32;
      asm volatile("stp %x1, %x1, %0" : "=Q"(starts[r]) : "r"(two));
    });
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      repeat<Vectors>([&](int v) QCORE_UNROLLED { asm volatile("ldr %q0, %1" : "=w"(acc[r][v]) : "m"(starts[r])); });
    });
  }

  QCORE_INLINE void multiply(Int (&acc)[Rows][Vectors], const std::uint8_t* codes, const TileRows<Rows>& rows) const {
    __builtin_prefetch(codes + ahead, 0, 2);
    if constexpr (Bits == 8) __builtin_prefetch(codes + PackedLayout::kStepBytes + ahead, 0, 2);
    int8x8_t x[Rows];
    if constexpr (kHoldsRows) repeat<Rows>([&](int r) QCORE_UNROLLED { load_codes(x[r], rows, r); });
    repeat<Vectors>([&](int v) QCORE_UNROLLED {
      typename Dot::Weights w[2];
      const Int first = V::load(codes + 16 * v);
      if constexpr (Bits == 4) {
        w[0] = Dot::split(V::bit_and(first, V::set1(0x0f0f0f0f)));
        w[1] = Dot::split(V::high_nibbles(first));
      } else {
        w[0] = Dot::split(first);
        w[1] = Dot::split(V::load(codes + PackedLayout::kStepBytes + 16 * v));
      }
      repeat<Rows>([&](int r) QCORE_UNROLLED {
        if constexpr (!kHoldsRows) load_codes(x[r], rows, r);
        Dot::multiply_two(acc[r][v], w, x[r]);
      });
    });
  }

  QCORE_NUMERIC void load_codes(int8x8_t& x, const TileRows<Rows>& rows, int r) {
    asm volatile("ldr %d0, [%1, %2]"
                 : "=w"(x)
                 : "r"(rows.row[r]), "r"(rows.at), "m"(*reinterpret_cast<const RowMemory*>(rows.row[r])));
  }

  // The last of an odd number of steps of 8 bits.
  QCORE_INLINE void multiply_last(Int (&acc)[Rows][Vectors], const std::uint8_t* codes,
                                  const TileRows<Rows>& rows) const {
    repeat<Vectors>([&](int v) QCORE_UNROLLED {
      const typename Dot::Weights w = Dot::split(V::load(codes + 16 * v));
      repeat<Rows>([&](int r) QCORE_UNROLLED { Dot::multiply(acc[r][v], w, rows.template values<std::int8_t>(r)); });
    });
  }

  // As IntegerBlock::add_terms(). A row's scale is loaded where it multiplies, because general registers that the
  // compiler would keep it in reach vectors by one slow pipe only.
  QCORE_INLINE void add_terms(Float (&y)[Rows][Vectors], Int (&acc)[Rows][Vectors], const TileRows<Rows>& rows,
                              std::int64_t p) const {
    repeat<Vectors>([&](int v) QCORE_UNROLLED {
      const int lane = v * V::kLanes;
      const std::int64_t at = parameters_at(t, 0, p) + lane;
      const Float scale = load_parameters<V>(t.scales, at);
      if (v == 0 && t.prefetch_parameters) prefetch_parameters(t.scales, at + t.prefetch_parameters);
      const Float offset = float_offset();
      repeat<Rows>([&](int r) QCORE_UNROLLED {
        Float product;
        asm("ldr %s0, [%2, %3, lsl #2]\n\tfmul %0.4s, %1.4s, %0.s[0]"
            : "=&w"(product)
            : "w"(scale), "r"(rows.row[r]), "r"(p), "m"(*reinterpret_cast<const RowMemory*>(rows.row[r])));
        const Float sum = SmallSums ? V::sub(V::as_float(acc[r][v]), offset) : V::to_float(acc[r][v]);
        y[r][v] = V::fma(sum, product, y[r][v]);
      });
      const auto of_row = [&](int r, PackedRows::Parameter which)
                              QCORE_UNROLLED { return V::set1(rows.template parameter<float>(r, which, t.blocks, p)); };
      if (__builtin_expect(t.offsets.data != nullptr, 0)) {
        const Float of_weight = load_parameters<V>(t.offsets, at);
        repeat<Rows>([&](int r)
                         QCORE_UNROLLED { y[r][v] = V::fma(of_row(r, PackedRows::kScaledSum), of_weight, y[r][v]); });
      }
      if (__builtin_expect(weight_sums != nullptr, 0)) {
        const Float weight_sum = V::load(weight_sums + p * PackedLayout::kPanelRows + lane);
        repeat<Rows>([&](int r)
                         QCORE_UNROLLED { y[r][v] = V::fma(of_row(r, PackedRows::kOffset), weight_sum, y[r][v]); });
      }
    });
  }

  const BlockTileArguments& t;
  const float* weight_sums;  // of the tap
  std::int64_t ahead;
};

// Calls f(t, column) for the parts of a tile of one panel that have Columns columns each, from `column` on.
template <int Columns, class F>
QCORE_INLINE void for_each_part(const BlockTileArguments& t, const F& f) {
  constexpr int kPanelRows = static_cast<int>(PackedLayout::kPanelRows);
  const auto move = [](TileParameters& from) QCORE_UNROLLED {
    if (from.data) from.data = static_cast<const char*>(from.data) + (from.half ? 2 : 4) * Columns;
  };
  BlockTileArguments part = t;
  for (int begin = 0; begin < kPanelRows; begin += Columns) {
    f(part, begin);
    part.codes += 4 * Columns;
    if (part.decoded) part.decoded = static_cast<const char*>(part.decoded) + 8 * Columns;
    part.out += Columns;
    move(part.scales);
    move(part.offsets);
    if (part.weight_sums) part.weight_sums += Columns;
    if (part.bias) part.bias += Columns;
  }
}

// Returns whether a block's sums are at most 2^22 in magnitude: codes of x are at most 2^7, those of a weight 2^Bits.
template <int Bits>
QCORE_INLINE bool has_small_sums(const BlockTileArguments& t) {
  return t.block_steps * (Bits == 8 ? 4 : 8) <= 1 << (22 - 7 - Bits);
}

template <class Dot, int Rows, int Columns, int Bits>
struct RegisterTile {
  static_assert(Dot::kMaxBlock >= kLongestBlock, "sums of a block fit in int32");

  static void run(const BlockTileArguments& t) {
    constexpr int kVectors = Columns / Neon::kLanes;
    for_each_part<Columns>(t, [](const BlockTileArguments& part, int) QCORE_UNROLLED {
      if (has_small_sums<Bits>(part))
        add_blocks<RegisterBlock<Dot, Rows, kVectors, Bits, true>, Rows>(part);
      else
        add_blocks<RegisterBlock<Dot, Rows, kVectors, Bits, false>, Rows>(part);
    });
  }
};

// std::conditional, whose header code for one instruction set does not include.
template <bool First, class A, class B>
struct Choice {
  using Type = A;
};
template <class A, class B>
struct Choice<false, A, B> {
  using Type = B;
};

// Memory decides how fast tiles of fewer rows are.
template <class Dot, int Rows, int Panels, int Bits>
using DotTile = typename Choice<(Rows < 3), IntegerTile<Neon, Dot, Rows, Panels, Bits>,
                                RegisterTile<Dot, Rows, (Rows > 3 ? 8 : 16), Bits>>::Type;

}  // namespace
}  // namespace qcore
