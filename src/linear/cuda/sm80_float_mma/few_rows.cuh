#pragma once

#include "linear/cuda/sm75_gemv/staged_weights.cuh"

// Up to 8 rows of fp16 or bf16 x by weights without offsets, in one launch.
namespace qcore::sm80_float_mma {

struct FewRows {
  static constexpr int kMaxRows = 8, kWarps = 16;
  static constexpr int kUnit = 8;  // values of x in 16 bytes

  DeviceWeight w;
  DeviceOutput out;
  const void* x;  // k values side by side in each row, which starts at a multiple of 16 bytes
  DType dtype;    // f16 or bf16
  int rows, k, chunks;
  std::int64_t row_at[kMaxRows], y_at[kMaxRows];  // in elements

  int x_stride, totals_at, totals_stride;  // in bytes; a stride of 0: one copy of the totals
  // Dynamic shared memory: x [rows, x_stride], the warps' totals [1 or 2, 16, rows, 32], and the weight's stages.
  gemv::StagedLayout weights;
};

// Sets all of `few`. Returns false if run_few_rows() does not take the problem.
bool few_rows(const LinearProblem& problem, const DeviceWeight& w, std::int64_t multiprocessors, FewRows& few);

// `overlap`: the device has compute capability 9.0.
void run_few_rows(const FewRows& few, bool overlap, cudaStream_t stream);

}  // namespace qcore::sm80_float_mma
