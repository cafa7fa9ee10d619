#include <arm_neon.h>

#include "gemm/cpu/neon/paired_tile.h"
#include "gemm/cpu/neon/register_tile.h"
#include "simd/vector_neon.h"

// Products of stored weight codes with activations' codes by USDOT and USMMLA.
namespace qcore {
namespace {

// tile_integer.h defines the members. They are written in assembly, because g++ 12 surrounds the intrinsic with
// register copies when accumulators are an array.
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
  QCORE_NUMERIC void multiply_two(int32x4_t& acc, const Weights (&w)[2], int8x8_t codes) {
    asm("usdot %0.4s, %1.16b, %2.4b[0]" : "+w"(acc) : "w"(w[0]), "w"(codes));
    asm("usdot %0.4s, %1.16b, %2.4b[1]" : "+w"(acc) : "w"(w[1]), "w"(codes));
  }
};

// For fewer rows USMMLA gains nothing over USDOT: it multiplies pairs of rows.
template <int Rows, int Panels, int Bits>
using Tile = typename Choice<(Rows < 4), DotTile<DotBytes, Rows, Panels, Bits>, PairedTile<Rows, 8, Bits>>::Type;

struct Tiles : IntegerTiles<Neon, DotBytes, 8, 4, EncodedTile<Neon, DotBytes, 2, 1>> {
  template <int Rows, int Panels>
  using W8 = Tile<Rows, Panels, 8>;
  template <int Rows, int Panels>
  using W4 = Tile<Rows, Panels, 4>;
  static constexpr decltype(BlockKernels::decode) decode = decode_pairs;
};

}  // namespace

extern const BlockKernels kInt8NeonI8mm = block_kernels<Tiles, 8, 1, 8>(kRowsNeon);

}  // namespace qcore
