#include "conv2d/cpu/conv_avx512.h"
#include "conv2d/cpu/pack_pixels.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "conv2d/cpu/tile_float.h"
#include "conv2d/cpu/tile_integer.h"
#include "conv2d/cpu/tile_table.h"
#include "gemm/cpu/dot_avx512vnni.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

constexpr int kMaxResults = 6, kMaxPanels = 2;

template <int R, int P>
using Int8W8 = ConvIntegerTile<Avx512, DotBytes, R, P, 8>;
template <int R, int P>
using Int8W4 = ConvIntegerTile<Avx512, DotBytes, R, P, 4>;
template <int R, int P>
using Int16W8 = ConvIntegerTile<Avx512, DotWords, R, P, 8>;
template <int R, int P>
using Int16W4 = ConvIntegerTile<Avx512, DotWords, R, P, 4>;
template <int R, int P>
using FloatW8 = ConvFloatTile<Avx512, R, P, 8>;
template <int R, int P>
using FloatW4 = ConvFloatTile<Avx512, R, P, 4>;

template <int R, int P>
using DepthwiseCodes = DepthwiseTile<ConvAvx512, R, P, false>;
template <int R, int P>
using DepthwiseFloats = DepthwiseTile<ConvAvx512, R, P, true>;

}  // namespace

extern const ConvKernels kConvInt8Avx512Vnni =
    conv_kernels<Avx512, Int8W8, Int8W4, kMaxResults, kMaxPanels>(1, PackPixels<Avx512, std::int8_t>::run);

extern const ConvKernels kConvInt16Avx512Vnni =
    conv_kernels<Avx512, Int16W8, Int16W4, kMaxResults, kMaxPanels>(2, PackPixels<Avx512, std::int16_t>::run);

extern const ConvKernels kConvFloatAvx512 =
    conv_kernels<Avx512, FloatW8, FloatW4, kMaxResults, kMaxPanels>(4, pack_float_pixels);

extern const ConvKernels kConvDepthwiseAvx512 =
    conv_kernels<Avx512, DepthwiseCodes, DepthwiseCodes, kMaxResults, kMaxPanels>(
        4, Depthwise<ConvAvx512>::pack, Depthwise<ConvAvx512>::weights<false>);
extern const ConvKernels kConvDepthwiseFloatAvx512 =
    conv_kernels<Avx512, DepthwiseFloats, DepthwiseFloats, kMaxResults, kMaxPanels>(
        4, Depthwise<ConvAvx512>::pack_floats, Depthwise<ConvAvx512>::weights<true>);

}  // namespace qcore
