#pragma once

#include <algorithm>
#include <cstdint>

#include "numerics/window.h"
#include "runtime/memory.h"

namespace qcore {

// Where the rows of x lie that a product's results see through a window: pixels of images.
struct WindowRows {
  numerics::WindowAxis rows, columns;
  std::int64_t taps;                // of the weight: the window's, or several times those
  const char* first;                // pixel 0
  const char* padding;              // what padding sees
  std::int64_t image, row, column;  // from pixel to pixel, in bytes
  std::int64_t ring = 0;            // rows of all images that memory holds, one after the other; 0: all of them

  // Writes to `found` the pixels under each tap for the results [begin, end): [taps][end - begin].
  void find(std::int64_t begin, std::int64_t end, const char** found) const {
    for (std::int64_t tap = 0; tap < taps; ++tap)
      found = find(begin, end, tap / columns.kernel % rows.kernel, tap % columns.kernel, found);
  }

 private:
  // Does so for one tap; returns where the next one's begin.
  const char** find(std::int64_t begin, std::int64_t end, std::int64_t tap_row, std::int64_t tap_column,
                    const char** found) const {
    const std::int64_t step = columns.stride * column;
    // Input columns are inside the image for results [inside, outside).
    const std::int64_t shift = columns.before - tap_column * columns.dilation;
    const std::int64_t inside = shift > 0 ? ceil_div(shift, columns.stride) : 0;
    const std::int64_t outside = columns.input + shift > 0 ? ceil_div(columns.input + shift, columns.stride) : 0;
    while (begin < end) {
      const std::int64_t line = begin / columns.output, from = begin % columns.output;
      const std::int64_t to = std::min(columns.output, from + end - begin);
      const std::int64_t h = rows.at(line % rows.output, tap_row);
      const std::int64_t in = h < 0 ? to : std::clamp(inside, from, to), out = h < 0 ? to : std::clamp(outside, in, to);
      found = std::fill_n(found, in - from, padding);
      const std::int64_t number = line / rows.output;
      const std::int64_t start = ring ? (number * rows.input + h) % ring * row : number * image + h * row;
      std::int64_t pixel = start + (in * columns.stride - shift) * column;
      for (std::int64_t j = in; j < out; ++j, pixel += step) *found++ = first + pixel;
      found = std::fill_n(found, to - out, padding);
      begin += to - from;
    }
    return found;
  }
};

}  // namespace qcore
