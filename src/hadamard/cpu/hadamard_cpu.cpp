#include <algorithm>
#include <cstring>

#include "formats/element.h"
#include "hadamard/dispatch.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

constexpr std::int64_t kTaskElements = 1 << 14;  // enough work for another thread

void load_row(const RowView& x, std::int64_t at, std::int64_t count, const HadamardKernels& kernels, float* values) {
  if (x.column_stride != 1) {
    for (std::int64_t i = 0; i < count; ++i) values[i] = load_float(x.data, x.dtype, at + i * x.column_stride);
  } else if (x.dtype == DType::f32) {
    std::memcpy(values, static_cast<const float*>(x.data) + at, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    kernels.load(static_cast<const std::uint16_t*>(x.data) + at, x.dtype == DType::bf16, count, values);
  }
}

void store_row(const RowView& y, std::int64_t at, std::int64_t count, const HadamardKernels& kernels,
               const float* values) {
  void* data = const_cast<void*>(y.data);
  if (y.column_stride != 1 || y.dtype == DType::f32) {
    for (std::int64_t i = 0; i < count; ++i) store_float(data, y.dtype, at + i * y.column_stride, values[i]);
  } else {
    kernels.store(values, count, y.dtype == DType::bf16, static_cast<std::uint16_t*>(data) + at);
  }
}

}  // namespace

void run_hadamard_cpu(const HadamardProblem& problem, const HadamardKernels& kernels) {
  const RowView &x = problem.x, &y = problem.y;
  const bool in_place = y.dtype == DType::f32 && y.column_stride == 1;
  const std::int64_t together = std::max<std::int64_t>(1, kTaskElements / problem.k);
  parallel_for(ceil_div(problem.count, together), [&](std::int64_t task) {
    Scratch scratch;
    float* buffer = in_place ? nullptr : scratch.take<float>(problem.k);
    for (std::int64_t row = task * together; row < std::min(problem.count, (task + 1) * together); ++row) {
      const std::int64_t to = y.row_offset(row);
      float* values = in_place ? static_cast<float*>(const_cast<void*>(y.data)) + to : buffer;
      load_row(x, x.row_offset(row), problem.k, kernels, values);
      kernels.transform(values, problem.k, problem.block);
      if (!in_place) store_row(y, to, problem.k, kernels, values);
    }
  });
}

}  // namespace qcore
