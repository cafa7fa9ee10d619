#pragma once

#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <tuple>

#include "qcore/conv2d.h"

namespace qcore::bindings {

// Stride and dilation along H and W, padding at the top, left, bottom and right, groups.
using WindowTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                               std::int64_t, std::int64_t, std::int64_t>;

inline Conv2dWindow window_of(const WindowTuple& values) {
  Conv2dWindow window;
  std::tie(window.stride[0], window.stride[1], window.dilation[0], window.dilation[1], window.padding[0],
           window.padding[1], window.padding[2], window.padding[3], window.groups) = values;
  return window;
}

}  // namespace qcore::bindings
