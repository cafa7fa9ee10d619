#include "conv2d/cpu/conv_avx512.h"
#include "conv2d/cpu/pack_pixels.h"
#include "conv2d/cpu/store_row.h"
#include "conv2d/cpu/tables.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "conv2d/cpu/tile_float.h"
#include "conv2d/cpu/tile_integer.h"
#include "conv2d/cpu/tile_size.h"
#include "gemm/cpu/dot_avx512vnni.h"
#include "gemm/cpu/tile_rows.h"
#include "gemm/cpu/transpose.h"
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

extern const ConvKernels kConvInt8Avx512Vnni = {kMaxResults,
                                                kMaxPanels,
                                                1,
                                                Rows<Avx512>::widen,
                                                Transpose<Avx512>::run,
                                                PackPixels<Avx512, std::int8_t>::run,
                                                run_conv_tile<Int8W8, Int8W4, kMaxResults, kMaxPanels>,
                                                nullptr,
                                                store_finished_row<ConvAvx512>};

extern const ConvKernels kConvInt16Avx512Vnni = {kMaxResults,
                                                 kMaxPanels,
                                                 2,
                                                 Rows<Avx512>::widen,
                                                 Transpose<Avx512>::run,
                                                 PackPixels<Avx512, std::int16_t>::run,
                                                 run_conv_tile<Int16W8, Int16W4, kMaxResults, kMaxPanels>,
                                                 nullptr,
                                                 store_finished_row<ConvAvx512>};

extern const ConvKernels kConvFloatAvx512 = {kMaxResults,
                                             kMaxPanels,
                                             4,
                                             Rows<Avx512>::widen,
                                             Transpose<Avx512>::run,
                                             pack_float_pixels,
                                             run_conv_tile<FloatW8, FloatW4, kMaxResults, kMaxPanels>,
                                             nullptr,
                                             store_finished_row<ConvAvx512>};

extern const ConvKernels kConvDepthwiseAvx512 = {kMaxResults,
                                                 kMaxPanels,
                                                 4,
                                                 Rows<Avx512>::widen,
                                                 Transpose<Avx512>::run,
                                                 Depthwise<ConvAvx512>::pack,
                                                 run_conv_tile<DepthwiseCodes, DepthwiseCodes, kMaxResults, kMaxPanels>,
                                                 Depthwise<ConvAvx512>::weights<false>,
                                                 store_finished_row<ConvAvx512>};
extern const ConvKernels kConvDepthwiseFloatAvx512 = {
    kMaxResults,
    kMaxPanels,
    4,
    Rows<Avx512>::widen,
    Transpose<Avx512>::run,
    Depthwise<ConvAvx512>::pack_floats,
    run_conv_tile<DepthwiseFloats, DepthwiseFloats, kMaxResults, kMaxPanels>,
    Depthwise<ConvAvx512>::weights<true>,
    store_finished_row<ConvAvx512>};

}  // namespace qcore
