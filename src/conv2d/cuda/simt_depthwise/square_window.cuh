#pragma once

#include "conv2d/cuda/simt_depthwise/arguments.cuh"
#include "gemm/cuda/window/load_if.cuh"
#include "runtime/cuda/ptx_half.cuh"
#include "runtime/cuda/ptx_launch.cuh"

// Depthwise windows of 3x3 neighboring pixels over images whose channels are neighbors: a thread makes two results of
// each of kRows rows. Small layers take about as long as one thread's chain of loads and instructions, so that all
// loads are on their way at once, and little is computed for addresses.
namespace qcore::conv2d_depthwise {

constexpr int kRows = 2;

template <class Word, Terms kTerms>
class SquareWindow {
 public:
  __device__ __forceinline__ explicit SquareWindow(const Arguments& a) : a_(a), strip_(a.strips) {}

  __device__ __forceinline__ void run() {
    if (strip_.channels == 0) return;
    load_weights();
    ptx::wait_for_earlier_kernels();
    load_pixels();
    float bias[kChannels] = {};
    if (a_.out.bias) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i)
        bias[i] = load_float(a_.out.bias, a_.out.bias_dtype, (strip_.channel + i) * a_.out.bias_stride);
    }
    // Not before the wait: then the thread blocks of several calls would share multiprocessors, unevenly.
    ptx::let_next_kernel_start();
    decode_weights();
#pragma unroll
    for (int row = 0; row < kSpanRows; ++row) add_row(row);
    store(bias);
  }

 private:
  static constexpr int kSpanRows = kRows + kSlide - 1, kSpanColumns = kPixels + kSlide - 1, kTaps = kSlide * kSlide;
  using Values = float[kChannels];

  using Pixel = std::uint32_t[kChannels * sizeof(Word) / 4];  // as it is loaded

  // Rows of a panel lie together, and taps of a panel behind each other.
  __device__ __forceinline__ void load_weights() {
    const int panel = strip_.channel / PackedLayout::kPanelRows, row = strip_.channel % PackedLayout::kPanelRows;
    const std::uint32_t* words = a_.w.words + (std::int64_t{panel} * kTaps * PackedLayout::kPanelRows + row);
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap)
      words_[tap] = *reinterpret_cast<const uint2*>(words + tap * PackedLayout::kPanelRows);
    scales_ = *reinterpret_cast<const float2*>(a_.w.scales + strip_.channel);
    offsets_ = a_.w.offsets ? *reinterpret_cast<const float2*>(a_.w.offsets + strip_.channel) : float2{0.0f, 0.0f};
  }

  __device__ __forceinline__ void load_pixels() {
    const DeviceWindow& window = a_.strips.window;
    constexpr std::int64_t kBytes = sizeof(Word);
    const std::int64_t row_step = kBytes * window.row, column_step = kBytes * window.column;
    const WindowOrigin& origin = strip_.origin;
    const char* rows = static_cast<const char*>(a_.x.data) + kBytes * (origin.image + strip_.channel) +
                       std::int64_t{origin.row} * static_cast<int>(row_step) +
                       std::int64_t{origin.column} * static_cast<int>(column_step);
#pragma unroll
    for (int row = 0; row < kSpanRows; ++row) {
      const bool in_row = is_below(origin.row + row, window.input[0]);
      const char* from = rows;
#pragma unroll
      for (int column = 0; column < kSpanColumns; ++column) {
        ptx::load_if(pixels_[row][column], from, in_row && is_below(origin.column + column, window.input[1]));
        from += column_step;
      }
      rows += row_step;
    }
  }

  __device__ __forceinline__ static bool is_below(int i, int extent) {  // and not negative
    return static_cast<unsigned>(i) < static_cast<unsigned>(extent);
  }

  // The codes are a word's lowest byte or nibble, less half of their number.
  __device__ __forceinline__ void decode_weights() {
    const bool bytes = a_.w.bits == 8;
    const std::uint32_t mask = bytes ? 0xffu : 15u;
    const int zero = bytes ? 128 : 8;
    const bool asymmetric = a_.compute == ComputeMode::int8_asym;
    const float scales[] = {scales_.x, scales_.y}, offsets[] = {offsets_.x, offsets_.y};
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      const std::uint32_t words[] = {words_[tap].x, words_[tap].y};
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        const int code = static_cast<int>(words[i] & mask) - zero;
        if constexpr (kTerms == Terms::rounded_products)
          weights_[tap][i] = numerics::decode(code, scales[i], offsets[i]);
        else
          weights_[tap][i] = asymmetric ? numerics::block_weight_sum(code, 1, scales[i], offsets[i])
                                        : a_.largest_code * static_cast<float>(code);
      }
    }
  }

  __device__ __forceinline__ void values_of(const Pixel (&pixels)[kSpanColumns], Values (&x)[kSpanColumns]) const {
    if constexpr (sizeof(Word) == 4) {
      for_each_value([&](int column, int i) { x[column][i] = numerics::bits_float(pixels[column][i]); });
    } else {
      const auto half = [&](int column, int i) { return static_cast<std::uint16_t>(pixels[column][0] >> (16 * i)); };
      if (a_.x.dtype == DType::f16)
        for_each_value([&](int column, int i) { x[column][i] = numerics::half_to_float(half(column, i)); });
      else
        for_each_value([&](int column, int i) { x[column][i] = numerics::bfloat_to_float(half(column, i)); });
    }
  }
  template <class Run>
  __device__ __forceinline__ static void for_each_value(const Run& run) {
#pragma unroll
    for (int column = 0; column < kSpanColumns; ++column)
#pragma unroll
      for (int i = 0; i < kChannels; ++i) run(column, i);
  }

  // Multiplies a row of pixels by the rows of weights that lie on it, whose first results are the nearest.
  __device__ __forceinline__ void add_row(int row) {
    Values x[kSpanColumns], product[kSpanColumns], offset[kSpanColumns];
    values_of(pixels_[row], x);
    factors(x, product, offset);
#pragma unroll
    for (int y = 0; y < kRows; ++y) {
      const int tap_row = row - y;
      if (tap_row < 0 || tap_row >= kSlide) continue;
#pragma unroll
      for (int column = 0; column < kSpanColumns; ++column)
#pragma unroll
        for (int pixel = 0; pixel < kPixels; ++pixel) {
          const int tap_column = column - pixel;
          if (tap_column < 0 || tap_column >= kSlide) continue;
          add(weights_[tap_row * kSlide + tap_column], product[column], offset[column], totals_[y][pixel]);
        }
    }
  }

  __device__ __forceinline__ void factors(const Values (&x)[kSpanColumns], Values (&product)[kSpanColumns],
                                          Values (&offset)[kSpanColumns]) const {
    if constexpr (kTerms == Terms::rounded_products) {
      for_each_value([&](int column, int i) { product[column][i] = x[column][i]; });
    } else {
      if (kTerms == Terms::scaled && a_.compute == ComputeMode::int8_asym) {
        for_each_value([&](int column, int i) { product[column][i] = numerics::constant_offset(x[column][i]); });
        return;
      }
      const float scales[] = {scales_.x, scales_.y};
      // Values of fp16 other than 0 are from 2^-24 on, and a quotient of Inf is NaN, as its scale.
      bool exact = true;
      if (sizeof(Word) == 4 || a_.x.dtype != DType::f16)
        for_each_value([&](int column, int i) { exact = exact && has_exact_quotient(x[column][i]); });
      const auto set = [&](int column, int i, float scale) {
        product[column][i] = scale * scales[i];
        offset[column][i] = scale * a_.largest_code;
      };
      for_each_value([&](int column, int i) {
        set(column, i, numerics::quotient<numerics::ScalarLanes>(x[column][i], -a_.largest_code, a_.reciprocal));
      });
      if (!exact) for_each_value([&](int column, int i) { set(column, i, signed_scale(x[column][i], a_.mode)); });
    }
  }

  __device__ __forceinline__ void add(const Values& weights, const Values& product, const Values& offset,
                                      Values& totals) const {
    const float offsets[] = {offsets_.x, offsets_.y};
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      if constexpr (kTerms == Terms::rounded_products)
        totals[i] += product[i] * weights[i];
      else
        totals[i] = numerics::fma_once(weights[i], product[i], totals[i]);
      if constexpr (kTerms == Terms::with_offsets)
        totals[i] = numerics::add_weight_offset(totals[i], offset[i], offsets[i]);
    }
  }

  __device__ __forceinline__ void store(const float (&bias)[kChannels]) {
    const FusedActivation& activation = a_.out.activation;
    if (a_.out.bias) for_each_total([&](float& total, int i) { total += bias[i]; });
    if (activation.kind == ActivationKind::clamp)
      for_each_total([&](float& total, int) { total = numerics::clamp_keep_nan(total, activation.lo, activation.hi); });
    else if (activation.kind != ActivationKind::none)
      for_each_total([&](float& total, int) { total = activated(total, activation); });
    const std::int64_t first = a_.y.offset(strip_.image, strip_.channel, strip_.row, strip_.column);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int pixel = 0; pixel < kPixels; ++pixel)
        if (strip_.row + row < a_.strips.rows && strip_.column + pixel < a_.strips.columns)
          store_pair(first + row * a_.y.row + pixel * a_.y.column, totals_[row][pixel]);
    }
  }
  template <class Run>
  __device__ __forceinline__ void for_each_total(const Run& run) {
#pragma unroll
    for (int row = 0; row < kRows; ++row)
#pragma unroll
      for (int pixel = 0; pixel < kPixels; ++pixel)
#pragma unroll
        for (int i = 0; i < kChannels; ++i) run(totals_[row][pixel][i], i);
  }
  __device__ __forceinline__ void store_pair(std::int64_t at, const Values& values) const {
    void* y = const_cast<void*>(a_.out.y.data);
    if (a_.out.y.dtype == DType::f32) {
      *reinterpret_cast<float2*>(static_cast<float*>(y) + at) = float2{values[0], values[1]};
      return;
    }
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(y) + at) =
        a_.out.y.dtype == DType::f16 ? ptx::pack_pair<ptx::Half::f16>(values[0], values[1])
                                     : ptx::pack_pair<ptx::Half::bf16>(values[0], values[1]);
  }

  const Arguments& a_;
  const depthwise::Strip<kChannels> strip_;
  uint2 words_[kTaps];
  float2 scales_, offsets_;
  Pixel pixels_[kSpanRows][kSpanColumns];
  Values weights_[kTaps];
  Values totals_[kRows][kPixels] = {};
};

}  // namespace qcore::conv2d_depthwise
