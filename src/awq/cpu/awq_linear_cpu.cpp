#include <algorithm>

#include "awq/awq_arrays.h"
#include "awq/dispatch.h"
#include "qcore/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

constexpr std::int64_t kMinColumns = 128, kMaxColumns = 1024;

}  // namespace

const char* awq_linear_cpu_unsupported_reason(const AwqLinearProblem& problem) {
  if (problem.device.type != DeviceType::cpu) return "it runs on the CPU";
  if (!problem.weight.has_whole_rows()) return "it takes weights whose rows are contiguous";
  return problem.m < kAwqFewRows ? nullptr : "it takes up to 12 rows";
}

void run_awq_linear_cpu(const AwqLinearProblem& problem, const AwqKernels& kernels) {
  const AwqWeight& weight = problem.weight;
  const std::int64_t m = problem.m, k = weight.k, groups = weight.groups();
  Scratch scratch;
  float *x = scratch.take<float>(m * k), *x_sums = scratch.take<float>(m * groups);
  load_rows(problem.x, k, x);
  for (std::int64_t i = 0; i < m * groups; ++i) {
    const float* values = x + i * weight.group_size;
    x_sums[i] = 0.0f;
    for (std::int64_t j = 0; j < weight.group_size; ++j) x_sums[i] += values[j];
  }
  const std::int64_t share = round_up(ceil_div(weight.n, 4 * std::int64_t{get_num_threads()}), kMinColumns);
  const std::int64_t chunk = std::clamp(share, kMinColumns, kMaxColumns);
  parallel_for(ceil_div(weight.n, chunk), [&](std::int64_t task) {
    Scratch memory;
    const std::int64_t first = task * chunk, columns = std::min(chunk, weight.n - first);
    float *zeros = memory.take<float>(columns), *scales = memory.take<float>(columns);
    float *sums = memory.take<float>(m * columns), *totals = memory.take<float>(m * columns);
    std::fill(totals, totals + m * columns, 0.0f);
    for (std::int64_t p = 0; p < groups; ++p) {
      kernels.load_group(weight.qzeros + p * weight.qzeros_row + first / 8,
                         weight.scales + p * weight.scales_row + first, columns, zeros, scales);
      std::fill(sums, sums + m * columns, 0.0f);
      const AwqRows rows{weight.qweight + p * weight.group_size * weight.qweight_row + first / 8,
                         weight.qweight_row,
                         weight.group_size,
                         columns,
                         zeros,
                         scales};
      for (std::int64_t row = 0; row < m; row += kAwqXRows)
        kernels.add_products(rows, x + row * k + p * weight.group_size, k,
                             static_cast<int>(std::min<std::int64_t>(kAwqXRows, m - row)), sums + row * columns);
      for (std::int64_t row = 0; row < m; ++row) {
        const float value = x_sums[row * groups + p];
        float *total = totals + row * columns, *sum = sums + row * columns;
        // scale * code + offset, offset = scale * (8 - zero).
        for (std::int64_t n = 0; n < columns; ++n)
          total[n] += scales[n] * sum[n] +
                      (scales[n] * (numerics::kAwqBias + static_cast<float>(numerics::kAwqMiddle) - zeros[n])) * value;
      }
    }
    for (std::int64_t row = 0; row < m; ++row)
      for (std::int64_t n = 0; n < columns; ++n) store_result(problem, row, first + n, totals[row * columns + n]);
  });
}

}  // namespace qcore
