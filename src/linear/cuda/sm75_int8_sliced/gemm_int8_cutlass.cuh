#pragma once

#include <cutlass/gemm/device/gemm.h>

#include "gemm/cuda/check_cutlass.cuh"
#include "gemm/cuda/gemm_int8.cuh"

namespace qcore {

template <class Architecture, class ThreadblockShape, class WarpShape, class InstructionShape, int kStages>
using CutlassInt8Gemm = cutlass::gemm::device::Gemm<
    std::int8_t, cutlass::layout::RowMajor, std::int8_t, cutlass::layout::ColumnMajor, std::int32_t,
    cutlass::layout::RowMajor, std::int32_t, cutlass::arch::OpClassTensorOp, Architecture, ThreadblockShape, WarpShape,
    InstructionShape,
    cutlass::epilogue::thread::LinearCombination<std::int32_t, 4, std::int32_t, std::int32_t,
                                                 cutlass::epilogue::thread::ScaleType::Nothing>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, kStages, 16, 16>;

template <class Gemm>
void run_cutlass(const char* name, const Int8Gemm& gemm, cudaStream_t stream) {
  const typename Gemm::Arguments arguments{
      {gemm.m, gemm.n, gemm.k}, {gemm.a, gemm.lda}, {gemm.b, gemm.ldb}, {gemm.c, gemm.ldc}, {gemm.c, gemm.ldc}};
  Gemm op;
  cutlass::Status status = Gemm::can_implement(arguments);
  if (status == cutlass::Status::kSuccess) status = op.initialize(arguments);
  if (status == cutlass::Status::kSuccess) status = op.run(stream);
  check_cutlass(name, gemm.m, gemm.n, gemm.k, status);
}

}  // namespace qcore
