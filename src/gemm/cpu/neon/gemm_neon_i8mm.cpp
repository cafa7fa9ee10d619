#include <arm_neon.h>

#include "gemm/cpu/tile_integer.h"
#include "simd/vector_neon.h"

// Products of stored weight codes with activations' codes by USDOT and USMMLA.
namespace qcore {
namespace {

// tile_integer.h defines the members. They are written in assembly, because g++ 12 surrounds the intrinsic with
// register copies when accumulators are an array.
struct DotBytes {
  using Code = std::int8_t;
  using Weights = int32x4_t;
  static constexpr std::int64_t kMaxBlock = 65536;
  QCORE_NUMERIC Weights split(int32x4_t codes) { return codes; }
  QCORE_NUMERIC void multiply(int32x4_t& acc, Weights w, const std::int8_t* a) {
    std::int32_t four;
    memcpy(&four, a, 4);
    asm("usdot %0.4s, %1.16b, %2.4b[0]" : "+w"(acc) : "w"(w), "w"(four));
  }
};

// A block whose sums are made of products of matrices: USMMLA multiplies eight codes of two columns with eight of two
// rows, twice the products of USDOT. Of an odd number of rows the last one makes a pair with itself.
template <int Rows, int Bits>
struct PairedBlock : IntegerBlock<Neon, DotBytes, Rows, 1, Bits> {
  using Base = IntegerBlock<Neon, DotBytes, Rows, 1, Bits>;
  static constexpr int kVectors = Base::kVectors, kPairs = (Rows + 1) / 2;
  static constexpr int kStepsTogether = Bits == 8 ? 2 : 1;  // that hold eight codes of a column

  using Base::Base;

  QCORE_INLINE void add(float32x4_t (&y)[Rows][kVectors], const TileRows<Rows>& rows, const std::uint8_t* codes,
                        std::int64_t p, std::int64_t steps) {
    if (p == this->t.prefetch_switch_block) this->ahead[0] += this->t.prefetch_switch_bytes;
    // Two columns by two rows: each register has the first column's sums of both rows, then the second's.
    int32x4_t acc[kPairs][2 * kVectors];
    repeat<kPairs>([&](int pair) QCORE_UNROLLED {
      const auto start = [&](int row) QCORE_UNROLLED {
        return vdup_n_s32(parameter<std::int32_t>(rows, row, PackedRows::kStart, p));
      };
      const int32x2_t both = vzip1_s32(start(2 * pair), start(second(pair)));
      repeat<2 * kVectors>([&](int c) QCORE_UNROLLED { acc[pair][c] = vcombine_s32(both, both); });
    });
    TileRows<Rows> x = rows;
    for (; steps >= kStepsTogether; steps -= kStepsTogether) {
      multiply<true>(acc, codes, x);
      codes += kStepsTogether * PackedLayout::kStepBytes;
      x.at += kStepsTogether * Base::kStepBytes;
    }
    if (steps > 0) multiply<false>(acc, codes, x);
    float32x4_t sums[Rows][kVectors];
    unroll<kPairs>([&](auto pair) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        const int32x4_t low = acc[pair.value][2 * v.value], high = acc[pair.value][2 * v.value + 1];
        sums[2 * pair.value][v.value] = Neon::to_float(vuzp1q_s32(low, high));
        if constexpr (2 * pair.value + 1 < Rows)
          sums[2 * pair.value + 1][v.value] = Neon::to_float(vuzp2q_s32(low, high));
      });
    });
    this->add_terms(y, sums, rows, p);
  }

 private:
  QCORE_NUMERIC int second(int pair) { return 2 * pair + 1 < Rows ? 2 * pair + 1 : 2 * pair; }

  template <class T>
  QCORE_INLINE T parameter(const TileRows<Rows>& rows, int row, PackedRows::Parameter which, std::int64_t p) const {
    return rows.template parameter<T>(row, which, this->blocks, p);
  }

  // Adds the products of two columns of eight codes with two rows of as many.
  QCORE_NUMERIC void multiply_matrices(int32x4_t& acc, int32x4_t columns, int8x16_t rows) {
    asm("usmmla %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(columns), "w"(rows));
  }

  // Adds the products of eight codes. Where a last step of 8 bits has four only, the others of the weight are zeros: x
  // has bytes behind a row's codes.
  template <bool Whole>
  QCORE_INLINE void multiply(int32x4_t (&acc)[kPairs][2 * kVectors], const std::uint8_t* codes,
                             const TileRows<Rows>& rows) const {
    repeat<Whole ? kStepsTogether : 1>([&](int step) QCORE_UNROLLED {
      __builtin_prefetch(codes + step * PackedLayout::kStepBytes + this->ahead[0], 0, 2);
    });
    int8x16_t x[kPairs];
    repeat<kPairs>([&](int pair) QCORE_UNROLLED {
      x[pair] = vcombine_s8(vld1_s8(rows.template values<std::int8_t>(2 * pair)),
                            vld1_s8(rows.template values<std::int8_t>(second(pair))));
    });
    repeat<kVectors>([&](int v) QCORE_UNROLLED {
      const std::uint8_t* from = codes + v * 4 * Neon::kLanes;
      int32x4_t first = Neon::load(from), last;  // codes 0 to 3 of four columns, and 4 to 7
      if constexpr (Bits == 4) {
        last = Neon::high_nibbles(first);
        first = Neon::bit_and(first, Neon::set1(0x0f0f0f0f));
      } else if constexpr (Whole) {
        last = Neon::load(from + PackedLayout::kStepBytes);
      } else {
        last = Neon::set1(0);
      }
      const int32x4_t low = vzip1q_s32(first, last), high = vzip2q_s32(first, last);
      repeat<kPairs>([&](int pair) QCORE_UNROLLED {
        multiply_matrices(acc[pair][2 * v], low, x[pair]);
        multiply_matrices(acc[pair][2 * v + 1], high, x[pair]);
      });
    });
  }
};

// For fewer rows the products of pairs are no more than those of USDOT.
template <int Rows, int Panels, int Bits>
struct PairedTile {
  static void run(const BlockTileArguments& t) {
    if constexpr (Rows < 4)
      IntegerTile<Neon, DotBytes, Rows, Panels, Bits>::run(t);
    else
      add_blocks<PairedBlock<Rows, Bits>, Rows>(t);
  }
};

struct PairedTiles : IntegerTiles<Neon, DotBytes, 8, 4, EncodedTile<Neon, DotBytes, 2, 1>> {
  template <int Rows, int Panels>
  using W8 = PairedTile<Rows, Panels, 8>;
  template <int Rows, int Panels>
  using W4 = PairedTile<Rows, Panels, 4>;
};

}  // namespace

extern const BlockKernels kInt8NeonI8mm = block_kernels<PairedTiles, 6, 1, 6>(kRowsNeon);

}  // namespace qcore
