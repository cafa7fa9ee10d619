#include "formats/element.h"
#include "hadamard/butterfly.h"
#include "hadamard/dispatch.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {

void run_hadamard_reference(const HadamardProblem& problem) {
  const RowView &x = problem.x, &y = problem.y;
  const float factor = hadamard_scale(problem.block);
  parallel_for(problem.count, [&](std::int64_t row) {
    Scratch scratch;
    float* values = scratch.take<float>(problem.block);
    for (std::int64_t begin = 0; begin < problem.k; begin += problem.block) {
      for (std::int64_t i = 0; i < problem.block; ++i)
        values[i] = load_float(x.data, x.dtype, x.row_offset(row) + (begin + i) * x.column_stride);
      hadamard_stages(values, problem.block);
      for (std::int64_t i = 0; i < problem.block; ++i)
        store_float(const_cast<void*>(y.data), y.dtype, y.row_offset(row) + (begin + i) * y.column_stride,
                    values[i] * factor);
    }
  });
}

}  // namespace qcore
