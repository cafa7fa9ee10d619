#include "qcore/grouped_linear.h"

#include <vector>

#include "gemm/product_checks.h"
#include "linear/activations.h"
#include "linear/grouped/dispatch.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

constexpr const char* kOp = "grouped_linear";

std::int64_t row_count(const TensorView& counts, std::int64_t expert) {
  const std::int64_t at = expert * counts.strides[0];
  return counts.dtype == DType::i64 ? static_cast<const std::int64_t*>(counts.data)[at]
                                    : static_cast<const std::int32_t*>(counts.data)[at];
}

void check_arguments(const TensorView& x, const QuantizedTensor& w, const TensorView& counts, const TensorView* bias,
                     const TensorView& y, const FusedActivation& activation) {
  QCORE_CHECK_VALUE(w.taps() == 1, kOp, ": weight has ", w.taps(), " taps (a convolution's), expected [E*N, K]");
  QCORE_CHECK_VALUE(x.rank == 2, kOp, ": x has shape ", shape_string(x), ", expected [M, K] with K = ", w.features());
  QCORE_CHECK_VALUE(x.shape[1] == w.features(), kOp, ": x has shape ", shape_string(x),
                    ", expected its last dimension to be K = ", w.features(), " of the weight [", w.rows(), ", ",
                    w.features(), "]");
  QCORE_CHECK_TYPE(counts.dtype == DType::i32 || counts.dtype == DType::i64, kOp, ": row_counts has dtype ",
                   name(counts.dtype), ", expected int32 or int64");
  QCORE_CHECK_VALUE(counts.rank == 1 && counts.shape[0] >= 1, kOp, ": row_counts has shape ", shape_string(counts),
                    ", expected [E] with at least one expert");
  const std::int64_t experts = counts.shape[0];
  QCORE_CHECK_VALUE(w.rows() % experts == 0, kOp, ": the weight has ", w.rows(),
                    " rows, expected E*N: a multiple of the E = ", experts, " elements of row_counts");
  check_device(kOp, "row_counts", counts, x.device, "x");
  const std::int64_t outputs = w.rows() / experts, shape[] = {x.shape[0], outputs};
  check_product(kOp, x, w, nullptr, y, shape, activation);
  check_disjoint(kOp, "out", y, "row_counts", counts);
  if (!bias) return;
  const std::int64_t bias_shape[] = {experts, outputs};
  check_floating(kOp, "bias", *bias);
  check_device(kOp, "bias", *bias, x.device, "x");
  check_shape(kOp, "bias", *bias, 2, bias_shape);
  check_disjoint(kOp, "out", y, "bias", *bias);
}

// Returns where each expert's rows end, of counts on the CPU.
std::vector<std::int64_t> ends_of(const TensorView& counts, std::int64_t rows) {
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (std::int64_t expert = 0; expert < counts.shape[0]; ++expert) {
    const std::int64_t count = row_count(counts, expert);
    QCORE_CHECK_VALUE(count >= 0, kOp, ": row_counts holds ", count, " at element ", expert, ", expected 0 or more");
    // Not by the sum, which could overflow.
    QCORE_CHECK_VALUE(count <= rows - end, kOp, ": row_counts exceeds the rows of x at element ", expert, ": ", count,
                      " after ", end, " of the experts before, expected M = ", rows, " in all");
    ends.push_back(end += count);
  }
  QCORE_CHECK_VALUE(end == rows, kOp, ": row_counts sums to ", end, ", expected the M = ", rows, " rows of x");
  return ends;
}

void run(const LinearInput& input, const QuantizedTensor& w, const TensorView& row_counts, const TensorView* bias,
         const TensorView& y, const LinearOptions& options) {
  const TensorView& x = input.x;
  check_arguments(x, w, row_counts, bias, y, options.activation);
  std::vector<std::int64_t> ends;
  if (x.device == kCpu) ends = ends_of(row_counts, x.shape[0]);
  if (y.size() == 0) return;

  GroupedLinearProblem problem;
  problem.m = x.shape[0];
  problem.x = row_view(x);
  problem.y = row_view(y);
  problem.weight = &w.packed();
  if (bias) problem.bias = *bias;
  problem.compute = input.compute;
  problem.scales = input.scales;
  problem.activation = options.activation;
  problem.device = x.device;
  problem.stream = options.stream;
  problem.experts = row_counts.shape[0];
  problem.row_counts = row_counts;
  problem.expert_ends = ends.empty() ? nullptr : ends.data();
  grouped_linear_dispatch().run(problem);
}

}  // namespace

void grouped_linear(const TensorView& x, const QuantizedTensor& w, const TensorView& row_counts, const TensorView* bias,
                    const TensorView& y, const LinearOptions& options) {
  run(linear_input(kOp, x, options), w, row_counts, bias, y, options);
}

void grouped_linear(const QuantizedActivations& x, const QuantizedTensor& w, const TensorView& row_counts,
                    const TensorView* bias, const TensorView& y, const LinearOptions& options) {
  check_disjoint(kOp, "out", y, "x.scales", x.scales);
  if (x.offsets.rank) check_disjoint(kOp, "out", y, "x.offsets", x.offsets);
  run(linear_input(kOp, x, w, options), w, row_counts, bias, y, options);
}

}  // namespace qcore
