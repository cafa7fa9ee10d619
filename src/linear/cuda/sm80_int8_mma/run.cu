#include "gemm/cuda/sm80_int8_mma/launch.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/sm80_int8_mma/passes.cuh"
#include "linear/cuda/tile_limits.h"

namespace qcore {

const char* sm80_int8_mma_unsupported_reason(const LinearProblem& problem) {
  if (const char* reason = tile_unsupported_reason(problem, true, 80)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (layout.blocks() > 1 && layout.block_size % sm80_int8_mma::kChunk)
    return "it takes block sizes that are multiples of 32";
  return nullptr;
}

void run_sm80_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const std::int64_t enough_tiles = bounds.enough_tiles ? bounds.enough_tiles : sm80_int8_mma::Tuning::kEnoughTiles;
  sm80_int8_mma::for_each_pass(
      problem, bounds, [&](const QuantizedRows<std::int8_t>& x, std::int64_t row, const DeviceWeight& w) {
        sm80_int8_mma::run<sm80_int8_mma::GemmRows>({x, row, w, device_output(problem), enough_tiles},
                                                    static_cast<cudaStream_t>(problem.stream));
      });
}

}  // namespace qcore
