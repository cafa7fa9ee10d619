#include "quantize/cpu/block_search_avx2.h"
#include "quantize/cpu/quantize_lanes.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

void load(const void* x, bool bfloat, std::int64_t count, float* values) { load_lanes<Avx2>(x, bfloat, count, values); }

BlockScale quantize_block(const float* values, std::int64_t count, const NearestForm& form, std::int8_t* codes) {
  return quantize_lanes<Avx2>(values, count, form, codes);
}

using Encoded = EncodedLanes<SearchAvx2>;

}  // namespace

const QuantizeKernels kQuantizeAvx2{load,
                                    quantize_block,
                                    search_blocks<SearchAvx2>,
                                    {Encoded::run<Encoded::Errors>, Encoded::run<Encoded::Moments>, Encoded::codes}};

}  // namespace qcore
