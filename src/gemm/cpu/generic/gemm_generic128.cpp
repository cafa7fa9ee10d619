#include "gemm/cpu/tile_integer.h"
#include "simd/vector_generic128.h"

// Dot products of stored weight codes with activations' codes by vectors of the compiler; what the members mean:
// tile_integer.h.
namespace qcore {
namespace {

// Both operands are words of 16 bits: weights are widened in registers, once for all rows, activations when they are
// packed.
template <int MaxBlock>
struct DotWords {
  using V = Generic128;
  using Code = std::int16_t;
  static constexpr std::int64_t kMaxBlock = MaxBlock;
  struct Weights {
    V::Int even, odd;
  };
  QCORE_NUMERIC Weights split(V::Int codes) {
    return {V::bit_and(codes, V::set1(0x00ff00ff)), V::shift_right_16(codes, 8)};
  }
  // `a` has the codes 0 2 1 3 of four, pairs for the even and for the odd bytes of a weight.
  QCORE_NUMERIC void multiply(V::Int& acc, const Weights& w, const std::int16_t* a) {
    std::int32_t pairs[2];
    memcpy(pairs, a, 8);
    acc = V::add(acc, V::multiply_pairs(w.even, V::set1(pairs[0])));
    acc = V::add(acc, V::multiply_pairs(w.odd, V::set1(pairs[1])));
  }
};

using DotCodes = DotWords<65536>;
using Int8Tiles = IntegerTiles<Generic128, DotCodes, 8, 4, EncodedTile<Generic128, DotCodes, 2, 1>>;

}  // namespace

extern const RowFunctions kRowsGeneric128 = row_functions<Generic128>();

extern const BlockKernels kInt8Generic128 = block_kernels<Int8Tiles, 4, 1, 4>(kRowsGeneric128);
extern const BlockKernels kInt16Generic128 =
    block_kernels<IntegerTiles<Generic128, DotWords<256>>, 4, 1, 4>(kRowsGeneric128);

}  // namespace qcore
