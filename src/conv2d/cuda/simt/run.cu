#include "conv2d/cuda/pixel_rows.cuh"
#include "gemm/cuda/simt.cuh"

namespace qcore {

const char* conv2d_simt_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.weight->layout.n >= kMaxWindowExtent) return "it takes less than 2^28 output channels";
  return window_unsupported_reason(problem.rows, problem.columns);
}

void run_conv2d_simt(const Conv2dProblem& problem, const Conv2dBounds& bounds) {
  run_simt(SimtProblem{pixel_rows(problem), result_rows(problem), problem.batch, problem.groups, problem.rows,
                       problem.columns, problem.weight, problem.bias, problem.compute, problem.activation,
                       problem.device, problem.stream},
           bounds.codes, bounds.results);
}

}  // namespace qcore
