#include "gemm/cpu/dot_avx2.h"
#include "gemm/cpu/pack_rows.h"
#include "linear/cpu/tile_float.h"
#include "linear/cpu/tile_integer.h"
#include "linear/cpu/tile_table.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

constexpr int kMaxRows = 4, kMaxPanels = 1, kMaxProducts = 4;

template <int R, int P>
using Int8W8 = IntegerTile<Avx2, DotWords<65536>, R, P, 8>;
template <int R, int P>
using Int8W4 = IntegerTile<Avx2, DotNibbles, R, P, 4>;
template <int R, int P>
using Int16W8 = IntegerTile<Avx2, DotWords<256>, R, P, 8>;
template <int R, int P>
using Int16W4 = IntegerTile<Avx2, DotWords<256>, R, P, 4>;
template <int R, int P>
using FloatW8 = FloatTile<Avx2, R, P, 8>;
template <int R, int P>
using FloatW4 = FloatTile<Avx2, R, P, 4>;

}  // namespace

extern const TileKernels kInt8Avx2 =
    tile_kernels<Avx2, Int8W8, Int8W8, kMaxRows, kMaxPanels, kMaxProducts>(2, PackRows<Avx2, std::int16_t>::pack_row);
extern const TileKernels kInt8W4Avx2 =
    tile_kernels<Avx2, Int8W4, Int8W4, kMaxRows, kMaxPanels, kMaxProducts>(1, PackRows<Avx2, std::int8_t>::pack_row);
extern const TileKernels kInt16Avx2 =
    tile_kernels<Avx2, Int16W8, Int16W4, kMaxRows, kMaxPanels, kMaxProducts>(2, PackRows<Avx2, std::int16_t>::pack_row);
extern const TileKernels kFloatAvx2 =
    tile_kernels<Avx2, FloatW8, FloatW4, kMaxRows, kMaxPanels, kMaxProducts>(4, pack_float_row, decode_weights<Avx2>);

}  // namespace qcore
