#include "conv2d/cpu/conv_avx2.h"
#include "conv2d/cpu/pack_pixels.h"
#include "conv2d/cpu/store_row.h"
#include "conv2d/cpu/tables.h"
#include "conv2d/cpu/tile_integer.h"
#include "conv2d/cpu/tile_size.h"
#include "gemm/cpu/dot_avxvnni.h"
#include "gemm/cpu/tile_rows.h"
#include "gemm/cpu/transpose.h"
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

extern const ConvKernels kConvInt8AvxVnni = {kMaxResults,
                                             kMaxPanels,
                                             1,
                                             Rows<Avx2>::widen,
                                             Transpose<Avx2>::run,
                                             PackPixels<Avx2, std::int8_t>::run,
                                             run_conv_tile<Int8W8, Int8W4, kMaxResults, kMaxPanels>,
                                             nullptr,
                                             store_finished_row<ConvAvx2>};

extern const ConvKernels kConvInt16AvxVnni = {kMaxResults,
                                              kMaxPanels,
                                              2,
                                              Rows<Avx2>::widen,
                                              Transpose<Avx2>::run,
                                              PackPixels<Avx2, std::int16_t>::run,
                                              run_conv_tile<Int16W8, Int16W4, kMaxResults, kMaxPanels>,
                                              nullptr,
                                              store_finished_row<ConvAvx2>};

}  // namespace qcore
