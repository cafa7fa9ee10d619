#include <algorithm>
#include <atomic>

#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

constexpr std::int64_t kTaskElements = 1 << 16;

// Without a branch, so that compilers make vectors of it.
template <class Bits>
bool all_finite(const Bits* values, std::int64_t count, std::int64_t stride, Bits exponent) {
  int infinite = 0;
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) infinite |= (values[i] & exponent) == exponent;
  else
    for (std::int64_t i = 0; i < count; ++i) infinite |= (values[i * stride] & exponent) == exponent;
  return !infinite;
}

bool all_finite(const TensorView& view, std::int64_t at, std::int64_t count, std::int64_t stride) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  if (view.dtype == DType::f32)
    return all_finite(static_cast<const std::uint32_t*>(view.data) + at, count, stride, kExponent);
  const std::uint16_t exponent = view.dtype == DType::f16 ? 0x7c00 : 0x7f80;
  return all_finite(static_cast<const std::uint16_t*>(view.data) + at, count, stride, exponent);
}

// Offset of the first element of the row-th run; `axes` axes are outside a run.
std::int64_t row_offset(const TensorView& view, int axes, std::int64_t row) {
  std::int64_t offset = 0;
  for (int axis = axes - 1; axis >= 0; --axis) {
    offset += row % view.shape[axis] * view.strides[axis];
    row /= view.shape[axis];
  }
  return offset;
}

std::string index_text(const TensorView& view, std::int64_t flat) {
  std::int64_t index[TensorView::kMaxRank] = {};
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    index[axis] = flat % view.shape[axis];
    flat /= view.shape[axis];
  }
  std::string text = "[";
  for (int axis = 0; axis < view.rank; ++axis) text += (axis ? ", " : "") + std::to_string(index[axis]);
  return text + "]";
}

[[noreturn]] void throw_first(const char* op, const char* argument, const TensorView& view) {
  std::int64_t first = 0;
  while (all_finite(view, row_offset(view, view.rank, first), 1, 1)) ++first;
  throw ValueError(std::string(op) + ": " + argument + " holds a NaN or an infinity, the first at index " +
                   index_text(view, first) + ", expected finite values");
}

}  // namespace

void check_finite(const char* op, const char* argument, const TensorView& view) {
  const std::int64_t size = view.size();
  if (size == 0) return;
  int axes = view.rank;  // those outside a run of elements at one stride
  const std::int64_t stride = axes ? view.strides[axes - 1] : 1;
  std::int64_t length = 1;
  while (axes > 0 && view.strides[axes - 1] == stride * length) length *= view.shape[--axes];
  const std::int64_t parts = ceil_div(length, kTaskElements), runs = size / length * parts;
  const std::int64_t runs_per_task = std::max<std::int64_t>(1, kTaskElements / std::min(length, kTaskElements));
  std::atomic<bool> finite{true};
  parallel_for(ceil_div(runs, runs_per_task), [&](std::int64_t task) {
    const std::int64_t end = std::min(runs, (task + 1) * runs_per_task);
    for (std::int64_t run = task * runs_per_task; run < end; ++run) {
      const std::int64_t first = run % parts * kTaskElements;
      const std::int64_t at = row_offset(view, axes, run / parts) + first * stride;
      if (!all_finite(view, at, std::min(kTaskElements, length - first), stride)) finite.store(false);
    }
  });
  if (!finite.load()) throw_first(op, argument, view);
}

}  // namespace qcore
