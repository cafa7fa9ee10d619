#include <algorithm>

#include "embedding/problem.h"
#include "gemm/dequantize/row_dequantizer.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {

void run_embedding_cpu(const EmbeddingProblem& problem, const DequantizeKernels& kernels) {
  constexpr std::int64_t kTaskElements = 1 << 16;
  const PackedLayout& layout = problem.weight.layout;
  const RowView& y = problem.y;
  const RowDequantizer rows(problem.weight,
                            {const_cast<void*>(y.data), y.dtype, y.column_stride, problem.count * layout.k}, kernels);
  const std::int64_t blocks = layout.blocks(), run = std::min(blocks, rows.blocks_together());
  const std::int64_t together = std::max<std::int64_t>(1, kTaskElements / layout.k);
  parallel_for(ceil_div(problem.count, together), [&](std::int64_t task) {
    Scratch scratch;
    const auto buffers = rows.buffers(run, scratch);
    for (std::int64_t i = task * together; i < std::min(problem.count, (task + 1) * together); ++i) {
      const std::int64_t row = EmbeddingProblem::index(problem.indices, problem.wide_indices, i);
      const std::int64_t start = y.row_offset(i);
      for (std::int64_t first = 0; first < blocks; first += run)
        rows.run(row, first, std::min(blocks, first + run), buffers,
                 [&](std::int64_t k, std::int64_t) { return start + k * y.column_stride; });
    }
    rows.finish();
  });
}

}  // namespace qcore
