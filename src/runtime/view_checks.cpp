#include "runtime/view_checks.h"

#include <algorithm>

#include "runtime/check.h"

namespace qcore {
namespace {

struct ByteRange {
  const char* begin;
  const char* end;
};

ByteRange byte_range(const TensorView& view) {
  const char* base = static_cast<const char*>(view.data);
  if (view.size() == 0) return {base, base};
  std::int64_t lowest = 0, highest = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    const std::int64_t reach = (view.shape[axis] - 1) * view.strides[axis];
    (reach < 0 ? lowest : highest) += reach;
  }
  return {base + lowest * item_size(view.dtype), base + (highest + 1) * item_size(view.dtype)};
}

// Two arrays cut from the columns of one: the same largest stride, and columns that do not meet. Then their spans of
// bytes overlap although they share none.
bool are_separate_columns(const TensorView& a, const TensorView& b) {
  struct Columns {
    std::int64_t stride, begin, width;  // in bytes
  };
  const auto columns_of = [](const TensorView& view) {
    int outer = -1;
    std::int64_t width = item_size(view.dtype);
    bool backwards = false;
    for (int axis = 0; axis < view.rank; ++axis) {
      backwards = backwards || (view.shape[axis] > 1 && view.strides[axis] < 0);
      if (view.shape[axis] > 1 && (outer < 0 || view.strides[axis] > view.strides[outer])) outer = axis;
    }
    for (int axis = 0; axis < view.rank; ++axis)
      if (axis != outer) width += (view.shape[axis] - 1) * view.strides[axis] * item_size(view.dtype);
    const std::int64_t stride = outer < 0 || backwards ? 0 : view.strides[outer] * item_size(view.dtype);
    return Columns{stride, reinterpret_cast<std::int64_t>(view.data), width};
  };
  const Columns left = columns_of(a), right = columns_of(b);
  if (left.stride == 0 || left.stride != right.stride) return false;
  const std::int64_t difference = (right.begin - left.begin) % left.stride;
  const std::int64_t gap = difference < 0 ? difference + left.stride : difference;
  return gap >= left.width && gap + right.width <= left.stride;
}

// Sufficient and, for arrays that a framework makes by slicing and transposing, exact: sorted by stride, each axis
// steps beyond everything that the smaller ones reach.
bool indices_are_distinct(const TensorView& view) {
  struct Axis {
    std::int64_t stride, extent;
  } axes[TensorView::kMaxRank];
  int count = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return true;
    if (view.shape[axis] <= 1) continue;
    const Axis added{std::abs(view.strides[axis]), view.shape[axis]};
    int at = count++;
    for (; at > 0 && axes[at - 1].stride > added.stride; --at) axes[at] = axes[at - 1];
    axes[at] = added;
  }
  std::int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    if (axes[i].stride <= reach) return false;
    reach += axes[i].stride * (axes[i].extent - 1);
  }
  return true;
}

std::string shape_text(int rank, const std::int64_t* shape) {
  std::string text = "[";
  for (int axis = 0; axis < rank; ++axis) text += (axis ? ", " : "") + std::to_string(shape[axis]);
  return text + "]";
}

}  // namespace

void check_shape(const char* op, const char* argument, const TensorView& view, int rank, const std::int64_t* expected) {
  const bool same = view.rank == rank && std::equal(expected, expected + rank, view.shape);
  QCORE_CHECK_VALUE(same, op, ": ", argument, " has shape ", shape_string(view), ", expected ",
                    shape_text(rank, expected));
}

void check_dtype(const char* op, const char* argument, const TensorView& view, DType expected) {
  QCORE_CHECK_TYPE(view.dtype == expected, op, ": ", argument, " has dtype ", name(view.dtype), ", expected ",
                   name(expected));
}

void check_floating(const char* op, const char* argument, const TensorView& view) {
  QCORE_CHECK_TYPE(view.dtype == DType::f32 || view.dtype == DType::f16 || view.dtype == DType::bf16, op, ": ",
                   argument, " has dtype ", name(view.dtype), ", expected float32, float16 or bfloat16");
}

void check_device(const char* op, const char* argument, const TensorView& view, Device expected, const char* like) {
  QCORE_CHECK_VALUE(view.device == expected, op, ": ", argument, " is on ", name(view.device), ", expected ",
                    name(expected), " like ", like);
}

void check_output(const char* op, const char* argument, const TensorView& view) {
  QCORE_CHECK_VALUE(!view.read_only, op, ": ", argument, " is read-only, expected a writable array");
  QCORE_CHECK_VALUE(indices_are_distinct(view), op, ": ", argument, " with shape ", shape_string(view), " and strides ",
                    shape_text(view.rank, view.strides),
                    " has elements that share memory, expected each to have its own");
}

bool share_memory(const TensorView& a, const TensorView& b) {
  if (a.device != b.device) return false;
  const ByteRange left = byte_range(a), right = byte_range(b);
  return left.begin < right.end && right.begin < left.end && !are_separate_columns(a, b);
}

void check_disjoint(const char* op, const char* output_argument, const TensorView& output, const char* argument,
                    const TensorView& input) {
  QCORE_CHECK_VALUE(!share_memory(output, input), op, ": ", output_argument, " overlaps ", argument,
                    " in memory, expected separate arrays");
}

}  // namespace qcore
