#include <algorithm>

#include "awq/awq_arrays.h"
#include "awq/cuda/kernels.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kMaxGridRows = 65535;

// A thread takes the columns of one word.
__global__ void __launch_bounds__(kThreads) awq_arithmetic_kernel(const __grid_constant__ AwqProblem problem) {
  const AwqWeight& weight = problem.weight;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * numerics::kAwqColumns;
  if (first >= weight.n) return;
  for (std::int64_t k = blockIdx.y; k < weight.k; k += gridDim.y)
    for (std::int64_t n = first; n < first + numerics::kAwqColumns; ++n)
      problem.out[k * problem.out_k + n * problem.out_n] =
          numerics::awq_weight(awq_code(weight, k, n), awq_zero(weight, k / weight.group_size, n),
                               awq_scale(weight, k / weight.group_size, n));
}

}  // namespace

const char* awq_arithmetic_unsupported_reason(const AwqProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on CUDA devices";
}

void run_awq_arithmetic(const AwqProblem& problem) {
  const AwqWeight& weight = problem.weight;
  DeviceGuard guard(problem.device.index);
  const std::int64_t blocks = ceil_div(weight.n / numerics::kAwqColumns, kThreads);
  launch("awq_arithmetic", awq_arithmetic_kernel,
         {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min(kMaxGridRows, weight.k))), dim3(kThreads)},
         static_cast<cudaStream_t>(weight.stream), problem);
}

}  // namespace qcore
