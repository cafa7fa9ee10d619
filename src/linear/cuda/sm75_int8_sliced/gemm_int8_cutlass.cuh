#pragma once

#include <cutlass/gemm/device/gemm.h>

#include "linear/cuda/sm75_int8_sliced/gemm_int8.cuh"
#include "runtime/check.h"

namespace qcore {

template <class Architecture, class ThreadblockShape, class WarpShape, class InstructionShape, int kStages>
void run_tiles(const char* name, const Int8Gemm& gemm, cudaStream_t stream) {
  using Gemm = cutlass::gemm::device::Gemm<
      std::int8_t, cutlass::layout::RowMajor, std::int8_t, cutlass::layout::ColumnMajor, std::int32_t,
      cutlass::layout::RowMajor, std::int32_t, cutlass::arch::OpClassTensorOp, Architecture, ThreadblockShape,
      WarpShape, InstructionShape,
      cutlass::epilogue::thread::LinearCombination<std::int32_t, 4, std::int32_t, std::int32_t,
                                                   cutlass::epilogue::thread::ScaleType::Nothing>,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, kStages, 16, 16>;
  const typename Gemm::Arguments arguments{
      {gemm.m, gemm.n, gemm.k}, {gemm.a, gemm.lda}, {gemm.b, gemm.ldb}, {gemm.c, gemm.ldc}, {gemm.c, gemm.ldc}};
  Gemm op;
  cutlass::Status status = Gemm::can_implement(arguments);
  if (status == cutlass::Status::kSuccess) status = op.initialize(arguments);
  if (status == cutlass::Status::kSuccess) status = op.run(stream);
  if (status == cutlass::Status::kSuccess) return;
  cudaGetLastError();
  throw CudaError(message(name, " failed: ", cutlass::cutlassGetStatusString(status), " (M = ", gemm.m,
                          ", N = ", gemm.n, ", K = ", gemm.k, ")"));
}

// A tile is 64 deep because that is the usual block of weights, and K here is one block.
template <class Architecture, class InstructionShape, int kStages>
void run_cutlass(const char* name, const Int8Gemm& gemm, cudaStream_t stream) {
  using cutlass::gemm::GemmShape;
  if (gemm.m <= 64)
    run_tiles<Architecture, GemmShape<64, 64, 64>, GemmShape<32, 32, 64>, InstructionShape, kStages>(name, gemm,
                                                                                                     stream);
  else
    run_tiles<Architecture, GemmShape<128, 128, 64>, GemmShape<64, 64, 64>, InstructionShape, kStages>(name, gemm,
                                                                                                       stream);
}

}  // namespace qcore
