#include "static/layer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "numerics/requantize.h"
#include "runtime/check.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

std::pair<int, int> code_range(DType dtype) {
  return dtype == DType::u8 ? std::make_pair(0, 255) : std::make_pair(-128, 127);
}

void check_codes(const char* op, const char* argument, const TensorView& view) {
  QCORE_CHECK_TYPE(view.dtype == DType::i8 || view.dtype == DType::u8, op, ": ", argument, " has dtype ",
                   name(view.dtype), ", expected int8 or uint8");
}

void check_zero_point(const char* op, const char* argument, int zero_point, DType dtype) {
  const auto [lowest, highest] = code_range(dtype);
  QCORE_CHECK_VALUE(zero_point >= lowest && zero_point <= highest, op, ": ", argument, " is ", zero_point,
                    ", expected ", lowest, " to ", highest, " for ", name(dtype));
}

void check_format(const char* op, const char* scale, const char* zero_point, const StaticFormat& format) {
  QCORE_CHECK_TYPE(format.dtype == DType::i8 || format.dtype == DType::u8, op, ": the codes of ", scale[0],
                   " are of dtype ", name(format.dtype), ", expected int8 or uint8");
  QCORE_CHECK_VALUE(std::isfinite(format.scale) && format.scale > 0, op, ": ", scale, " is ", format.scale,
                    ", expected a positive finite number");
  check_zero_point(op, zero_point, format.zero_point, format.dtype);
}

// Reads the parameters of a layer in the order of its channels.
class Builder {
 public:
  Builder(StaticLayer& layer, const TensorView& weight, const TensorView& w_scale, const TensorView* bias)
      : layer_(layer), weight_(weight), w_scale_(w_scale), bias_(bias) {}

  void build() {
    check();
    std::int64_t lowest = 0, highest = 0;
    for_each([&](std::int64_t, std::int64_t, std::int64_t, int w) {
      lowest = std::min<std::int64_t>(lowest, w);
      highest = std::max<std::int64_t>(highest, w);
    });
    layer_.parts = std::max({std::int64_t{1}, ceil_div(-lowest, 128), ceil_div(highest, 127)});
    const std::int64_t groups = layer_.window.groups;
    layer_.layout = PackedLayout(layer_.shape[0] / groups, layer_.shape[1], layer_.parts * layer_.kernel_taps(),
                                 std::max<std::int64_t>(layer_.shape[1], 1), 8);
    allocate();
    fill();
  }

 private:
  void check() const {
    const char* op = layer_.op;
    const std::int64_t channels = layer_.shape[0];
    check_codes(op, "weight", weight_);
    check_device(op, "weight", weight_, kCpu, "every part of a layer");
    check_dtype(op, "w_scale", w_scale_, DType::f32);
    check_device(op, "w_scale", w_scale_, kCpu, "every part of a layer");
    QCORE_CHECK_VALUE(w_scale_.rank == 1 && (w_scale_.shape[0] == channels || w_scale_.shape[0] == 1), op,
                      ": w_scale has shape ", shape_string(w_scale_), ", expected [", channels, "] or [1]");
    if (bias_) {
      const std::int64_t expected[] = {channels};
      check_dtype(op, "bias", *bias_, DType::i32);
      check_device(op, "bias", *bias_, kCpu, "every part of a layer");
      check_shape(op, "bias", *bias_, 1, expected);
    }
    check_format(op, "x_scale", "x_zero_point", layer_.options.x);
    check_format(op, "y_scale", "y_zero_point", layer_.options.y);
    check_zero_point(op, "w_zero_point", layer_.options.w_zero_point, weight_.dtype);
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const float scale = w_scale(channel), multiplier = multiplier_of(channel);
      QCORE_CHECK_VALUE(std::isfinite(scale) && scale > 0, op, ": w_scale[", channel, "] is ", scale,
                        ", expected a positive finite number");
      QCORE_CHECK_VALUE(std::isfinite(multiplier), op, ": x_scale * w_scale[", channel, "] / y_scale is ", multiplier,
                        ", expected a finite number");
    }
    QCORE_CHECK_VALUE(layer_.options.lo <= layer_.options.hi, op, ": clamp is (", layer_.options.lo, ", ",
                      layer_.options.hi, "), expected codes of y within ", code_range(layer_.options.y.dtype).first,
                      " to ", code_range(layer_.options.y.dtype).second, ", lo <= hi");
  }

  float w_scale(std::int64_t channel) const {
    return static_cast<const float*>(w_scale_.data)[w_scale_.shape[0] == 1 ? 0 : channel * w_scale_.strides[0]];
  }
  float multiplier_of(std::int64_t channel) const {
    return numerics::requantize_multiplier(layer_.options.x.scale, w_scale(channel), layer_.options.y.scale);
  }

  // visit(channel, k, tap, w - Zw)
  template <class Visit>
  void for_each(const Visit& visit) const {
    const std::int64_t* strides = weight_.strides;
    for (std::int64_t channel = 0; channel < layer_.shape[0]; ++channel) {
      for (std::int64_t k = 0; k < layer_.shape[1]; ++k) {
        for (std::int64_t tap = 0; tap < layer_.kernel_taps(); ++tap) {
          std::int64_t at = channel * strides[0] + k * strides[1];
          if (weight_.rank == 4) at += tap / layer_.shape[3] * strides[2] + tap % layer_.shape[3] * strides[3];
          const int w = weight_.dtype == DType::u8 ? int{static_cast<const std::uint8_t*>(weight_.data)[at]}
                                                   : int{static_cast<const std::int8_t*>(weight_.data)[at]};
          visit(channel, k, tap, w - layer_.options.w_zero_point);
        }
      }
    }
  }

  void allocate() {
    const std::int64_t channels = layer_.shape[0];
    const std::int64_t code_bytes = round_up(layer_.window.groups * layer_.layout.code_bytes(), kAlignment);
    const std::int64_t array_bytes = round_up(4 * channels, kAlignment);
    const bool depthwise = layer_.layout.n == 1 && layer_.layout.k == 1 && layer_.parts == 1;
    const std::int64_t depthwise_bytes = depthwise ? ceil_div(layer_.shape[2], 4) * layer_.shape[3] * channels * 4 : 0;
    const std::int64_t bytes_in_all = code_bytes + 3 * array_bytes + depthwise_bytes;
    const std::shared_ptr<void> storage = allocate_aligned(bytes_in_all);
    auto* bytes = static_cast<char*>(storage.get());
    std::fill(bytes, bytes + bytes_in_all, char{0});
    codes_ = reinterpret_cast<std::int8_t*>(bytes);
    acc_init_ = reinterpret_cast<std::int32_t*>(bytes + code_bytes);
    sums_ = reinterpret_cast<std::int32_t*>(bytes + code_bytes + array_bytes);
    multipliers_ = reinterpret_cast<float*>(bytes + code_bytes + 2 * array_bytes);
    if (depthwise) depthwise_ = reinterpret_cast<std::int8_t*>(bytes + code_bytes + 3 * array_bytes);
    layer_.depthwise = depthwise_;
    layer_.codes = codes_;
    layer_.acc_init = acc_init_;
    layer_.sums = sums_;
    layer_.multipliers = multipliers_;
    layer_.storage = storage;
    layer_.storage_bytes = bytes_in_all;
  }

  void fill() {
    const auto [lowest, highest] = code_range(layer_.options.x.dtype);
    const std::int64_t zero = layer_.options.x.zero_point;
    const std::int64_t reach = std::max<std::int64_t>(highest - zero, zero - lowest);
    const std::int64_t channels = layer_.shape[0];
    auto sums = std::make_unique<std::int64_t[]>(channels), magnitudes = std::make_unique<std::int64_t[]>(channels);
    for_each([&](std::int64_t channel, std::int64_t k, std::int64_t tap, int w) {
      sums[channel] += w;
      magnitudes[channel] += std::abs(w);
      for (std::int64_t part = 0; part < layer_.parts; ++part) {
        const int byte = std::clamp(w, -128, 127);
        codes_[layer_.place(channel, k, part * layer_.kernel_taps() + tap)] = static_cast<std::int8_t>(byte);
        if (depthwise_) {
          const std::int64_t row = tap / layer_.shape[3], column = tap % layer_.shape[3];
          depthwise_[((row / 4 * layer_.shape[3] + column) * channels + channel) * 4 + row % 4] =
              static_cast<std::int8_t>(byte);
        }
        w -= byte;
      }
    });
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const std::int64_t bias = bias_ ? static_cast<const std::int32_t*>(bias_->data)[channel * bias_->strides[0]] : 0;
      const std::int64_t most = magnitudes[channel] * reach + std::abs(bias);
      QCORE_CHECK_VALUE(most <= std::numeric_limits<std::int32_t>::max(), layer_.op, ": output channel ", channel,
                        " can reach sums of ", most, " with its weights and bias, expected at most ",
                        std::numeric_limits<std::int32_t>::max(), ": they are int32");
      sums_[channel] = static_cast<std::int32_t>(sums[channel]);
      acc_init_[channel] = static_cast<std::int32_t>(static_cast<std::uint32_t>(bias - zero * sums[channel]));
      multipliers_[channel] = multiplier_of(channel);
    }
  }

  StaticLayer& layer_;
  const TensorView &weight_, &w_scale_;
  const TensorView* bias_;
  std::int8_t *codes_ = nullptr, *depthwise_ = nullptr;
  std::int32_t *acc_init_ = nullptr, *sums_ = nullptr;
  float* multipliers_ = nullptr;
};

}  // namespace

std::shared_ptr<const StaticLayer> make_static_layer(const char* op, const TensorView& weight,
                                                     const TensorView& w_scale, const TensorView* bias,
                                                     const ConvParams& window, const StaticOptions& options) {
  auto layer = std::make_shared<StaticLayer>();
  layer->op = op;
  layer->window = window;
  layer->options = options;
  const auto [lowest, highest] = code_range(options.y.dtype);
  layer->options.lo = std::max(options.lo, lowest);
  layer->options.hi = std::min(options.hi, highest);
  for (int axis = 0; axis < 4; ++axis) layer->shape[axis] = axis < weight.rank ? weight.shape[axis] : 1;
  Builder(*layer, weight, w_scale, bias).build();
  return layer;
}

std::shared_ptr<const StaticLayer> move_static_layer(std::shared_ptr<const StaticLayer> layer, Device device) {
  if (layer->device == device) return layer;
  auto moved = std::make_shared<StaticLayer>(*layer);
  const std::shared_ptr<void> storage = allocate_on(device, layer->storage_bytes);
  copy_between(storage.get(), device, layer->storage.get(), layer->device, layer->storage_bytes);
  const auto move = [&](auto*& array) {
    if (!array) return;
    const auto offset = reinterpret_cast<const char*>(array) - static_cast<const char*>(layer->storage.get());
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(static_cast<char*>(storage.get()) + offset);
  };
  move(moved->codes);
  move(moved->acc_init);
  move(moved->sums);
  move(moved->multipliers);
  move(moved->depthwise);
  moved->storage = storage;
  moved->device = device;
  return moved;
}

}  // namespace qcore
