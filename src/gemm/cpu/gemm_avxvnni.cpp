#include "gemm/cpu/dot_avxvnni.h"
#include "gemm/cpu/tile_integer.h"
#include "simd/vector_avx2.h"

namespace qcore {

extern const BlockKernels kInt8AvxVnni = block_kernels<IntegerTiles<Avx2, DotBytes>, 5, 1, 5>();
extern const BlockKernels kInt16AvxVnni = block_kernels<IntegerTiles<Avx2, DotWords>, 5, 1, 5>();

}  // namespace qcore
