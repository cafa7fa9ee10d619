#include "formats/element.h"
#include "quantize/block_search.h"
#include "quantize/dispatch.h"
#include "quantize/pack_weight.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {

void run_quantize_reference(const QuantizeProblem& problem) {
  const TensorView& weight = problem.weight;
  const QuantizeOptions& options = problem.options;
  const PackedLayout& layout = problem.packed.layout;
  const WeightRows rows{weight};
  const int lowest = lowest_code(options), highest = numerics::code_max(options.bits);
  PackedWriter writer(problem.packed);
  const std::int64_t longest = layout.blocks() ? layout.block_length(0) * layout.taps : 0;
  parallel_for(layout.n, [&](std::int64_t row) {
    Scratch scratch;
    float* values = scratch.take<float>(longest);  // [taps][block]
    float* importance = options.importance ? scratch.take<float>(longest) : nullptr;
    for (std::int64_t p = 0; p < layout.blocks(); ++p) {
      const std::int64_t begin = layout.block_begin(p), length = layout.block_length(p);
      for (std::int64_t tap = 0; tap < layout.taps; ++tap)
        for (std::int64_t i = 0; i < length; ++i)
          values[tap * length + i] = load_float(weight.data, weight.dtype, rows.offset(row, begin + i, tap));
      for (std::int64_t i = 0; importance && i < length * layout.taps; ++i)
        importance[i] =
            load_float(options.importance->data, DType::f32, (begin + i % length) * options.importance->strides[0]);
      const auto scale = choose_block_scale({values, importance, length * layout.taps}, options);
      check_parameters(scale, row, p);
      writer.set_parameters(row, p, scale.scale, scale.offset);
      for (std::int64_t tap = 0; tap < layout.taps; ++tap)
        for (std::int64_t i = 0; i < length; ++i)
          writer.set_code(row, begin + i, tap, numerics::encode(values[tap * length + i], scale, lowest, highest));
    }
  });
}

}  // namespace qcore
