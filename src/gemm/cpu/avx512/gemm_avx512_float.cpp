#include "gemm/cpu/tile_float.h"
#include "simd/vector_avx512.h"

namespace qcore {

extern const RowFunctions kRowsAvx512 = row_functions<Avx512>();

extern const BlockKernels kFloatAvx512 = block_kernels<FloatTiles<Avx512>, 6, 6, 12>(kRowsAvx512);

}  // namespace qcore
