#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "numerics/requantize.h"
#include "static/problem.h"

namespace qcore::static_gemm {

// Requantization of sums; the arrays are those of StaticLayer.
struct Requantization {
  const std::int32_t* acc_init;
  const float* multipliers;
  float lo, hi;  // less the zero point
  std::int32_t zero_point;

  explicit Requantization(const StaticLayer& layer)
      : acc_init(layer.acc_init), multipliers(layer.multipliers), zero_point(layer.options.y.zero_point) {
    lo = static_cast<float>(layer.options.lo - zero_point);
    hi = static_cast<float>(layer.options.hi - zero_point);
  }
  Requantization() = default;
};

// Four neighboring channels, or the last of them: how sums of theirs, x times w, become codes in y.
class RequantizedChannels {
 public:
  static constexpr int kMax = 4;

  __device__ RequantizedChannels(const Requantization& to, std::int64_t first, std::int64_t end)
      : to_(to), count_(end - first < kMax ? static_cast<int>(end - first) : kMax) {
#pragma unroll
    for (int i = 0; i < kMax; ++i)
      if (i < count_) acc_init_[i] = to.acc_init[first + i], multipliers_[i] = to.multipliers[first + i];
  }

  // Codes as bytes, the first channel's lowest.
  template <class Sums>
  __device__ std::uint32_t codes(const Sums& sums) const {
    std::uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      const auto sum = static_cast<std::uint32_t>(acc_init_[i]) + static_cast<std::uint32_t>(sums[i]);
      const std::int32_t code =
          numerics::requantize(static_cast<std::int32_t>(sum), multipliers_[i], to_.lo, to_.hi, to_.zero_point);
      codes |= (static_cast<std::uint32_t>(code) & 0xffu) << (8 * i);
    }
    return codes;
  }

  // To the first channel's place; the next ones are `step` apart.
  __device__ void store(std::uint8_t* y, std::int64_t step, std::uint32_t codes) const {
    if (count_ == kMax && step == 1 && reinterpret_cast<std::uintptr_t>(y) % kMax == 0) {
      *reinterpret_cast<std::uint32_t*>(y) = codes;
    } else {
#pragma unroll
      for (int i = 0; i < kMax; ++i)
        if (i < count_) y[i * step] = static_cast<std::uint8_t>(codes >> (8 * i));
    }
  }

 private:
  const Requantization& to_;
  int count_;
  std::int32_t acc_init_[kMax] = {};
  float multipliers_[kMax] = {};
};

}  // namespace qcore::static_gemm
