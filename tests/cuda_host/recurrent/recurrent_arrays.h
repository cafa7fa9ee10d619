#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "random_gru.h"
#include "recurrent/code_access.h"
#include "recurrent/cuda/persistent_plan.h"

// Arrays and comparisons that the tests of the recurrent layers' kernels share.
namespace qcore {

constexpr ShiftRounding kRoundings[] = {ShiftRounding::half_away, ShiftRounding::half_even};
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// Elements of a larger buffer, by their strides.
struct Array {
  std::vector<char> bytes;
  TensorView view;  // without data

  Array() = default;
  // Layouts: contiguous; the first two axes exchanged and gaps between rows; every third element.
  Array(DType dtype, const std::vector<std::int64_t>& shape, int layout) {
    view.dtype = dtype;
    view.rank = static_cast<int>(shape.size());
    std::int64_t stride = layout == 2 ? 3 : 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      const int at = layout == 1 && view.rank == 3 && axis < 2 ? 1 - axis : axis;
      view.shape[at] = shape[static_cast<std::size_t>(at)];
      view.strides[at] = stride;
      stride = stride * view.shape[at] + (layout == 1 ? 5 : 0);
    }
    bytes.assign(static_cast<std::size_t>((stride + 9) * item_size(dtype)), '\xcd');
  }
  bool empty() const { return bytes.empty(); }

  template <class Function>
  void fill(const Function& value) {
    for (std::int64_t i = 0; i < view.size(); ++i) {
      std::int64_t rest = i, at = 0;
      for (int axis = view.rank - 1; axis >= 0; --axis) {
        at += rest % view.shape[axis] * view.strides[axis];
        rest /= view.shape[axis];
      }
      value(bytes.data(), at);
    }
  }
};

inline void fill_random(Random& random, Array& array, const FixedFormat& format) {
  const CodeFormat codes(format);
  array.fill([&](char* data, std::int64_t at) {
    if (is_floating(array.view.dtype)) {
      float value = random.normal() * std::ldexp(1.0f, format.bits - 2 - format.exponent);
      if (random.below(50) == 0) value *= 100;  // beyond the format
      store_float(data, array.view.dtype, at, value);
    } else {
      store_centered(data, array.view.dtype, at, between(random, codes.range.lo, codes.range.hi), codes);
    }
  });
}

inline DType dtype_of(DType wanted, const FixedFormat& format) {
  return is_floating(wanted) ? wanted : code_dtype(format);
}

inline void expect_equal(const std::vector<char>& given, const std::vector<char>& expected, const std::string& what) {
  if (given == expected) return;
  for (std::size_t i = 0; i < given.size(); ++i)
    ASSERT_EQ(static_cast<int>(given[i]), static_cast<int>(expected[i])) << what << ": byte " << i;
}

// A launch for each step; one launch for all, a thread block for each row where R fits, or clusters.
inline std::vector<RecurrentCudaOptions> all_ways() {
  RecurrentCudaOptions gemm, persistent;
  persistent.persistent = true;
  RecurrentCudaOptions clusters = persistent;
  clusters.rows = false;
  return {gemm, persistent, clusters};
}

inline std::string name_of(const RecurrentCudaOptions& way) {
  return !way.persistent ? ", gemm: " : way.rows ? ", persistent: " : ", clusters: ";
}

inline std::string name_of(std::int64_t c, std::int64_t h, std::int64_t steps, std::int64_t batch, GruWidths w) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  return "T " + text(steps) + ", B " + text(batch) + ", C " + text(c) + ", H " + text(h) + ", weights " +
         text(w.weights) + ", x " + text(w.x) + ", h " + text(w.h);
}

}  // namespace qcore
