#include "gemm/cpu/tile_float.h"
#include "simd/vector_avx512.h"

namespace qcore {

extern const BlockKernels kFloatAvx512 = block_kernels<FloatTiles<Avx512>, 6, 6, 12>();

}  // namespace qcore
