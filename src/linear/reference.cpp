#include "formats/compute_mode.h"
#include "formats/element.h"
#include "gemm/epilogue.h"
#include "linear/dispatch.h"
#include "numerics/activation_block.h"
#include "numerics/block_product.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

using numerics::BlockScale;

// One row of x as fp32 and, unless the activations stay float, its blocks.
struct ReferenceRow {
  const float* values;        // [K]
  const std::int32_t* codes;  // [K]
  const BlockScale* scales;   // [P]
  const std::int64_t* sums;   // [P]
};

// Each block's products are summed first, then added to the total: the error grows with the block, not with K.
float float_output(const ReferenceRow& row, const PackedWeight& w, std::int64_t n) {
  const PackedLayout& layout = w.layout;
  float y = 0.0f;
  for (std::int64_t p = 0; p < layout.blocks(); ++p) {
    const std::int64_t begin = layout.block_begin(p);
    float sum = 0.0f;
    for (std::int64_t k = begin; k < begin + layout.block_length(p); ++k)
      sum = numerics::fma_once(row.values[k], numerics::decode(w.code(n, k), w.scale(n, p), w.offset(n, p)), sum);
    y += sum;
  }
  return y;
}

float integer_output(const ReferenceRow& row, const PackedWeight& w, std::int64_t n, bool activation_offsets) {
  const PackedLayout& layout = w.layout;
  float y = 0.0f;
  for (std::int64_t p = 0; p < layout.blocks(); ++p) {
    const std::int64_t begin = layout.block_begin(p);
    std::int64_t acc = 0;
    for (std::int64_t k = begin; k < begin + layout.block_length(p); ++k)
      acc += static_cast<std::int64_t>(row.codes[k]) * w.code(n, k);
    const BlockScale& scale = row.scales[p];
    y = numerics::add_product(y, acc, scale.scale, w.scale(n, p));
    if (w.offsets) y = numerics::add_weight_offset(y, scale.scale * static_cast<float>(row.sums[p]), w.offset(n, p));
    if (activation_offsets)
      y = numerics::add_activation_offset(y, scale.offset, w.weight_sums()[layout.parameter_index(n, p)]);
  }
  return y;
}

}  // namespace

const char* reference_unsupported_reason(const LinearProblem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

void run_reference(const LinearProblem& problem) {
  const PackedWeight& w = *problem.weight;
  const PackedLayout& layout = w.layout;
  const bool integer = problem.compute != ComputeMode::floating;
  const int mode = activation_mode(problem.compute);
  if (problem.compute == ComputeMode::int8_asym) w.weight_sums();

  parallel_for(problem.m, [&](std::int64_t m) {
    Scratch scratch;
    float* values = scratch.take<float>(layout.k);
    auto* codes = scratch.take<std::int32_t>(layout.k);
    auto* scales = scratch.take<BlockScale>(layout.blocks());
    auto* sums = scratch.take<std::int64_t>(layout.blocks());
    const std::int64_t x_row = problem.x.row_offset(m);
    for (std::int64_t k = 0; k < layout.k; ++k)
      values[k] = load_float(problem.x.data, problem.x.dtype, x_row + k * problem.x.column_stride);
    for (std::int64_t p = 0; integer && p < layout.blocks(); ++p) {
      const std::int64_t begin = layout.block_begin(p), length = layout.block_length(p);
      scales[p] = numerics::activation_scale_of(values + begin, length, mode);
      sums[p] = 0;
      for (std::int64_t k = begin; k < begin + length; ++k)
        sums[p] += codes[k] = numerics::activation_code(values[k], scales[p], mode);
    }
    const ReferenceRow row{values, codes, scales, sums};
    for (std::int64_t n = 0; n < layout.n; ++n) {
      const float y =
          integer ? integer_output(row, w, n, problem.compute == ComputeMode::int8_asym) : float_output(row, w, n);
      store_result(problem, problem.y.row_offset(m) + n * problem.y.column_stride, n, y);
    }
  });
}

}  // namespace qcore
