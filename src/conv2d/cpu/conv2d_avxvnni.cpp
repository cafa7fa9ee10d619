#include "conv2d/cpu/conv_avx2.h"
#include "conv2d/cpu/pack_pixels.h"
#include "conv2d/cpu/tile_integer.h"
#include "conv2d/cpu/tile_table.h"
#include "gemm/cpu/dot_avxvnni.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

constexpr int kMaxResults = 4, kMaxPanels = 1;

template <int R, int P>
using Int8W8 = ConvIntegerTile<Avx2, DotBytes, R, P, 8>;
template <int R, int P>
using Int8W4 = ConvIntegerTile<Avx2, DotBytes, R, P, 4>;
template <int R, int P>
using Int16W8 = ConvIntegerTile<Avx2, DotWords, R, P, 8>;
template <int R, int P>
using Int16W4 = ConvIntegerTile<Avx2, DotWords, R, P, 4>;

}  // namespace

extern const ConvKernels kConvInt8AvxVnni =
    conv_kernels<Avx2, Int8W8, Int8W4, kMaxResults, kMaxPanels>(1, PackPixels<Avx2, std::int8_t>::run);

extern const ConvKernels kConvInt16AvxVnni =
    conv_kernels<Avx2, Int16W8, Int16W4, kMaxResults, kMaxPanels>(2, PackPixels<Avx2, std::int16_t>::run);

}  // namespace qcore
