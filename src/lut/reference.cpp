#include "formats/element.h"
#include "lut/dispatch.h"
#include "numerics/lanes.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using numerics::LutReduction;

template <LutReduction kReduction>
float eval(float x, const numerics::LutView& table) {
  return numerics::lut_eval<kReduction, numerics::ScalarLanes>(x, table);
}

float look_up(const LutStorage& storage, float x) {
  const LutArrays table = storage.arrays();
  switch (table.reduction) {
    case LutReduction::exp:
      return eval<LutReduction::exp>(x, table.view);
    case LutReduction::log:
      return eval<LutReduction::log>(x, table.view);
    case LutReduction::reciprocal:
      return eval<LutReduction::reciprocal>(x, table.view);
    case LutReduction::sqrt:
      return eval<LutReduction::sqrt>(x, table.view);
    case LutReduction::rsqrt:
      return eval<LutReduction::rsqrt>(x, table.view);
    case LutReduction::periodic:
      return eval<LutReduction::periodic>(x, table.view);
    default:
      return eval<LutReduction::none>(x, table.view);
  }
}

// 32 partial sums, added by halves.
float sum_of(const float* terms, std::int64_t count, bool of_squares) {
  float sums[32] = {};
  for (std::int64_t i = 0; i < count; ++i)
    sums[i % 32] = of_squares ? numerics::fma_once(terms[i], terms[i], sums[i % 32]) : sums[i % 32] + terms[i];
  for (int half = 16; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

float plain_nan(float x) { return x != x ? numerics::bits_float(numerics::kNaNBits) : x; }

template <class Row>
void for_each_row(const RowProblem& problem, const Row& row_function) {
  Scratch scratch;
  float* row = scratch.take<float>(problem.count);
  for (std::int64_t r = 0; r < problem.rows.size(); ++r) {
    const LutOffsets at = offsets_at(problem.rows, r);
    for (std::int64_t i = 0; i < problem.count; ++i)
      row[i] = load_float(problem.rows.x, problem.rows.x_dtype, at.x + i * problem.x_stride);
    row_function(row);
    for (std::int64_t i = 0; i < problem.count; ++i)
      store_float(problem.rows.y, problem.rows.y_dtype, at.y + i * problem.y_stride, plain_nan(row[i]));
  }
}

}  // namespace

void run_lut_reference(const LutProblem& problem) {
  for (std::int64_t i = 0; i < problem.size(); ++i) {
    const LutOffsets at = offsets_at(problem, i);
    const float x = load_float(problem.x, problem.x_dtype, at.x);
    store_float(problem.y, problem.y_dtype, at.y, look_up(*problem.table, x));
  }
}

void run_softmax_reference(const RowProblem& problem) {
  for_each_row(problem, [&](float* row) {
    float largest = row[0];
    for (std::int64_t i = 1; i < problem.count; ++i) largest = row[i] > largest ? row[i] : largest;
    for (std::int64_t i = 0; i < problem.count; ++i) row[i] = look_up(*problem.first, row[i] - largest);
    const float scale = look_up(*problem.second, sum_of(row, problem.count, false));
    for (std::int64_t i = 0; i < problem.count; ++i) row[i] *= scale;
  });
}

void run_rms_norm_reference(const RowProblem& problem) {
  for_each_row(problem, [&](float* row) {
    const float mean = sum_of(row, problem.count, true) / static_cast<float>(problem.count);
    const float scale = look_up(*problem.first, mean + problem.eps);
    for (std::int64_t i = 0; i < problem.count; ++i) {
      row[i] *= scale;
      if (problem.weight) row[i] *= load_float(problem.weight, problem.weight_dtype, i * problem.weight_stride);
    }
  });
}

}  // namespace qcore
