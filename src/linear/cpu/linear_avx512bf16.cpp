#include "linear/cpu/tile_bfloat.h"
#include "linear/cpu/tile_table.h"

namespace qcore {
namespace {

constexpr int kMaxRows = 6, kMaxPanels = 6, kMaxProducts = 12;

template <int R, int P>
using BfloatW8 = BfloatTile<R, P, 8>;
template <int R, int P>
using BfloatW4 = BfloatTile<R, P, 4>;

}  // namespace

extern const TileKernels kFloatAvx512Bf16 =
    tile_kernels<Avx512, BfloatW8, BfloatW4, kMaxRows, kMaxPanels, kMaxProducts>(2, pack_bfloat_row);

}  // namespace qcore
