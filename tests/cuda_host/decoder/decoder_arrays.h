#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decoder/cuda/kernels.h"
#include "decoder/dispatch.h"
#include "device_arrays.h"

// Arrays of the decoder's operators, on the CPU and on the machine.
namespace qcore {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// An array of any strides: the CPU's memory, and a copy of it on the machine.
class Array {
 public:
  // Elements lie `gap` further apart along the last axis but one than they need to.
  Array(DType dtype, std::vector<std::int64_t> shape, std::int64_t gap = 0, std::int64_t last_stride = 1)
      : shape_(std::move(shape)), dtype_(dtype), strides_(shape_.size()) {
    std::int64_t stride = last_stride;
    for (int axis = static_cast<int>(shape_.size()) - 1; axis >= 0; --axis) {
      strides_[axis] = stride;
      stride = stride * shape_[axis] + (axis + 1 == static_cast<int>(shape_.size()) ? gap : 0);
    }
    bytes_.assign(static_cast<std::size_t>((shape_.empty() ? 0 : stride) * item_size(dtype)), '\x2b');
  }
  Array() = default;

  Array& fill(Random& random, float factor = 1.0f) {
    const std::int64_t count = static_cast<std::int64_t>(bytes_.size()) / item_size(dtype_);
    for (std::int64_t i = 0; i < count; ++i) {
      if (dtype_ == DType::i8)
        bytes_[static_cast<std::size_t>(i)] = static_cast<char>(random.below(255) - 127);
      else
        store_float(bytes_.data(), dtype_, i, factor * random.normal());
    }
    return *this;
  }
  Array& set(const std::vector<std::int32_t>& values) {
    std::memcpy(bytes_.data(), values.data(), values.size() * sizeof(std::int32_t));
    return *this;
  }
  void set_element(std::int64_t i, float value) { store_float(bytes_.data(), dtype_, i, value); }

  TensorView cpu() { return view(bytes_.data(), kCpu); }
  TensorView device() {
    if (!device_) device_ = std::make_unique<DeviceArray<char>>(bytes_);
    return view(device_->get(), kCuda);
  }

  // Whether the machine's bytes are those of the CPU.
  void expect_equal(const std::string& what) {
    const std::vector<char> found = device_->host();
    const std::int64_t size = item_size(dtype_);
    for (std::size_t i = 0; i < bytes_.size(); i += static_cast<std::size_t>(size)) {
      if (std::memcmp(&found[i], &bytes_[i], static_cast<std::size_t>(size)) == 0) continue;
      const auto at = static_cast<std::int64_t>(i) / size;
      if (dtype_ == DType::i8) {
        FAIL() << what << ": element " << at << " is " << int{found[i]} << ", expected " << int{bytes_[i]};
      } else {
        const float given = load_float(found.data(), dtype_, at), expected = load_float(bytes_.data(), dtype_, at);
        ASSERT_TRUE(given != given && expected != expected)
            << what << ": element " << at << " is " << given << ", expected " << expected;
      }
    }
  }

 private:
  TensorView view(void* data, Device device) const {
    TensorView view;
    if (shape_.empty()) return view;
    view.data = data;
    view.dtype = dtype_;
    view.device = device;
    view.rank = static_cast<int>(shape_.size());
    std::copy(shape_.begin(), shape_.end(), view.shape);
    std::copy(strides_.begin(), strides_.end(), view.strides);
    return view;
  }

  std::vector<std::int64_t> shape_;
  DType dtype_ = DType::f32;
  std::vector<std::int64_t> strides_;
  std::vector<char> bytes_;
  std::unique_ptr<DeviceArray<char>> device_;
};

inline RowView rows_of(const TensorView& view) {
  RowView rows;
  if (view.rank == 0) return rows;
  rows.data = view.data;
  rows.dtype = view.dtype;
  rows.column_stride = view.strides[view.rank - 1];
  for (int axis = 0; axis < view.rank - 1; ++axis) rows.append(view.shape[axis], view.strides[axis]);
  return rows;
}

struct CacheArrays {
  Array keys, values, key_scales, value_scales;

  CacheArrays(Random& random, DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t capacity,
              std::int64_t size, std::int64_t gap = 0)
      : keys(dtype, {batch, heads, capacity, size}, gap), values(dtype, {batch, heads, capacity, size}, gap) {
    keys.fill(random);
    values.fill(random);
    if (dtype != DType::i8) return;
    key_scales = Array(DType::f32, {batch, heads, capacity}, 3);
    value_scales = Array(DType::f32, {batch, heads, capacity});
    key_scales.fill(random, 0.01f);
    value_scales.fill(random, 0.01f);
  }
  KeyValueCache cpu() { return {keys.cpu(), values.cpu(), key_scales.cpu(), value_scales.cpu()}; }
  KeyValueCache device() { return {keys.device(), values.device(), key_scales.device(), value_scales.device()}; }
  void expect_equal(const std::string& what) {
    keys.expect_equal(what + ", keys");
    values.expect_equal(what + ", values");
    if (key_scales.cpu().rank == 0) return;
    key_scales.expect_equal(what + ", scales of keys");
    value_scales.expect_equal(what + ", scales of values");
  }
};

}  // namespace qcore
