#include <algorithm>

#include "gemm/dequantize/row_dequantizer.h"
#include "quantize/dequantize.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {

void run_dequantize_cpu(const DequantizeProblem& problem, const DequantizeKernels& kernels) {
  const PackedLayout& layout = problem.weight.layout;
  const TensorView& out = problem.out;
  if (layout.k == 0 || layout.taps == 0) return;
  const RowDequantizer rows(problem.weight, {out.data, out.dtype, out.strides[1], out.size()}, kernels);
  const std::int64_t blocks = layout.blocks(), together = rows.blocks_together();
  const std::int64_t parts = ceil_div(blocks, together);
  // The rows of a panel share the lines of their codes, which stay in the first-level cache from row to row.
  parallel_for(layout.panels() * parts, [&](std::int64_t task) {
    const std::int64_t begin = task / parts * PackedLayout::kPanelRows, first = task % parts * together;
    const std::int64_t end = std::min(layout.n, begin + PackedLayout::kPanelRows);
    Scratch scratch;
    const auto buffers = rows.buffers(std::min(blocks, together), scratch);
    for (std::int64_t row = begin; row < end; ++row)
      rows.run(row, first, std::min(blocks, first + together), buffers,
               [&](std::int64_t k, std::int64_t tap) { return WeightRows{out}.offset(row, k, tap); });
    rows.finish();
  });
}

}  // namespace qcore
