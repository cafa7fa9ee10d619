#pragma once

#include "linear/cuda/sm75_gemv_encoded/gemv_encoded.cuh"
#include "numerics/half_bits.h"
#include "numerics/small_floats.h"

namespace qcore::gemv_encoded {

// The scales or the offsets of one column of a thread block's 32, as EncodedWeight has them.
class ParameterColumn {
 public:
  __device__ __forceinline__ ParameterColumn(const Arguments& a, const Parameters& from, const char* memory, int column)
      : type_(from.type), lane_(column % kRows) {
    const int own = column / kRows;
    if (from.data_at >= 0) {
      data_ = reinterpret_cast<const std::uint8_t*>(memory + from.data_at) + own * from.panel_bytes;
      super_ = reinterpret_cast<const std::uint16_t*>(memory + from.super_at + own * from.super_bytes);
    } else {
      const std::int64_t panel = static_cast<std::int64_t>(blockIdx.x) * 2 + own, there = panel < a.panels ? panel : 0;
      data_ = from.data + there * from.panel_bytes;
      super_ = from.super + there * (from.super_bytes / 2);
    }
  }

  __device__ __forceinline__ float scale(const Arguments& a, int p) const {
    const float number = number_of(p);
    if (is_integer(type_)) return super_of(a, p) * (number - a.scale_zero);
    return type_ == ParameterType::e8m0 || type_ == ParameterType::e4m3 ? number * a.tensor_scale : number;
  }
  // `scale` is that of the block.
  __device__ __forceinline__ float offset(const Arguments& a, int p, float scale) const {
    const float number = number_of(p);
    if (is_zero_point(type_)) return scale * (a.offset_zero - number);
    return is_integer(type_) ? -(super_of(a, p) * number) : number;
  }

 private:
  static constexpr int kRows = static_cast<int>(PackedLayout::kPanelRows);

  __device__ __forceinline__ float number_of(int p) const {
    const int at = p * kRows + lane_;
    switch (type_) {
      case ParameterType::f32:
        return reinterpret_cast<const float*>(data_)[at];
      case ParameterType::f16:
        return numerics::half_to_float(reinterpret_cast<const std::uint16_t*>(data_)[at]);
      case ParameterType::bf16:
        return numerics::bfloat_to_float(reinterpret_cast<const std::uint16_t*>(data_)[at]);
      case ParameterType::e8m0:
        return numerics::e8m0_to_float(data_[at]);
      case ParameterType::e4m3:
        return numerics::e4m3_to_float(data_[at]);
      case ParameterType::u4:
      case ParameterType::z4:
        return static_cast<float>(data_[(p >> 1) * kRows + lane_] >> (p & 1) * 4 & 15);
      case ParameterType::u6: {
        const std::uint8_t* group = data_ + (p >> 3) * (6 * kRows) + lane_;
        const int low = group[(p >> 1 & 3) * kRows] >> (p & 1) * 4 & 15;
        const int high = group[(4 + (p >> 2 & 1)) * kRows] >> (p & 3) * 2 & 3;
        return static_cast<float>(low | high << 4);
      }
      default:
        return static_cast<float>(data_[at]);
    }
  }
  __device__ __forceinline__ float super_of(const Arguments& a, int p) const {
    return numerics::half_to_float(super_[(p >> a.super_shift) * kRows + lane_]);
  }

  ParameterType type_;
  int lane_;
  const std::uint8_t* data_;
  const std::uint16_t* super_;
};

}  // namespace qcore::gemv_encoded
