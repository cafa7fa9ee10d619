#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "linear/problem.h"
#include "runtime/cuda/cuda_device.h"

// Limits that linear's kernels on tensor cores share.
namespace qcore {

constexpr std::int64_t kMaxColumns = std::int64_t{1} << 31;
constexpr std::int64_t kMaxDepth = 1 << 28;  // 8 panels of it are counted in int, 16 bytes at a time

// Null if a kernel for int8 and int8_asym, or for float, takes the problem, apart from its blocks' length; `capability`
// is 80 for 8.0 and higher, 90 for 9.0 alone.
inline const char* tile_unsupported_reason(const LinearProblem& problem, bool integer, int capability) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  const bool int8 = problem.compute == ComputeMode::int8 || problem.compute == ComputeMode::int8_asym;
  if (integer && !int8) return "it computes int8 and int8_asym only";
  if (!integer && problem.compute != ComputeMode::floating) return "it computes float only";
  const PackedLayout& layout = problem.weight->layout;
  if (layout.taps != 1) return "it takes weights [N, K] only";
  if (const char* reason = integer ? long_block_reason(layout) : nullptr) return reason;
  if (layout.k > kMaxDepth) return "it takes K up to 2^28";
  if (layout.n > kMaxColumns) return "it takes N up to 2^31";
  const int given = compute_capability(problem.device.index);
  if (capability == 90 && given != 90) return "it needs compute capability 9.0";
  return given < capability ? "it needs compute capability 8.0" : nullptr;
}

}  // namespace qcore
