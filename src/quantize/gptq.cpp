#include "numerics/block_scale.h"
#include "qcore/quantize.h"
#include "runtime/check.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

constexpr std::int64_t kTaskRows = 16;

template <class T>
T* element(const TensorView& view, std::int64_t i, std::int64_t j) {
  return static_cast<T*>(view.data) + i * view.strides[0] + j * view.strides[1];
}

void check_columns(const GptqColumns& columns) {
  const char* op = "gptq_columns";
  const TensorView& weights = columns.weights;
  QCORE_CHECK_VALUE(columns.bits == 8 || (columns.bits >= 2 && columns.bits <= 6), op, ": bits is ", columns.bits,
                    ", expected 2, 3, 4, 5, 6 or 8");
  check_dtype(op, "weights", weights, DType::f32);
  QCORE_CHECK_VALUE(weights.rank == 2, op, ": weights has rank ", weights.rank, ", expected [N, B]");
  check_output(op, "weights", weights);
  const std::int64_t n = weights.shape[0], b = weights.shape[1];
  const std::int64_t square[] = {b, b}, same[] = {n, b};
  check_dtype(op, "factor", columns.factor, DType::f32);
  check_shape(op, "factor", columns.factor, 2, square);
  check_dtype(op, "scales", columns.scales, DType::f32);
  QCORE_CHECK_VALUE(columns.scales.rank == 2 && columns.scales.shape[0] == n, op, ": scales has shape ",
                    shape_string(columns.scales), ", expected [", n, ", P]");
  if (columns.offsets) {
    check_dtype(op, "offsets", *columns.offsets, DType::f32);
    check_shape(op, "offsets", *columns.offsets, 2, columns.scales.shape);
  }
  check_dtype(op, "blocks", columns.blocks, DType::i64);
  check_shape(op, "blocks", columns.blocks, 1, &b);
  check_dtype(op, "codes", columns.codes, DType::i8);
  check_shape(op, "codes", columns.codes, 2, same);
  check_output(op, "codes", columns.codes);
  for (const TensorView* view : {&weights, &columns.factor, &columns.scales, &columns.blocks, &columns.codes})
    check_device(op, "an array", *view, kCpu, "every array");
  for (const TensorView* view : {&weights, &columns.factor})
    QCORE_CHECK_VALUE(view->strides[1] == 1 || b <= 1, op, ": weights or factor has columns that are ",
                      view->strides[1], " elements apart, expected contiguous rows");
  for (std::int64_t j = 0; j < b; ++j) {
    const std::int64_t block = static_cast<const std::int64_t*>(columns.blocks.data)[j * columns.blocks.strides[0]];
    QCORE_CHECK_VALUE(block >= 0 && block < columns.scales.shape[1], op, ": blocks[", j, "] is ", block,
                      ", expected 0 to ", columns.scales.shape[1] - 1);
    const float pivot = *element<const float>(columns.factor, j, j);
    QCORE_CHECK_VALUE(pivot > 0, op, ": factor[", j, ", ", j, "] is ", pivot, ", expected a number above 0");
  }
}

numerics::BlockScale block_of(const GptqColumns& columns, std::int64_t row, std::int64_t p) {
  const float scale = *element<const float>(columns.scales, row, p);
  const float inverse = 1.0f / scale;
  const float offset = columns.offsets ? *element<const float>(*columns.offsets, row, p) : 0.0f;
  return {scale, numerics::is_finite(inverse) ? inverse : 0.0f, offset};
}

// One row: each column's code, and its error spread over the columns after it. Each operation is rounded once, so the
// result does not depend on the compiler's vectors.
void run_row(const GptqColumns& columns, std::int64_t row) {
  const std::int64_t count = columns.weights.shape[1];
  const int highest = numerics::code_max(columns.bits), lowest = -highest - 1;
  float* values = element<float>(columns.weights, row, 0);
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t p = static_cast<const std::int64_t*>(columns.blocks.data)[j * columns.blocks.strides[0]];
    const numerics::BlockScale block = block_of(columns, row, p);
    const int code = numerics::encode(values[j], block, lowest, highest);
    *element<std::int8_t>(columns.codes, row, j) = static_cast<std::int8_t>(code);
    const float* factors = element<const float>(columns.factor, j, 0);
    const float error = (values[j] - numerics::decode(code, block.scale, block.offset)) / factors[j];
    values[j] = error;
    for (std::int64_t i = j + 1; i < count; ++i) values[i] -= error * factors[i];
  }
}

}  // namespace

void gptq_columns(const GptqColumns& columns) {
  check_columns(columns);
  const std::int64_t rows = columns.weights.shape[0];
  parallel_for((rows + kTaskRows - 1) / kTaskRows, [&](std::int64_t task) {
    const std::int64_t end = rows < (task + 1) * kTaskRows ? rows : (task + 1) * kTaskRows;
    for (std::int64_t row = task * kTaskRows; row < end; ++row) run_row(columns, row);
  });
}

}  // namespace qcore
