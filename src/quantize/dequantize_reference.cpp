#include "formats/element.h"
#include "quantize/dequantize.h"
#include "runtime/thread_pool.h"

namespace qcore {

void run_dequantize_reference(const DequantizeProblem& problem) {
  const PackedWeight& weight = problem.weight;
  const TensorView& out = problem.out;
  const PackedLayout& layout = weight.layout;
  parallel_for(layout.n, [&](std::int64_t row) {
    for (std::int64_t p = 0; p < layout.blocks(); ++p)
      for (std::int64_t k = layout.block_begin(p); k < layout.block_begin(p) + layout.block_length(p); ++k)
        for (std::int64_t tap = 0; tap < layout.taps; ++tap)
          store_float(out.data, out.dtype, WeightRows{out}.offset(row, k, tap),
                      weight.decoder(row, p).value(weight.code(row, k, tap)));
  });
}

}  // namespace qcore
