#include "gemm/cpu/dot_avx512vnni.h"
#include "gemm/cpu/pack_rows.h"
#include "linear/cpu/tile_float.h"
#include "linear/cpu/tile_integer.h"
#include "linear/cpu/tile_table.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

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

extern const TileKernels kInt8Avx512Vnni = tile_kernels<Avx512, Int8W8, Int8W4, kMaxRows, kMaxPanels, kMaxProducts>(
    1, PackRows<Avx512, std::int8_t>::pack_row);
extern const TileKernels kInt16Avx512Vnni = tile_kernels<Avx512, Int16W8, Int16W4, kMaxRows, kMaxPanels, kMaxProducts>(
    2, PackRows<Avx512, std::int16_t>::pack_row);
extern const TileKernels kFloatAvx512 = tile_kernels<Avx512, FloatW8, FloatW4, kMaxRows, kMaxPanels, kMaxProducts>(
    4, pack_float_row, decode_weights<Avx512>);

}  // namespace qcore
