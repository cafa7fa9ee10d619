#include "quantize/cpu/dequantize_lanes.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

struct Codes : Neon {
  QCORE_NUMERIC Int load_codes(const std::int8_t* p) {
    std::int32_t four;
    memcpy(&four, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))));
  }
};

}  // namespace

extern const DequantizeKernels kDequantizeNeon{to_float<Codes>, to_half<Codes>, to_bfloat<Codes>};

}  // namespace qcore
