#pragma once

#include <algorithm>

#include "formats/image_view.h"
#include "gemm/cuda/window/window.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

// How depthwise convolutions are divided: a thread makes kPixels neighboring results of a row, kChannels neighboring
// channels of each, a number of the kernel's.
namespace qcore::depthwise {

constexpr int kThreads = 128;
constexpr int kPixels = 2;
constexpr int kSlide = 3;  // the width of windows whose pixels are shared by neighboring results

struct Strips {
  DeviceWindow window;  // output[1] counts strips of a row
  int columns;          // results of a row
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
    ResultPlace place(strips.window, strips.first, strip);
    place.column *= kPixels;
    image = place.image;
    row = place.row;
    column = place.column;
    origin.set(strips.window, place, 0);
  }
};

// Calls run(strips, grid) until all strips are made, about `most` results at a time. Threads beside each other have
// neighbors in y's memory.
template <int kChannels, class Run>
void for_each_launch(const DeviceWindow& window, std::int64_t batch, std::int64_t channels, const ImageView& y,
                     std::int64_t most, const Run& run) {
  constexpr std::int64_t kMaxBlocks = 65535;  // of a grid's second axis
  Strips strips{window, window.output[1], static_cast<int>(channels), 0, {}, 0, slides(window)};
  strips.window.output[1] = static_cast<int>(ceil_div(strips.columns, kPixels));
  const std::int64_t quads = ceil_div(channels, kChannels);
  while (y.channel == 1 && strips.channel_shift < 5 && std::int64_t{1} << strips.channel_shift < quads)
    ++strips.channel_shift;
  const std::int64_t of_block = kThreads >> strips.channel_shift,
                     all = batch * strips.window.output[0] * strips.window.output[1];
  most = std::min(std::max<std::int64_t>(most / kPixels, 1), kMaxBlocks * of_block);
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
