#include "quantize/cpu/block_search_neon.h"
#include "quantize/cpu/quantize_lanes.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

void load(const void* x, bool bfloat, std::int64_t count, float* values) { load_lanes<Neon>(x, bfloat, count, values); }

BlockScale quantize_block(const float* values, std::int64_t count, const NearestForm& form, std::int8_t* codes) {
  return quantize_lanes<Neon>(values, count, form, codes);
}

using Encoded = EncodedLanes<SearchNeon>;

}  // namespace

extern const QuantizeKernels kQuantizeNeon{
    load,
    quantize_block,
    search_blocks<SearchNeon>,
    {Encoded::run<Encoded::Errors>, Encoded::run<Encoded::Moments>, Encoded::codes}};

}  // namespace qcore
