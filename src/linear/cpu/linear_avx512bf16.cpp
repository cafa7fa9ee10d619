#include "gemm/cpu/tile_rows.h"
#include "linear/cpu/tables.h"
#include "linear/cpu/tile_bfloat.h"
#include "linear/cpu/tile_size.h"

namespace qcore {
namespace {

constexpr int kMaxRows = 6, kMaxPanels = 6, kMaxProducts = 12;

template <int R, int P>
using BfloatW8 = BfloatTile<R, P, 8>;
template <int R, int P>
using BfloatW4 = BfloatTile<R, P, 4>;

}  // namespace

extern const TileKernels kFloatAvx512Bf16 = {kMaxRows,
                                             kMaxPanels,
                                             kMaxProducts,
                                             2,
                                             Rows<Avx512>::widen,
                                             pack_bfloat_row,
                                             run_tile_of_size<BfloatW8, BfloatW4, kMaxRows, kMaxPanels, kMaxProducts>,
                                             nullptr,
                                             Rows<Avx512>::store_row};

}  // namespace qcore
