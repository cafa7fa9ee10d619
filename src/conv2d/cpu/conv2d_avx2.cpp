#include "conv2d/cpu/conv_avx2.h"
#include "conv2d/cpu/pack_pixels.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "conv2d/cpu/tile_float.h"
#include "conv2d/cpu/tile_integer.h"
#include "conv2d/cpu/tile_table.h"
#include "gemm/cpu/dot_avx2.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

constexpr int kMaxResults = 4, kMaxPanels = 1;

template <int R, int P>
using Int8W8 = ConvIntegerTile<Avx2, DotWords<65536>, R, P, 8>;
template <int R, int P>
using Int8W4 = ConvIntegerTile<Avx2, DotNibbles, R, P, 4>;
template <int R, int P>
using Int16W8 = ConvIntegerTile<Avx2, DotWords<256>, R, P, 8>;
template <int R, int P>
using Int16W4 = ConvIntegerTile<Avx2, DotWords<256>, R, P, 4>;
template <int R, int P>
using FloatW8 = ConvFloatTile<Avx2, R, P, 8>;
template <int R, int P>
using FloatW4 = ConvFloatTile<Avx2, R, P, 4>;

template <int R, int P>
using DepthwiseCodes = DepthwiseTile<ConvAvx2, R, P, false>;
template <int R, int P>
using DepthwiseFloats = DepthwiseTile<ConvAvx2, R, P, true>;

}  // namespace

extern const ConvKernels kConvInt8Avx2 =
    conv_kernels<Avx2, Int8W8, Int8W8, kMaxResults, kMaxPanels>(2, PackPixels<Avx2, std::int16_t>::run);

extern const ConvKernels kConvInt8W4Avx2 =
    conv_kernels<Avx2, Int8W4, Int8W4, kMaxResults, kMaxPanels>(1, PackPixels<Avx2, std::int8_t>::run);

extern const ConvKernels kConvInt16Avx2 =
    conv_kernels<Avx2, Int16W8, Int16W4, kMaxResults, kMaxPanels>(2, PackPixels<Avx2, std::int16_t>::run);

extern const ConvKernels kConvFloatAvx2 =
    conv_kernels<Avx2, FloatW8, FloatW4, kMaxResults, kMaxPanels>(4, pack_float_pixels);

extern const ConvKernels kConvDepthwiseAvx2 =
    conv_kernels<Avx2, DepthwiseCodes, DepthwiseCodes, kMaxResults, kMaxPanels>(4, Depthwise<ConvAvx2>::pack,
                                                                                Depthwise<ConvAvx2>::weights<false>);
extern const ConvKernels kConvDepthwiseFloatAvx2 =
    conv_kernels<Avx2, DepthwiseFloats, DepthwiseFloats, kMaxResults, kMaxPanels>(4, Depthwise<ConvAvx2>::pack_floats,
                                                                                  Depthwise<ConvAvx2>::weights<true>);

}  // namespace qcore
