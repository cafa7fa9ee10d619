#include "qcore/tensor_view.h"

#include "runtime/check.h"

namespace qcore {
namespace {

TensorView contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device,
                      bool read_only) {
  QCORE_CHECK_VALUE(shape.size() <= TensorView::kMaxRank, "TensorView: rank ", shape.size(), ", expected at most ",
                    TensorView::kMaxRank);
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.read_only = read_only;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  int axis = 0;
  for (std::int64_t extent : shape) view.shape[axis++] = extent;
  std::int64_t stride = 1;
  for (axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

}  // namespace

TensorView::TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device)
    : TensorView(contiguous(data, dtype, shape, device, false)) {}

TensorView::TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device)
    : TensorView(contiguous(const_cast<void*>(data), dtype, shape, device, true)) {}

std::int64_t TensorView::size() const {
  std::int64_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= shape[axis];
  return count;
}

bool TensorView::is_contiguous() const {
  if (size() == 0) return true;
  std::int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && strides[axis] != stride) return false;
    stride *= shape[axis];
  }
  return true;
}

std::int64_t item_size(DType dtype) {
  switch (dtype) {
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    case DType::i8:
    case DType::u8:
      return 1;
  }
  return 0;
}

const char* name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::i8:
      return "int8";
    case DType::u8:
      return "uint8";
    case DType::i16:
      return "int16";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
  }
  return "?";
}

std::string name(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::string shape_string(const TensorView& view) {
  std::string text = "[";
  for (int axis = 0; axis < view.rank; ++axis) {
    if (axis) text += ", ";
    text += std::to_string(view.shape[axis]);
  }
  return text + "]";
}

}  // namespace qcore
