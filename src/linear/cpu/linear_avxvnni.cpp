#include "gemm/cpu/dot_avxvnni.h"
#include "gemm/cpu/pack_rows.h"
#include "linear/cpu/tile_integer.h"
#include "linear/cpu/tile_table.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

constexpr int kMaxRows = 5, kMaxPanels = 1, kMaxProducts = 5;

template <int R, int P>
using Int8W8 = IntegerTile<Avx2, DotBytes, R, P, 8>;
template <int R, int P>
using Int8W4 = IntegerTile<Avx2, DotBytes, R, P, 4>;
template <int R, int P>
using Int16W8 = IntegerTile<Avx2, DotWords, R, P, 8>;
template <int R, int P>
using Int16W4 = IntegerTile<Avx2, DotWords, R, P, 4>;

}  // namespace

extern const TileKernels kInt8AvxVnni =
    tile_kernels<Avx2, Int8W8, Int8W4, kMaxRows, kMaxPanels, kMaxProducts>(1, PackRows<Avx2, std::int8_t>::pack_row);
extern const TileKernels kInt16AvxVnni =
    tile_kernels<Avx2, Int16W8, Int16W4, kMaxRows, kMaxPanels, kMaxProducts>(2, PackRows<Avx2, std::int16_t>::pack_row);

}  // namespace qcore
