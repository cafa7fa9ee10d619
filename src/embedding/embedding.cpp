#include "qcore/embedding.h"

#include <algorithm>

#include "embedding/problem.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

void check_arguments(const TensorView& indices, const QuantizedTensor& w, const TensorView& y) {
  QCORE_CHECK_TYPE(indices.dtype == DType::i32 || indices.dtype == DType::i64, "embedding: indices has dtype ",
                   name(indices.dtype), ", expected int32 or int64");
  QCORE_CHECK_VALUE(w.taps() == 1, "embedding: weight has ", w.taps(), " taps (a convolution's), expected [N, K]");
  QCORE_CHECK_VALUE(indices.device == w.device(), "embedding: indices is on ", name(indices.device),
                    " and the weight on ", name(w.device()), ", expected the same device: weight.to(...) moves it");
  QCORE_CHECK_VALUE(indices.rank < TensorView::kMaxRank, "embedding: indices has rank ", indices.rank,
                    ", expected at most ", TensorView::kMaxRank - 1);
  check_floating("embedding", "out", y);
  check_device("embedding", "out", y, indices.device, "indices");
  std::int64_t expected[TensorView::kMaxRank];
  std::copy(indices.shape, indices.shape + indices.rank, expected);
  expected[indices.rank] = w.features();
  check_shape("embedding", "out", y, indices.rank + 1, expected);
  check_output("embedding", "out", y);
  check_disjoint("embedding", "out", y, "indices", indices);
}

void check_indices(const EmbeddingProblem& problem) {
  const std::int64_t rows = problem.weight.layout.n;
  for (std::int64_t i = 0; i < problem.count; ++i) {
    const std::int64_t index = EmbeddingProblem::index(problem.indices, problem.wide_indices, i);
    QCORE_CHECK_VALUE(index >= 0 && index < rows, "embedding: indices holds ", index, " at element ", i,
                      ", expected 0 to N - 1 = ", rows - 1);
  }
}

}  // namespace

void embedding(const TensorView& indices, const QuantizedTensor& w, const TensorView& y, void* stream) {
  check_arguments(indices, w, y);
  RowView index_rows;
  index_rows.data = indices.data;
  for (int axis = 0; axis < indices.rank; ++axis) index_rows.append(indices.shape[axis], indices.strides[axis]);
  const EmbeddingProblem problem{w.packed(),     index_rows, indices.dtype == DType::i64, row_view(y), indices.size(),
                                 indices.device, stream};
  if (indices.device == kCpu) check_indices(problem);
  if (y.size() == 0) return;
  embedding_dispatch().run(problem);
}

}  // namespace qcore
