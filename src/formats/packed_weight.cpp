#include "formats/packed_weight.h"

#include "numerics/block_product.h"

namespace qcore {

const float* PackedWeight::weight_sums() const {
  std::call_once(sums_once_, [this] {
    auto sums = std::make_unique<float[]>(layout.taps * layout.parameter_count());
    for (std::int64_t tap = 0; tap < layout.taps; ++tap)
      for (std::int64_t row = 0; row < layout.n; ++row)
        for (std::int64_t p = 0; p < layout.blocks(); ++p) {
          std::int64_t sum = 0;
          const std::int64_t begin = layout.block_begin(p);
          for (std::int64_t k = begin; k < begin + layout.block_length(p); ++k) sum += code(row, k, tap);
          sums[tap * layout.parameter_count() + layout.parameter_index(row, p)] =
              numerics::block_weight_sum(sum, layout.block_length(p), scale(row, p), offset(row, p));
        }
    sums_ = std::move(sums);
  });
  return sums_.get();
}

}  // namespace qcore
