#include "gemm/cpu/tile_double.h"
#include "gemm/cpu/tile_float.h"
#include "simd/vector_generic128.h"

namespace qcore {

#if defined(QCORE_HAS_FMA)
extern const BlockKernels kFloatGeneric128 = block_kernels<FloatTiles<Generic128>, 4, 1, 4>(kRowsGeneric128);
#else
extern const BlockKernels kFloatGeneric128 = block_kernels<DoubleTiles<Generic128>, 4, 1, 4>(kRowsGeneric128);
#endif

}  // namespace qcore
