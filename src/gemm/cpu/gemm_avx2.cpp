#include "gemm/cpu/dot_avx2.h"
#include "gemm/cpu/tile_float.h"
#include "gemm/cpu/tile_integer.h"
#include "simd/vector_avx2.h"

namespace qcore {

extern const BlockKernels kInt8Avx2 = block_kernels<IntegerTiles<Avx2, DotWords<65536>, 8, 8>, 4, 1, 4>();
extern const BlockKernels kInt8W4Avx2 = block_kernels<IntegerTiles<Avx2, DotNibbles, 4, 4>, 4, 1, 4>();
extern const BlockKernels kInt16Avx2 = block_kernels<IntegerTiles<Avx2, DotWords<256>>, 4, 1, 4>();
extern const BlockKernels kFloatAvx2 = block_kernels<FloatTiles<Avx2>, 4, 1, 4>();

}  // namespace qcore
