#include "quantize/cpu/dequantize_lanes.h"
#include "simd/vector_generic128.h"

namespace qcore {
namespace {

struct Codes : Generic128 {
  QCORE_NUMERIC Int load_codes(const std::int8_t* p) { return load_bytes_signed(p); }
};

}  // namespace

extern const DequantizeKernels kDequantizeGeneric128{to_float<Codes>, to_half<Codes>, to_bfloat<Codes>};

}  // namespace qcore
