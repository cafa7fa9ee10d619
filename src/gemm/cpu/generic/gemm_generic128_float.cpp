#include "gemm/cpu/tile_float.h"
#include "simd/vector_generic128.h"

namespace qcore {

extern const BlockKernels kFloatGeneric128 = block_kernels<FloatTiles<Generic128>, 4, 1, 4>();

}  // namespace qcore
