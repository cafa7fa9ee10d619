#include <cstdlib>

#include "conv2d/cuda/pixel_rows.cuh"
#include "conv2d/cuda/simt_depthwise/arguments.cuh"
#include "conv2d/cuda/simt_depthwise/square_window.cuh"
#include "runtime/cuda/cuda_device.h"

// Depthwise convolution: every block is one activation, so a thread quantizes what it reads. What of a product is known
// before its tap is computed once per pixel, as in tile_depthwise.h: sA * sB, or the offset of int8_asym, or x itself;
// and sA * sumA for weights with offsets. Then a tap is one fma with its weight, or two.
namespace qcore {
namespace {

using namespace conv2d_depthwise;

template <class Word, Terms kTerms, bool kSlides>
class Depthwise {
 public:
  __device__ explicit Depthwise(const Arguments& a) : a_(a), strip_(a.strips) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const bool exists = i < strip_.channels;
      scales_[i] = exists ? a.w.scales[strip_.channel + i] : 0.0f;
      offsets_[i] = exists && a.w.offsets ? a.w.offsets[strip_.channel + i] : 0.0f;
    }
  }

  __device__ void run() {
    if (strip_.channels == 0) return;
    const DeviceWindow& window = a_.strips.window;
    if constexpr (kSlides) {
      slide();
    } else {
      for (int tap_row = 0; tap_row < window.kernel[0]; ++tap_row) {
        if (!row_exists(tap_row)) continue;
        for (int tap_column = 0; tap_column < window.kernel[1]; ++tap_column) add_tap(tap_row, tap_column);
      }
    }
    store();
  }

 private:
  using Values = float[kChannels];
  using Words = Word[kChannels];

  // Numbers made of pixels, by which a weight and its offset are multiplied.
  template <int kCount>
  struct Factors {
    Values product[kCount], offset[kCount];

    __device__ Factors(const Depthwise& of, const Words (&words)[kCount]) {
      Values x[kCount];
      bool exact = true;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int channel = 0; channel < kChannels; ++channel) {
          x[i][channel] = value_of(words[i][channel], of.a_.x.dtype);
          exact = exact && has_exact_quotient(x[i][channel]);
        }
      const bool asymmetric = of.a_.compute == ComputeMode::int8_asym;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int channel = 0; channel < kChannels; ++channel) {
          const float value = x[i][channel];
          if (kTerms == Terms::rounded_products) {
            product[i][channel] = value;
          } else if (kTerms == Terms::scaled && asymmetric) {
            product[i][channel] = numerics::constant_offset(value);
          } else {
            const float scale = numerics::quotient<numerics::ScalarLanes>(value, -of.a_.largest_code, of.a_.reciprocal);
            product[i][channel] = scale * of.scales_[channel];
            offset[i][channel] = scale * of.a_.largest_code;
          }
        }
      if constexpr (kTerms != Terms::rounded_products) {
        if (exact || (kTerms == Terms::scaled && asymmetric)) return;
#pragma unroll
        for (int i = 0; i < kCount; ++i)
#pragma unroll
          for (int channel = 0; channel < kChannels; ++channel) {
            const float scale = any_scale(x[i][channel], of.a_);
            product[i][channel] = scale * of.scales_[channel];
            offset[i][channel] = scale * of.a_.largest_code;
          }
      }
    }
  };

  // The pixels of a kernel's row are on their way while those of the row above it are multiplied.
  __device__ void slide() {
    constexpr int kCount = kPixels + kSlide - 1;
    const int rows = a_.strips.window.kernel[0];
    Words words[kCount];
    load_pixels(0, strip_.origin.column, 1, words);
    for (int tap_row = 0; tap_row < rows; ++tap_row) {
      Values weights[kSlide];
#pragma unroll
      for (int i = 0; i < kSlide; ++i) load_weights(tap_row * kSlide + i, weights[i]);
      const Factors<kCount> factors(*this, words);
      const bool exists = row_exists(tap_row);
      load_pixels(tap_row + 1, strip_.origin.column, 1, words);
      if (!exists) continue;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int pixel = 0; pixel < kPixels; ++pixel)
          if (i - pixel >= 0 && i - pixel < kSlide) add(factors, i, weights[i - pixel], totals_[pixel]);
    }
  }

  __device__ void add_tap(int tap_row, int tap_column) {
    const DeviceWindow& window = a_.strips.window;
    Words words[kPixels];
    Values weights;
    load_pixels(tap_row, strip_.origin.column + tap_column * window.dilation[1], window.stride[1], words);
    load_weights(tap_row * window.kernel[1] + tap_column, weights);
    const Factors<kPixels> factors(*this, words);
#pragma unroll
    for (int pixel = 0; pixel < kPixels; ++pixel) add(factors, pixel, weights, totals_[pixel]);
  }

  // Whether the kernel has the row and it lies inside of the image.
  __device__ bool row_exists(int tap_row) const {
    const int row = strip_.origin.row + tap_row * a_.strips.window.dilation[0];
    return tap_row < a_.strips.window.kernel[0] && row >= 0 && row < a_.strips.window.input[0];
  }

  // Pixels of x under a row of the kernel, `step` apart, zeros where there are none: beside the image they add nothing.
  template <int kCount>
  __device__ void load_pixels(int tap_row, int column, int step, Words (&words)[kCount]) const {
#pragma unroll
    for (Words& pixel : words)
#pragma unroll
      for (Word& word : pixel) word = 0;
    if (!row_exists(tap_row)) return;
    const int row = strip_.origin.row + tap_row * a_.strips.window.dilation[0];
    const auto* from = static_cast<const Word*>(a_.x.data) + strip_.origin.image + row * a_.strips.window.row +
                       strip_.channel * a_.x.channel;
    // Not in the loops, so that all loads are on their way together.
    if (a_.reads_together && strip_.channels == kChannels) {
      for_each_pixel<kCount>(column, step, [&](int i, std::int64_t at) {
        struct alignas(kChannels * sizeof(Word)) Four {
          Word of[kChannels];
        };
        const Four four = *reinterpret_cast<const Four*>(from + at);
#pragma unroll
        for (int channel = 0; channel < kChannels; ++channel) words[i][channel] = four.of[channel];
      });
    } else {
      for_each_pixel<kCount>(column, step, [&](int i, std::int64_t at) {
#pragma unroll
        for (int channel = 0; channel < kChannels; ++channel)
          if (channel < strip_.channels) words[i][channel] = from[at + channel * a_.x.channel];
      });
    }
  }
  __device__ static float value_of(float x, DType) { return x; }
  __device__ static float value_of(std::uint16_t x, DType dtype) {
    return dtype == DType::f16 ? numerics::half_to_float(x) : numerics::bfloat_to_float(x);
  }
  template <int kCount, class Load>
  __device__ void for_each_pixel(int column, int step, const Load& load) const {
    const DeviceWindow& window = a_.strips.window;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int w = column + i * step;
      if (w >= 0 && w < window.input[1]) load(i, w * window.column);
    }
  }

  // The largest activation code times the weight's; the weight's sum for activations with offsets; or the weight.
  __device__ void load_weights(int tap, Values& weights) const {
    const std::int64_t panel = strip_.channel / PackedLayout::kPanelRows;
    const int row = strip_.channel % PackedLayout::kPanelRows;
    // Panels are whole, and their rows lie together.
    const uint2 words =
        *reinterpret_cast<const uint2*>(a_.w.words + (panel * a_.w.taps + tap) * PackedLayout::kPanelRows + row);
    const std::uint32_t stored[] = {words.x, words.y};
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const int code =
          a_.w.bits == 8 ? static_cast<int>(stored[i] & 0xffu) - 128 : static_cast<int>(stored[i] & 15u) - 8;
      if constexpr (kTerms == Terms::rounded_products)
        weights[i] = numerics::decode(code, scales_[i], offsets_[i]);
      else
        weights[i] = a_.compute == ComputeMode::int8_asym ? numerics::block_weight_sum(code, 1, scales_[i], offsets_[i])
                                                          : a_.largest_code * static_cast<float>(code);
    }
  }

  template <int kCount>
  __device__ void add(const Factors<kCount>& factors, int pixel, const Values& weights, Values& totals) const {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      if constexpr (kTerms == Terms::rounded_products)
        totals[i] += factors.product[pixel][i] * weights[i];
      else
        totals[i] = numerics::fma_once(weights[i], factors.product[pixel][i], totals[i]);
      if constexpr (kTerms == Terms::with_offsets)
        totals[i] = numerics::add_weight_offset(totals[i], factors.offset[pixel][i], offsets_[i]);
    }
  }

  __device__ void store() const {
    const std::int64_t y = a_.y.offset(strip_.image, 0, strip_.row, strip_.column);
#pragma unroll
    for (int pixel = 0; pixel < kPixels; ++pixel)
      if (strip_.column + pixel < a_.strips.columns)
#pragma unroll
        for (int i = 0; i < kChannels; ++i)
          if (i < strip_.channels)
            store_epilogue(a_.out, y + pixel * a_.y.column, strip_.channel + i, totals_[pixel][i]);
  }

  const Arguments& a_;
  const depthwise::Strip<kChannels> strip_;
  Values scales_, offsets_;
  Values totals_[kPixels] = {};
};

// Square windows of 4-byte values take more registers.
template <class Word, bool kSlides>
constexpr int kResidentBlocks = kSlides && sizeof(Word) == 4 ? 5 : 6;

template <class Word, Terms kTerms, bool kSlides>
__global__ void __launch_bounds__(depthwise::kThreads, kResidentBlocks<Word, kSlides>)
    conv2d_depthwise_kernel(const __grid_constant__ Arguments a) {
  if constexpr (kSlides) {
    if (a.square) return SquareWindow<Word, kTerms>(a).run();
  }
  Depthwise<Word, kTerms, kSlides>(a).run();
}

using Kernel = void (*)(Arguments);

template <class Word, Terms kTerms>
Kernel kernel_for(bool slides) {
  return slides ? conv2d_depthwise_kernel<Word, kTerms, true> : conv2d_depthwise_kernel<Word, kTerms, false>;
}
template <class Word>
Kernel kernel_for(const Arguments& a, bool slides) {
  if (a.compute == ComputeMode::floating) return kernel_for<Word, Terms::rounded_products>(slides);
  if (a.compute == ComputeMode::int8_asym || !a.w.offsets) return kernel_for<Word, Terms::scaled>(slides);
  return kernel_for<Word, Terms::with_offsets>(slides);
}

// Whether square_window.cuh takes a call.
bool is_square(const Conv2dProblem& problem) {
  const auto neighbors = [](const ImageView& view) {
    return depthwise::reads_together<kChannels>(view, item_size(view.dtype));
  };
  constexpr std::int64_t kMaxStep = 1 << 28;  // from row to row and from column to column: int counts the bytes
  for (const auto* axis : {&problem.rows, &problem.columns})
    if (axis->kernel != kSlide || axis->stride != 1 || axis->dilation != 1) return false;
  return problem.groups % kChannels == 0 && neighbors(problem.x) && neighbors(problem.y) &&
         std::abs(problem.x.row) < kMaxStep && std::abs(problem.x.column) < kMaxStep;
}

}  // namespace

const char* conv2d_depthwise_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.weight->layout.k != 1 || problem.outputs_per_group() != 1)
    return "it takes one input and one output channel per group";
  if (problem.groups > kMaxPixels) return "it takes up to 2^30 channels";
  return window_unsupported_reason(problem.rows, problem.columns);
}

void run_conv2d_depthwise(const Conv2dProblem& problem, const Conv2dBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  Arguments a{};
  a.w = device_weight(*problem.weight);
  a.out = device_output(result_rows(problem), problem.bias, problem.activation);
  a.x = problem.x;
  a.y = problem.y;
  const std::int64_t bytes = item_size(problem.x.dtype);
  a.reads_together = depthwise::reads_together<kChannels>(problem.x, bytes);
  a.compute = problem.compute;
  a.mode = activation_mode(problem.compute);
  a.largest_code = static_cast<float>(numerics::activation_highest(a.mode));
  a.reciprocal = 1.0f / a.largest_code;
  a.square = is_square(problem);
  const DeviceWindow window =
      device_window(problem.rows, problem.columns, problem.x.image, problem.x.row, problem.x.column);
  const bool overlaps = a.square && compute_capability(problem.device.index) >= 90;
  depthwise::for_each_launch<kChannels>(
      window, problem.batch, problem.groups, problem.y, bounds.results,
      [&](const depthwise::Strips& strips, dim3 grid) {
        a.strips = strips;
        const Kernel kernel =
            bytes == 2 ? kernel_for<std::uint16_t>(a, strips.slides) : kernel_for<float>(a, strips.slides);
        LaunchShape shape{grid, dim3(depthwise::kThreads)};
        shape.overlap = overlaps;
        launch("conv2d_depthwise", kernel, shape, static_cast<cudaStream_t>(problem.stream), a);
      },
      a.square ? kRows : 1);
}

}  // namespace qcore
