#include "gemm/cpu/dot_avx512vnni.h"
#include "gemm/cpu/tile_float.h"
#include "gemm/cpu/tile_integer.h"
#include "simd/vector_avx512.h"

namespace qcore {

extern const BlockKernels kInt8Avx512Vnni = block_kernels<IntegerTiles<Avx512, DotBytes>, 6, 6, 12>();
extern const BlockKernels kInt16Avx512Vnni = block_kernels<IntegerTiles<Avx512, DotWords>, 6, 6, 12>();
extern const BlockKernels kFloatAvx512 = block_kernels<FloatTiles<Avx512>, 6, 6, 12>();

}  // namespace qcore
