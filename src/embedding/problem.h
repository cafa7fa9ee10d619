#pragma once

#include "formats/packed_weight.h"
#include "formats/row_view.h"
#include "gemm/dequantize/vtable.h"
#include "qcore/tensor_view.h"
#include "runtime/kernel_table.h"

namespace qcore {

// Checked arguments of embedding().
struct EmbeddingProblem {
  const PackedWeight& weight;
  RowView indices;     // one column
  bool wide_indices;   // int64, otherwise int32
  RowView y;           // [count, K]
  std::int64_t count;  // of indices
  Device device;
  void* stream;

  QCORE_INLINE static std::int64_t index(const RowView& indices, bool wide, std::int64_t i) {
    const std::int64_t at = indices.row_offset(i);
    return wide ? static_cast<const std::int64_t*>(indices.data)[at]
                : static_cast<const std::int32_t*>(indices.data)[at];
  }
};

KernelTable<EmbeddingProblem>& embedding_dispatch();

void run_embedding_reference(const EmbeddingProblem& problem);
// Threads and strides around one instruction set's kernels of dequantize.
void run_embedding_cpu(const EmbeddingProblem& problem, const DequantizeKernels& kernels);
void run_embedding_cuda(const EmbeddingProblem& problem);

}  // namespace qcore
