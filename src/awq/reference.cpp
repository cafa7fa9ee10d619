#include "awq/awq_arrays.h"
#include "awq/dispatch.h"
#include "formats/element.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {

void run_awq_reference(const AwqProblem& problem) {
  const AwqWeight& weight = problem.weight;
  parallel_for(weight.k, [&](std::int64_t k) {
    for (std::int64_t n = 0; n < weight.n; ++n)
      problem.out[k * problem.out_k + n * problem.out_n] =
          numerics::awq_weight(awq_code(weight, k, n), awq_zero(weight, k / weight.group_size, n),
                               awq_scale(weight, k / weight.group_size, n));
  });
}

void run_awq_linear_reference(const AwqLinearProblem& problem) {
  const AwqWeight& weight = problem.weight;
  Scratch scratch;
  float* x = scratch.take<float>(problem.m * weight.k);
  load_rows(problem.x, weight.k, x);
  parallel_for(weight.n, [&](std::int64_t n) {
    for (std::int64_t m = 0; m < problem.m; ++m) {
      float sum = 0.0f;
      for (std::int64_t p = 0; p < weight.groups(); ++p) {
        float products = 0.0f, values = 0.0f;
        for (std::int64_t k = p * weight.group_size; k < (p + 1) * weight.group_size; ++k) {
          const float value = x[m * weight.k + k];
          products =
              numerics::fma_once(value, static_cast<float>(awq_code(weight, k, n) - numerics::kAwqMiddle), products);
          values += value;
        }
        const std::uint16_t scale = awq_scale(weight, p, n);
        sum = numerics::fma_once(numerics::half_to_float(scale), products, sum);
        sum = numerics::fma_once(numerics::awq_offset(awq_zero(weight, p, n), scale), values, sum);
      }
      store_result(problem, m, n, sum);
    }
  });
}

}  // namespace qcore
