#include "gemm/cpu/tile_bfloat.h"

namespace qcore {

extern const BlockKernels kFloatAvx512Bf16 = block_kernels<BfloatTiles, 6, 6, 12>(kRowsAvx512);

}  // namespace qcore
