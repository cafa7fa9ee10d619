#include <arm_neon.h>

#include "gemm/cpu/tile_integer.h"
#include "simd/vector_neon.h"

// Dot products of stored weight codes with activations' codes by USDOT; what the members mean: tile_integer.h.
namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array.
struct DotBytes {
  using Code = std::int8_t;
  using Weights = int32x4_t;
  static constexpr std::int64_t kMaxBlock = 65536;
  QCORE_NUMERIC Weights split(int32x4_t codes) { return codes; }
  QCORE_NUMERIC void multiply(int32x4_t& acc, Weights w, const std::int8_t* a) {
    std::int32_t four;
    memcpy(&four, a, 4);
    asm("usdot %0.4s, %1.16b, %2.4b[0]" : "+w"(acc) : "w"(w), "w"(four));
  }
};

}  // namespace

extern const BlockKernels kInt8NeonI8mm =
    block_kernels<IntegerTiles<Neon, DotBytes, 8, 4, EncodedTile<Neon, DotBytes, 2, 1>>, 5, 1, 5>();

}  // namespace qcore
