#pragma once

#include <algorithm>

#include "formats/image_view.h"
#include "gemm/cuda/window/window.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

// How depthwise convolutions are divided: a thread makes kPixels neighboring results of one or more rows, kChannels
// neighboring channels of each, a number of the kernel's.
namespace qcore::depthwise {

constexpr int kThreads = 128;
constexpr int kPixels = 2;
constexpr int kSlide = 3;  // the width of windows whose pixels are shared by neighboring results

// Divides numbers below 2^31 by one of them: with d's next power of two 2^l, ceil(2^(31 + l) / d) * n / 2^(31 + l) is
// too large by less than 1 / d.
struct Divisor {
  std::uint32_t factor;
  int shift;

  Divisor() = default;
  explicit Divisor(int d) : shift(31) {
    while (d > 1 << (shift - 31)) ++shift;
    factor = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + static_cast<unsigned>(d) - 1) /
                                        static_cast<unsigned>(d));
  }
  __device__ __forceinline__ int quotient(int n) const {
    return static_cast<int>(static_cast<std::uint64_t>(static_cast<unsigned>(n)) * factor >> shift);
  }
};

struct Strips {
  DeviceWindow window;                // output counts strips
  Divisor strip_rows, strip_columns;  // of window.output
  int rows, columns;                  // results of an image, of a row
  int strip_height;                   // rows of a strip
  int channels;
  int channel_shift;  // a thread block has 1 << channel_shift times kChannels channels
  FirstResult first;
  int count;  // of strips
  bool slides;
};

// Windows of three neighboring columns, one column apart.
inline bool slides(const DeviceWindow& window) {
  return window.kernel[1] == kSlide && window.stride[1] == 1 && window.dilation[1] == 1;
}

// The calling thread's results; nothing if `channels` is 0.
template <int kChannels>
struct Strip {
  std::int64_t image;
  int row, column;        // of the first result
  int channel, channels;  // the first one, how many of them exist
  WindowOrigin origin;    // of the first result's window

  __device__ explicit Strip(const Strips& strips) {
    const int thread = static_cast<int>(threadIdx.x), mask = (1 << strips.channel_shift) - 1;
    channel = ((static_cast<int>(blockIdx.x) << strips.channel_shift) + (thread & mask)) * kChannels;
    const int strip =
        static_cast<int>(blockIdx.y) * (kThreads >> strips.channel_shift) + (thread >> strips.channel_shift);
    const int left = strip < strips.count ? strips.channels - channel : 0;
    channels = left < 0 ? 0 : left < kChannels ? left : kChannels;
    const int all = strips.first.within + strip, strip_row = strips.strip_columns.quotient(all);
    const int images = strips.strip_rows.quotient(strip_row);
    image = strips.first.image + images;
    row = (strip_row - images * strips.window.output[0]) * strips.strip_height;
    column = (all - strip_row * strips.window.output[1]) * kPixels;
    origin.image = image * strips.window.image;
    origin.row = row * strips.window.stride[0] - strips.window.before[0];
    origin.column = column * strips.window.stride[1] - strips.window.before[1];
  }
};

// Calls run(strips, grid) until all strips are made, about `most` results at a time. Threads beside each other have
// neighbors in y's memory.
template <int kChannels, class Run>
void for_each_launch(const DeviceWindow& window, std::int64_t batch, std::int64_t channels, const ImageView& y,
                     std::int64_t most, const Run& run, int strip_height = 1) {
  constexpr std::int64_t kMaxBlocks = 65535;  // of a grid's second axis
  Strips strips{};
  strips.window = window;
  strips.rows = window.output[0], strips.columns = window.output[1];
  strips.strip_height = strip_height;
  strips.window.output[0] = static_cast<int>(ceil_div(strips.rows, strip_height));
  strips.window.output[1] = static_cast<int>(ceil_div(strips.columns, kPixels));
  strips.strip_rows = Divisor(std::max(strips.window.output[0], 1));
  strips.strip_columns = Divisor(std::max(strips.window.output[1], 1));
  strips.channels = static_cast<int>(channels);
  strips.slides = slides(window);
  const std::int64_t quads = ceil_div(channels, kChannels);
  while (y.channel == 1 && strips.channel_shift < 5 && std::int64_t{1} << strips.channel_shift < quads)
    ++strips.channel_shift;
  const std::int64_t of_block = kThreads >> strips.channel_shift,
                     all = batch * strips.window.output[0] * strips.window.output[1];
  most = std::min(std::max<std::int64_t>(most / (kPixels * strip_height), 1), kMaxBlocks * of_block);
  for (std::int64_t first = 0; first < all; first += strips.count) {
    strips.first = FirstResult(strips.window, first);
    strips.count = static_cast<int>(std::min(most, all - first));
    run(strips, dim3(static_cast<unsigned>(ceil_div(quads, std::int64_t{1} << strips.channel_shift)),
                     static_cast<unsigned>(ceil_div(strips.count, of_block))));
  }
}

// Whether kChannels neighboring channels of a pixel may be read at once, where there are as many.
template <int kChannels>
bool reads_together(const ImageView& x, std::int64_t item_size) {
  return x.channel == 1 && x.image % kChannels == 0 && x.row % kChannels == 0 && x.column % kChannels == 0 &&
         reinterpret_cast<std::uintptr_t>(x.data) % static_cast<std::uintptr_t>(kChannels * item_size) == 0;
}

}  // namespace qcore::depthwise
