#include "quantize/cpu/block_search_avx2.h"
#include "quantize/cpu/quantize_lanes.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

void load(const void* x, bool bfloat, std::int64_t count, float* values) { load_lanes<Avx2>(x, bfloat, count, values); }

BlockScale quantize_block(const float* values, std::int64_t count, const NearestForm& form, std::int8_t* codes) {
  return quantize_lanes<Avx2>(values, count, form, codes);
}

double encoded_error(const CodeTable& table, const EncodedValues& block, float scale, float inverse, float offset) {
  return EncodedLanes<SearchAvx2>::error(table, block, scale, inverse, offset);
}

EncodedMoments encoded_moments(const CodeTable& table, const EncodedValues& block, float inverse, float offset) {
  return EncodedLanes<SearchAvx2>::moments(table, block, inverse, offset);
}

}  // namespace

const QuantizeKernels kQuantizeAvx2{load, quantize_block, search_blocks<SearchAvx2>, {encoded_error, encoded_moments}};

}  // namespace qcore
