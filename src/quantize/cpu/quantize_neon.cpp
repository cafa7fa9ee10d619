#include "quantize/cpu/block_search_neon.h"
#include "quantize/cpu/quantize_lanes.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

void load(const void* x, bool bfloat, std::int64_t count, float* values) { load_lanes<Neon>(x, bfloat, count, values); }

BlockScale quantize_block(const float* values, std::int64_t count, const NearestForm& form, std::int8_t* codes) {
  return quantize_lanes<Neon>(values, count, form, codes);
}

double encoded_error(const CodeTable& table, const EncodedValues& block, float scale, float inverse, float offset) {
  return EncodedLanes<SearchNeon>::error(table, block, scale, inverse, offset);
}

EncodedMoments encoded_moments(const CodeTable& table, const EncodedValues& block, float inverse, float offset) {
  return EncodedLanes<SearchNeon>::moments(table, block, inverse, offset);
}

}  // namespace

extern const QuantizeKernels kQuantizeNeon{
    load, quantize_block, search_blocks<SearchNeon>, {encoded_error, encoded_moments}};

}  // namespace qcore
