#include "gemm/cuda/window/depthwise_strips.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/ptx_bytes.cuh"
#include "static/cuda/kernels.h"
#include "static/cuda/requantized_channels.cuh"

// Four pixels under each other, of four channels, are turned so that one instruction multiplies four taps of a channel.
namespace qcore {
namespace {

using depthwise::kPixels;
using depthwise::kSlide;
constexpr int kChannels = 4, kTapRows = 4;

struct Arguments {
  const std::uint32_t* weights;  // StaticLayer::depthwise: [ceil(Kh / 4), Kw, channels]
  ImageView x, y;
  bool reads_together;
  std::uint32_t zero;  // four codes of the real value 0: what padding is
  depthwise::Strips strips;
  static_gemm::Requantization requantization;
};

template <bool kSigned, bool kSlides>
class Depthwise {
 public:
  __device__ explicit Depthwise(const Arguments& a) : a_(a), strip_(a.strips) {
    if (strip_.channels > 0)
      x_ = static_cast<const std::uint8_t*>(a.x.data) + strip_.origin.image + strip_.channel * a.x.channel;
  }

  __device__ void run() {
    if (strip_.channels == 0) return;
    const DeviceWindow& window = a_.strips.window;
    for (int tap_row = 0; tap_row < window.kernel[0]; tap_row += kTapRows) {
      if constexpr (kSlides)
        slide(tap_row);
      else
        for (int tap_column = 0; tap_column < window.kernel[1]; ++tap_column) add_column(tap_row, tap_column);
    }
    store();
  }

 private:
  using Words = std::uint32_t[kChannels];

  __device__ void slide(int tap_row) {
    Words weights[kSlide], pixels[kPixels + kSlide - 1];
    load_pixels(tap_row, 0, 1, pixels);
#pragma unroll
    for (int i = 0; i < kSlide; ++i) load_weights(tap_row, i, weights[i]);
#pragma unroll
    for (int i = 0; i < kPixels + kSlide - 1; ++i) {
      ptx::transpose_bytes(pixels[i]);
#pragma unroll
      for (int pixel = 0; pixel < kPixels; ++pixel)
        if (i - pixel >= 0 && i - pixel < kSlide) multiply(pixels[i], weights[i - pixel], sums_[pixel]);
    }
  }

  __device__ void add_column(int tap_row, int tap_column) {
    const DeviceWindow& window = a_.strips.window;
    Words weights, pixels[kPixels];
    load_pixels(tap_row, tap_column * window.dilation[1], window.stride[1], pixels);
    load_weights(tap_row, tap_column, weights);
#pragma unroll
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      ptx::transpose_bytes(pixels[pixel]);
      multiply(pixels[pixel], weights, sums_[pixel]);
    }
  }

  // Columns of the image, `step` apart, the first one `column` behind the first window's first; of each the pixels
  // under kTapRows taps from tap_row on, a word each.
  template <int kColumns>
  __device__ void load_pixels(int tap_row, int column, int step, Words (&words)[kColumns]) const {
    // Not in the loops, so that all loads are on their way together.
    if (a_.reads_together && strip_.channels == kChannels)
      load_pixels(tap_row, column, step, words,
                  [](const std::uint8_t* x) { return *reinterpret_cast<const std::uint32_t*>(x); });
    else
      load_pixels(tap_row, column, step, words, [this](const std::uint8_t* x) {
        std::uint32_t word = 0;
#pragma unroll
        for (int i = 0; i < kChannels; ++i)
          if (i < strip_.channels) word |= static_cast<std::uint32_t>(x[i * a_.x.channel]) << (8 * i);
        return word;
      });
  }
  template <int kColumns, class Load>
  __device__ void load_pixels(int tap_row, int column, int step, Words (&words)[kColumns], const Load& load) const {
    const DeviceWindow& window = a_.strips.window;
    const std::uint8_t* rows[kTapRows];
    bool inside[kTapRows];
#pragma unroll
    for (int i = 0; i < kTapRows; ++i) {
      const int h = strip_.origin.row + (tap_row + i) * window.dilation[0];
      inside[i] = tap_row + i < window.kernel[0] && h >= 0 && h < window.input[0];
      rows[i] = x_ + h * window.row;
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int w = strip_.origin.column + column + j * step;
      const bool exists = w >= 0 && w < window.input[1];
      const std::int64_t at = w * window.column;
#pragma unroll
      for (int i = 0; i < kTapRows; ++i) {
        words[j][i] = a_.zero;
        if (exists && inside[i]) words[j][i] = load(rows[i] + at);
      }
    }
  }

  // A word of each channel: kTapRows taps under each other, 0 behind the kernel's end.
  __device__ void load_weights(int tap_row, int tap_column, Words& words) const {
    const std::int64_t tap = static_cast<std::int64_t>(tap_row / kTapRows) * a_.strips.window.kernel[1] + tap_column;
    const std::uint32_t* from = a_.weights + tap * a_.strips.channels + strip_.channel;
    if (a_.strips.channels % kChannels == 0) {
      const uint4 four = *reinterpret_cast<const uint4*>(from);
      words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) words[i] = i < strip_.channels ? from[i] : 0;
    }
  }

  __device__ static void multiply(const Words& pixels, const Words& weights, std::int32_t (&sums)[kChannels]) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) sums[i] = ptx::dot4<kSigned>(pixels[i], weights[i], sums[i]);
  }

  __device__ void store() const {
    const static_gemm::RequantizedChannels channels(a_.requantization, strip_.channel, a_.strips.channels);
    auto* y = static_cast<std::uint8_t*>(const_cast<void*>(a_.y.data)) +
              a_.y.offset(strip_.image, strip_.channel, strip_.row, strip_.column);
#pragma unroll
    for (int pixel = 0; pixel < kPixels; ++pixel)
      if (strip_.column + pixel < a_.strips.columns)
        channels.store(y + pixel * a_.y.column, a_.y.channel, channels.codes(sums_[pixel]));
  }

  const Arguments& a_;
  const depthwise::Strip<kChannels> strip_;
  const std::uint8_t* x_ = nullptr;
  std::int32_t sums_[kPixels][kChannels] = {};
};

template <bool kSigned, bool kSlides>
__global__ void __launch_bounds__(depthwise::kThreads, 8) static_depthwise_kernel(const Arguments a) {
  Depthwise<kSigned, kSlides>(a).run();
}

template <bool kSigned>
auto kernel_for(bool slides) {
  return slides ? static_depthwise_kernel<kSigned, true> : static_depthwise_kernel<kSigned, false>;
}

}  // namespace

const char* static_depthwise_unsupported_reason(const StaticProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (!problem.layer->depthwise)
    return "it takes one channel in and out per group, and weights whose differences from their zero point fit in a "
           "byte";
  if (problem.layer->shape[0] > kMaxPixels) return "it takes up to 2^30 channels";
  return window_unsupported_reason(problem.rows, problem.columns);
}

void run_static_depthwise(const StaticProblem& problem, const StaticBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  const StaticLayer& layer = *problem.layer;
  Arguments a{};
  a.weights = reinterpret_cast<const std::uint32_t*>(layer.depthwise);
  a.x = problem.x;
  a.y = problem.y;
  a.reads_together = depthwise::reads_together<kChannels>(problem.x, 1);
  a.zero = 0x01010101u * static_cast<std::uint8_t>(layer.options.x.zero_point);
  a.requantization = static_gemm::Requantization(layer);
  const DeviceWindow window =
      device_window(problem.rows, problem.columns, problem.x.image, problem.x.row, problem.x.column);
  depthwise::for_each_launch<kChannels>(window, problem.batch, layer.shape[0], problem.y, bounds.results,
                                        [&](const depthwise::Strips& strips, dim3 grid) {
                                          a.strips = strips;
                                          const auto kernel = layer.options.x.dtype == DType::i8
                                                                  ? kernel_for<true>(strips.slides)
                                                                  : kernel_for<false>(strips.slides);
                                          launch("static_depthwise", kernel, {grid, dim3(depthwise::kThreads)},
                                                 static_cast<cudaStream_t>(problem.stream), a);
                                        });
}

}  // namespace qcore
