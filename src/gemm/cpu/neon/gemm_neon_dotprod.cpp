#include <arm_neon.h>

#include "gemm/cpu/neon/register_tile.h"
#include "simd/vector_neon.h"

// Dot products of stored weight codes with activations' codes by SDOT; what the members mean: tile_integer.h.
namespace qcore {
namespace {

// Assembly, because g++ 12 surrounds the intrinsic with register copies when accumulators are an array.
struct DotSmallBytes {
  using Code = std::int8_t;
  using Weights = int8x16_t;
  static constexpr std::int64_t kMaxBlock = 65536;
  QCORE_NUMERIC Weights split(int32x4_t codes) { return vreinterpretq_s8_s32(codes); }
  QCORE_NUMERIC void multiply(int32x4_t& acc, Weights w, const std::int8_t* a) {
    std::int32_t four;
    memcpy(&four, a, 4);
    asm("sdot %0.4s, %1.16b, %2.4b[0]" : "+w"(acc) : "w"(w), "w"(four));
  }
  QCORE_NUMERIC void multiply_two(int32x4_t& acc, const Weights (&w)[2], int8x8_t codes) {
    asm("sdot %0.4s, %1.16b, %2.4b[0]" : "+w"(acc) : "w"(w[0]), "w"(codes));
    asm("sdot %0.4s, %1.16b, %2.4b[1]" : "+w"(acc) : "w"(w[1]), "w"(codes));
  }
};

struct DotBytes : DotSmallBytes {
  QCORE_NUMERIC Weights split(int32x4_t codes) {
    return vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_s32(codes), vdupq_n_u8(0x80)));
  }
};

struct Tiles : SignedIntegerTiles<Neon, DotBytes, DotSmallBytes, 2> {
  template <int Rows, int Panels>
  using W8 = DotTile<DotBytes, Rows, Panels, 8>;
  template <int Rows, int Panels>
  using W4 = DotTile<DotSmallBytes, Rows, Panels, 4>;
};

}  // namespace

extern const BlockKernels kInt8NeonDotprod = block_kernels<Tiles, 7, 1, 7>(kRowsNeon);

}  // namespace qcore
