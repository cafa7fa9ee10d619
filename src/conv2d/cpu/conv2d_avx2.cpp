#include "conv2d/cpu/conv_avx2.h"
#include "conv2d/cpu/pack_pixels.h"
#include "conv2d/cpu/store_row.h"
#include "conv2d/cpu/tables.h"
#include "conv2d/cpu/tile_depthwise.h"
#include "conv2d/cpu/tile_float.h"
#include "conv2d/cpu/tile_integer.h"
#include "conv2d/cpu/tile_size.h"
#include "gemm/cpu/dot_avx2.h"
#include "gemm/cpu/tile_rows.h"
#include "gemm/cpu/transpose.h"
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

extern const ConvKernels kConvInt8Avx2 = {kMaxResults,
                                          kMaxPanels,
                                          2,
                                          Rows<Avx2>::widen,
                                          Transpose<Avx2>::run,
                                          PackPixels<Avx2, std::int16_t>::run,
                                          run_conv_tile<Int8W8, Int8W8, kMaxResults, kMaxPanels>,
                                          nullptr,
                                          store_finished_row<ConvAvx2>};

extern const ConvKernels kConvInt8W4Avx2 = {kMaxResults,
                                            kMaxPanels,
                                            1,
                                            Rows<Avx2>::widen,
                                            Transpose<Avx2>::run,
                                            PackPixels<Avx2, std::int8_t>::run,
                                            run_conv_tile<Int8W4, Int8W4, kMaxResults, kMaxPanels>,
                                            nullptr,
                                            store_finished_row<ConvAvx2>};

extern const ConvKernels kConvInt16Avx2 = {kMaxResults,
                                           kMaxPanels,
                                           2,
                                           Rows<Avx2>::widen,
                                           Transpose<Avx2>::run,
                                           PackPixels<Avx2, std::int16_t>::run,
                                           run_conv_tile<Int16W8, Int16W4, kMaxResults, kMaxPanels>,
                                           nullptr,
                                           store_finished_row<ConvAvx2>};

extern const ConvKernels kConvFloatAvx2 = {kMaxResults,
                                           kMaxPanels,
                                           4,
                                           Rows<Avx2>::widen,
                                           Transpose<Avx2>::run,
                                           pack_float_pixels,
                                           run_conv_tile<FloatW8, FloatW4, kMaxResults, kMaxPanels>,
                                           nullptr,
                                           store_finished_row<ConvAvx2>};

extern const ConvKernels kConvDepthwiseAvx2 = {kMaxResults,
                                               kMaxPanels,
                                               4,
                                               Rows<Avx2>::widen,
                                               Transpose<Avx2>::run,
                                               Depthwise<ConvAvx2>::pack,
                                               run_conv_tile<DepthwiseCodes, DepthwiseCodes, kMaxResults, kMaxPanels>,
                                               Depthwise<ConvAvx2>::weights<false>,
                                               store_finished_row<ConvAvx2>};
extern const ConvKernels kConvDepthwiseFloatAvx2 = {
    kMaxResults,
    kMaxPanels,
    4,
    Rows<Avx2>::widen,
    Transpose<Avx2>::run,
    Depthwise<ConvAvx2>::pack_floats,
    run_conv_tile<DepthwiseFloats, DepthwiseFloats, kMaxResults, kMaxPanels>,
    Depthwise<ConvAvx2>::weights<true>,
    store_finished_row<ConvAvx2>};

}  // namespace qcore
