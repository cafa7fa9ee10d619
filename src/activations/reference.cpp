#include <algorithm>

#include "activations/dispatch.h"
#include "formats/compute_mode.h"
#include "formats/element.h"
#include "numerics/activation_block.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

void store_parameter(const RowView& to, std::int64_t row, std::int64_t p, float value) {
  static_cast<float*>(const_cast<void*>(to.data))[to.row_offset(row) + p * to.column_stride] = value;
}

void quantize_row(const ActivationsProblem& problem, std::int64_t row) {
  const RowView &x = problem.x, &codes = problem.codes;
  const int mode = activation_mode(problem.mode, problem.fixed_scale != 0.0f);
  Scratch scratch;
  float* values = scratch.take<float>(problem.block_size);
  for (std::int64_t p = 0, begin = 0; begin < problem.k; ++p, begin += problem.block_size) {
    const std::int64_t length = std::min(problem.block_size, problem.k - begin);
    for (std::int64_t i = 0; i < length; ++i)
      values[i] = load_float(x.data, x.dtype, x.row_offset(row) + (begin + i) * x.column_stride);
    const auto scale = numerics::activation_scale_of(values, length, mode, problem.fixed_scale);
    const std::int64_t first = codes.row_offset(row) + begin * codes.column_stride;
    for (std::int64_t i = 0; i < length; ++i)
      store_code(const_cast<void*>(codes.data), codes.dtype, first + i * codes.column_stride,
                 numerics::activation_code(values[i], scale, mode));
    store_parameter(problem.scales, row, p, scale.scale);
    if (problem.offsets.data) store_parameter(problem.offsets, row, p, scale.offset);
  }
}

}  // namespace

void run_quantize_activations_reference(const ActivationsProblem& problem) {
  parallel_for(problem.m, [&](std::int64_t row) { quantize_row(problem, row); });
}

}  // namespace qcore
