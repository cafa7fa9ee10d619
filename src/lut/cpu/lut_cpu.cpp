#include <algorithm>
#include <cstdlib>

#include "lut/dispatch.h"
#include "lut/lut16.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

constexpr std::int64_t kTaskElements = 1 << 15;
constexpr std::int64_t kStage = 2048;  // elements that are copied together where x or y is strided, or dtypes differ
// Beyond this y does not stay in the caches, and is written past them.
constexpr std::int64_t kPastCacheBytes = 8 << 20;

LutElement element_of(DType dtype) {
  return dtype == DType::f16 ? LutElement::f16 : dtype == DType::bf16 ? LutElement::bf16 : LutElement::f32;
}

template <class Item>
void copy_strided(const void* from, std::int64_t from_stride, void* to, std::int64_t to_stride, std::int64_t count) {
  auto* source = static_cast<const Item*>(from);
  auto* target = static_cast<Item*>(to);
  for (std::int64_t i = 0; i < count; ++i) target[i * to_stride] = source[i * from_stride];
}

// Elements of `dtype`, each at its stride.
void copy_elements(DType dtype, const void* from, std::int64_t from_stride, void* to, std::int64_t to_stride,
                   std::int64_t count) {
  if (dtype == DType::f32)
    copy_strided<std::uint32_t>(from, from_stride, to, to_stride, count);
  else
    copy_strided<std::uint16_t>(from, from_stride, to, to_stride, count);
}

const char* at(const void* data, DType dtype, std::int64_t offset) {
  return static_cast<const char*>(data) + offset * item_size(dtype);
}
char* at(void* data, DType dtype, std::int64_t offset) { return static_cast<char*>(data) + offset * item_size(dtype); }

// With as many elements as there are 16-bit numbers it pays to know all results.
const std::uint16_t* all_results(const LutProblem& problem, const LutKernels& kernels) {
  constexpr std::int64_t kNumbers = 1 << 16;
  if (problem.x_dtype != problem.y_dtype || problem.x_dtype == DType::f32) return nullptr;
  const bool bfloat = problem.x_dtype == DType::bf16;
  return problem.table->lut16(bfloat, problem.size(), [&](std::uint16_t* results) {
    for (std::int64_t i = 0; i < kNumbers; ++i) results[i] = static_cast<std::uint16_t>(i);
    kernels.run(problem.table->arrays(), {results, results, kNumbers, element_of(problem.x_dtype), false});
  });
}

// One stretch of the innermost axis.
class Stretch {
 public:
  Stretch(const LutProblem& problem, const LutKernels& kernels)
      : problem_(problem),
        kernels_(kernels),
        table_(problem.table->arrays()),
        x_stride_(problem.rank ? problem.x_strides[problem.rank - 1] : 1),
        y_stride_(problem.rank ? problem.y_strides[problem.rank - 1] : 1),
        results_(all_results(problem, kernels)),
        past_cache_(problem.x != problem.y && problem.size() * item_size(problem.y_dtype) >= kPastCacheBytes) {}

  void run(LutOffsets offsets, std::int64_t count) const {
    const char* x = at(problem_.x, problem_.x_dtype, offsets.x);
    char* y = at(problem_.y, problem_.y_dtype, offsets.y);
    if (x_stride_ == 1 && y_stride_ == 1 && problem_.x_dtype == problem_.y_dtype) {
      const bool aligned =
          reinterpret_cast<std::uintptr_t>(y) % static_cast<std::uintptr_t>(item_size(problem_.y_dtype)) == 0;
      if (results_)
        take_lut16(results_, reinterpret_cast<const std::uint16_t*>(x), reinterpret_cast<std::uint16_t*>(y), count,
                   past_cache_ && aligned);
      else
        kernels_.run(table_, {x, y, count, element_of(problem_.y_dtype), past_cache_ && aligned});
      return;
    }
    for (std::int64_t done = 0; done < count; done += kStage)
      run_staged(x + done * x_stride_ * item_size(problem_.x_dtype), y + done * y_stride_ * item_size(problem_.y_dtype),
                 std::min(kStage, count - done));
  }

 private:
  void run_staged(const void* x, void* y, std::int64_t count) const {
    alignas(64) float values[kStage], elements[kStage];
    const void* source = x;
    if (x_stride_ != 1) {
      copy_elements(problem_.x_dtype, x, x_stride_, elements, 1, count);
      source = elements;
    }
    kernels_.load_row(source, element_of(problem_.x_dtype), count, values);
    kernels_.run(table_, {values, values, count, LutElement::f32, false});
    if (y_stride_ == 1) {
      kernels_.store_row(values, count, element_of(problem_.y_dtype), y);
    } else {
      kernels_.store_row(values, count, element_of(problem_.y_dtype), elements);
      copy_elements(problem_.y_dtype, elements, 1, y, y_stride_, count);
    }
  }

  const LutProblem& problem_;
  const LutKernels& kernels_;
  LutArrays table_;
  std::int64_t x_stride_, y_stride_;
  const std::uint16_t* results_;  // or null
  bool past_cache_;
};

bool is_past_cache(const LutProblem& problem, std::int64_t elements) {
  return problem.x != problem.y && elements * item_size(problem.y_dtype) >= kPastCacheBytes;
}

// Runs row_function(row) on each row, made contiguous.
template <class RowFunction>
void for_each_row(const RowProblem& problem, const RowFunction& row_function) {
  const LutProblem& rows = problem.rows;
  const std::int64_t total = rows.size(), count = problem.count;
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kTaskElements / 2 / count);
  const bool past_cache = problem.y_stride == 1 && is_past_cache(rows, total * count);
  parallel_for(ceil_div(total, rows_per_task), [&](std::int64_t task) {
    Scratch scratch;
    LutRow row{};
    row.x_element = element_of(rows.x_dtype);
    row.y_element = element_of(rows.y_dtype);
    row.count = count;
    row.values = scratch.take<float>(round_up(count, kRowPadding) + kRowPadding);
    const bool strided = problem.x_stride != 1 || problem.y_stride != 1;
    float* elements = strided ? scratch.take<float>(count) : nullptr;
    const std::int64_t end = std::min(total, (task + 1) * rows_per_task);
    for (std::int64_t r = task * rows_per_task; r < end; ++r) {
      const LutOffsets offsets = offsets_at(rows, r);
      const char* x = at(rows.x, rows.x_dtype, offsets.x);
      char* y = at(rows.y, rows.y_dtype, offsets.y);
      row.x = x;
      row.x_next = r + 1 < end && problem.x_stride == 1 ? at(rows.x, rows.x_dtype, offsets_at(rows, r + 1).x) : nullptr;
      if (problem.x_stride != 1) {
        copy_elements(rows.x_dtype, x, problem.x_stride, elements, 1, count);
        row.x = elements;
      }
      row.y = problem.y_stride == 1 ? y : static_cast<void*>(elements);
      row.past_cache =
          past_cache && reinterpret_cast<std::uintptr_t>(y) % static_cast<std::uintptr_t>(item_size(rows.y_dtype)) == 0;
      row_function(row);
      if (problem.y_stride != 1) copy_elements(rows.y_dtype, elements, 1, y, problem.y_stride, count);
    }
  });
}

}  // namespace

void run_lut_cpu(const LutProblem& problem, const LutKernels& kernels) {
  const Stretch stretch(problem, kernels);
  const std::int64_t total = problem.size(), inner = problem.rank ? problem.shape[problem.rank - 1] : 1;
  if (total <= kTaskElements / 2 && inner == total) return stretch.run({}, total);
  parallel_for(ceil_div(total, kTaskElements), [&](std::int64_t task) {
    const std::int64_t end = std::min(total, (task + 1) * kTaskElements);
    for (std::int64_t i = task * kTaskElements; i < end;) {
      const std::int64_t count = std::min(end - i, inner - i % inner);
      stretch.run(offsets_at(problem, i), count);
      i += count;
    }
  });
}

void run_softmax_cpu(const RowProblem& problem, const LutKernels& kernels) {
  const LutArrays exp = problem.first->arrays(), reciprocal = problem.second->arrays();
  for_each_row(problem, [&](const LutRow& row) { kernels.softmax_row(row, exp, reciprocal); });
}

void run_rms_norm_cpu(const RowProblem& problem, const LutKernels& kernels) {
  const LutArrays rsqrt = problem.first->arrays();
  Scratch scratch;
  float* weight = nullptr;
  if (problem.weight) {
    const std::int64_t padded = round_up(problem.count, kRowPadding) + kRowPadding;
    weight = scratch.take<float>(padded);
    float* elements = scratch.take<float>(problem.count);
    copy_elements(problem.weight_dtype, problem.weight, problem.weight_stride, elements, 1, problem.count);
    kernels.load_row(elements, element_of(problem.weight_dtype), problem.count, weight);
    std::fill(weight + problem.count, weight + padded, 0.0f);
  }
  for_each_row(problem, [&](const LutRow& row) { kernels.rms_norm_row(row, weight, problem.eps, rsqrt); });
}

}  // namespace qcore
