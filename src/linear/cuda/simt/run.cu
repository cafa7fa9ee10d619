#include "gemm/cuda/simt.cuh"
#include "linear/cuda/kernels.h"

namespace qcore {

const char* simt_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.weight->layout.taps != 1) return "it takes weights [N, K] only";
  return nullptr;
}

void run_simt(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  run_simt(SimtProblem{problem.x,
                       problem.y,
                       problem.m,
                       1,
                       {},
                       {},
                       problem.weight,
                       problem.bias,
                       problem.compute,
                       problem.activation,
                       problem.device,
                       problem.stream},
           bounds.codes, bounds.rows);
}

}  // namespace qcore
