#include "linear/pack_rows.h"
#include "linear/tile_float.h"
#include "linear/tile_integer.h"
#include "linear/tile_rows.h"
#include "linear/tile_tables.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array, and because the
// activations' operand can be broadcast from memory by the instruction itself.
struct DotBytes {
  using Code = std::int8_t;
  using Weights = __m512i;
  static constexpr std::int64_t kMaxBlock = 65536;
  struct Four {
    std::int8_t codes[4];
  };
  QCORE_NUMERIC Weights split(__m512i codes) { return codes; }
  QCORE_NUMERIC void multiply(__m512i& acc, __m512i w, const std::int8_t* a) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const Four*>(a)));
  }
};

struct DotWords {
  using Code = std::int16_t;
  static constexpr std::int64_t kMaxBlock = 256;
  struct Weights {
    __m512i even, odd;
  };
  struct Pair {
    std::int16_t codes[2];
  };
  QCORE_NUMERIC Weights split(__m512i codes) {
    return {_mm512_and_si512(codes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(codes, 8)};
  }
  QCORE_NUMERIC void multiply(__m512i& acc, const Weights& w, const std::int16_t* a) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w.even), "m"(*reinterpret_cast<const Pair*>(a)));
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w.odd), "m"(*reinterpret_cast<const Pair*>(a + 2)));
  }
};

constexpr int kMaxRows = 6, kMaxPanels = 6, kMaxProducts = 12;

template <int R, int P>
using Int8W8 = IntegerTile<Avx512, DotBytes, R, P, 8>;
template <int R, int P>
using Int8W4 = IntegerTile<Avx512, DotBytes, R, P, 4>;
template <int R, int P>
using Int16W8 = IntegerTile<Avx512, DotWords, R, P, 8>;
template <int R, int P>
using Int16W4 = IntegerTile<Avx512, DotWords, R, P, 4>;
template <int R, int P>
using FloatW8 = FloatTile<Avx512, R, P, 8>;
template <int R, int P>
using FloatW4 = FloatTile<Avx512, R, P, 4>;

}  // namespace

extern const TileKernels kInt8Avx512Vnni = {kMaxRows,
                                            kMaxPanels,
                                            kMaxProducts,
                                            1,
                                            Rows<Avx512>::widen,
                                            PackRows<Avx512, std::int8_t>::pack_row,
                                            run_tile_of_size<Int8W8, Int8W4, kMaxRows, kMaxPanels, kMaxProducts>,
                                            nullptr,
                                            Rows<Avx512>::store_row};
extern const TileKernels kInt16Avx512Vnni = {kMaxRows,
                                             kMaxPanels,
                                             kMaxProducts,
                                             2,
                                             Rows<Avx512>::widen,
                                             PackRows<Avx512, std::int16_t>::pack_row,
                                             run_tile_of_size<Int16W8, Int16W4, kMaxRows, kMaxPanels, kMaxProducts>,
                                             nullptr,
                                             Rows<Avx512>::store_row};
extern const TileKernels kFloatAvx512 = {kMaxRows,
                                         kMaxPanels,
                                         kMaxProducts,
                                         4,
                                         Rows<Avx512>::widen,
                                         pack_float_row,
                                         run_tile_of_size<FloatW8, FloatW4, kMaxRows, kMaxPanels, kMaxProducts>,
                                         decode_weights<Avx512>,
                                         Rows<Avx512>::store_row};

}  // namespace qcore
