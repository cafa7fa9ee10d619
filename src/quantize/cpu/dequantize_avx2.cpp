#include "quantize/cpu/dequantize_lanes.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

struct Codes : Avx2 {
  QCORE_NUMERIC Int load_codes(const std::int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
};

}  // namespace

const DequantizeKernels kDequantizeAvx2{to_float<Codes>, to_half<Codes>, to_bfloat<Codes>};

}  // namespace qcore
