#pragma once

#include <type_traits>

#include "formats/encoded_storage.h"

namespace qcore {

// The constants that turn the stored numbers of an encoded weight's parameters into scales and offsets.
struct ParameterForm {
  float offset_zero, tensor_scale, scale_zero;
  int super_shift;  // 1 << super_shift blocks have a super-parameter

  // `encoding.super_block` is a power of two, or 0.
  explicit ParameterForm(const WeightEncoding& encoding)
      : offset_zero(static_cast<float>(encoding.zero)),
        tensor_scale(encoding.tensor_scale),
        scale_zero(static_cast<float>(encoding.scale_zero)),
        super_shift(0) {
    while (encoding.super_block >> (super_shift + 1)) ++super_shift;
  }
  ParameterForm() = default;
};

// Calls visit(std::integral_constant<ParameterType, type>). Each type has code of its own, so that few instructions are
// fetched and run for a parameter; nothing is called for `none`.
template <class Visit>
__device__ __forceinline__ void visit_parameters(ParameterType type, const Visit& visit) {
  using T = ParameterType;
  switch (type) {
    case T::none:
      return;
    case T::f32:
      return visit(std::integral_constant<T, T::f32>{});
    case T::f16:
      return visit(std::integral_constant<T, T::f16>{});
    case T::bf16:
      return visit(std::integral_constant<T, T::bf16>{});
    case T::e8m0:
      return visit(std::integral_constant<T, T::e8m0>{});
    case T::e4m3:
      return visit(std::integral_constant<T, T::e4m3>{});
    case T::u4:
      return visit(std::integral_constant<T, T::u4>{});
    case T::z4:
      return visit(std::integral_constant<T, T::z4>{});
    case T::u6:
      return visit(std::integral_constant<T, T::u6>{});
    case T::u8:
      return visit(std::integral_constant<T, T::u8>{});
    case T::z8:
      return visit(std::integral_constant<T, T::z8>{});
  }
}

// The scales or the offsets of a row, whose panel has its numbers at `data` and its super-parameters at `super`: the
// values that EncodedWeight has.
template <ParameterType kType>
struct ParameterColumn {
  const std::uint8_t* data;
  const std::uint16_t* super;
  int lane;

  __device__ __forceinline__ float scale(const ParameterForm& a, int p) const {
    const float number = number_of(p);
    if constexpr (is_integer(kType)) return super_of(a, p) * (number - a.scale_zero);
    return kType == ParameterType::e8m0 || kType == ParameterType::e4m3 ? number * a.tensor_scale : number;
  }
  // `scale` is that of the block.
  __device__ __forceinline__ float offset(const ParameterForm& a, int p, float scale) const {
    const float number = number_of(p);
    if constexpr (is_zero_point(kType)) return scale * (a.offset_zero - number);
    if constexpr (is_integer(kType)) return -(super_of(a, p) * number);
    return number;
  }

 private:
  static constexpr int kRows = static_cast<int>(PackedLayout::kPanelRows);

  __device__ __forceinline__ float number_of(int p) const {
    const int at = p * kRows + lane;
    if constexpr (kType == ParameterType::f32) {
      return reinterpret_cast<const float*>(data)[at];
    } else if constexpr (kType == ParameterType::f16) {
      return numerics::half_to_float(reinterpret_cast<const std::uint16_t*>(data)[at]);
    } else if constexpr (kType == ParameterType::bf16) {
      return numerics::bfloat_to_float(reinterpret_cast<const std::uint16_t*>(data)[at]);
    } else if constexpr (kType == ParameterType::e8m0) {
      return numerics::e8m0_to_float(data[at]);
    } else if constexpr (kType == ParameterType::e4m3) {
      return numerics::e4m3_to_float(data[at]);
    } else if constexpr (kType == ParameterType::u4 || kType == ParameterType::z4) {
      return static_cast<float>(data[(p >> 1) * kRows + lane] >> (p & 1) * 4 & 15);
    } else if constexpr (kType == ParameterType::u6) {
      const std::uint8_t* group = data + (p >> 3) * (6 * kRows) + lane;
      const int low = group[(p >> 1 & 3) * kRows] >> (p & 1) * 4 & 15;
      const int high = group[(4 + (p >> 2 & 1)) * kRows] >> (p & 3) * 2 & 3;
      return static_cast<float>(low | high << 4);
    } else {
      return static_cast<float>(data[at]);
    }
  }
  __device__ __forceinline__ float super_of(const ParameterForm& a, int p) const {
    return numerics::half_to_float(super[(p >> a.super_shift) * kRows + lane]);
  }
};

}  // namespace qcore
