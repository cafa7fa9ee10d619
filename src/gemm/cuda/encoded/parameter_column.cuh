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

// The scales or the offsets of rows lane .. lane + kLanes - 1 of a panel, which has its numbers at `data` and its
// super-parameters at `super`: the values that EncodedWeight has. `lane` is a multiple of kLanes, 1 or 4, whose numbers
// are loaded together.
template <ParameterType kType, int kLanes = 1>
struct ParameterColumn {
  using Values = float[kLanes];

  const std::uint8_t* data;
  const std::uint16_t* super;
  int lane;

  __device__ __forceinline__ void scales(const ParameterForm& a, int p, Values& to) const {
    numbers_of(p, to);
    Values supers = {};
    if constexpr (is_integer(kType)) supers_of(a, p, supers);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (is_integer(kType))
        to[i] = supers[i] * (to[i] - a.scale_zero);
      else if constexpr (kType == ParameterType::e8m0 || kType == ParameterType::e4m3)
        to[i] *= a.tensor_scale;
    }
  }
  // `scales` are those of the block.
  __device__ __forceinline__ void offsets(const ParameterForm& a, int p, const Values& scales, Values& to) const {
    numbers_of(p, to);
    Values supers = {};
    if constexpr (is_integer(kType)) supers_of(a, p, supers);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (is_zero_point(kType))
        to[i] = scales[i] * (a.offset_zero - to[i]);
      else if constexpr (is_integer(kType))
        to[i] = -(supers[i] * to[i]);
    }
  }

 private:
  static constexpr int kRows = static_cast<int>(PackedLayout::kPanelRows);

  template <class T>
  struct alignas(sizeof(T) * kLanes) Lanes {
    T of[kLanes];
  };
  template <class T>
  __device__ __forceinline__ Lanes<T> load(int vector) const {
    return reinterpret_cast<const Lanes<T>*>(data)[(vector * kRows + lane) / kLanes];
  }

  __device__ __forceinline__ void numbers_of(int p, Values& to) const {
    const auto each = [&](const auto& number) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) to[i] = number(i);
    };
    if constexpr (kType == ParameterType::f32) {
      const auto stored = load<float>(p);
      each([&](int i) { return stored.of[i]; });
    } else if constexpr (kType == ParameterType::f16) {
      const auto stored = load<std::uint16_t>(p);
      each([&](int i) { return numerics::half_to_float(stored.of[i]); });
    } else if constexpr (kType == ParameterType::bf16) {
      const auto stored = load<std::uint16_t>(p);
      each([&](int i) { return numerics::bfloat_to_float(stored.of[i]); });
    } else if constexpr (kType == ParameterType::e8m0) {
      const auto stored = load<std::uint8_t>(p);
      each([&](int i) { return numerics::e8m0_to_float(stored.of[i]); });
    } else if constexpr (kType == ParameterType::e4m3) {
      const auto stored = load<std::uint8_t>(p);
      each([&](int i) { return numerics::e4m3_to_float(stored.of[i]); });
    } else if constexpr (kType == ParameterType::u4 || kType == ParameterType::z4) {
      const auto stored = load<std::uint8_t>(p >> 1);
      each([&](int i) { return static_cast<float>(stored.of[i] >> (p & 1) * 4 & 15); });
    } else if constexpr (kType == ParameterType::u6) {
      const int group = (p >> 3) * 6;
      const auto low = load<std::uint8_t>(group + (p >> 1 & 3)), high = load<std::uint8_t>(group + 4 + (p >> 2 & 1));
      each([&](int i) {
        return static_cast<float>((low.of[i] >> (p & 1) * 4 & 15) | (high.of[i] >> (p & 3) * 2 & 3) << 4);
      });
    } else {
      const auto stored = load<std::uint8_t>(p);
      each([&](int i) { return static_cast<float>(stored.of[i]); });
    }
  }
  __device__ __forceinline__ void supers_of(const ParameterForm& a, int p, Values& to) const {
    const auto stored =
        reinterpret_cast<const Lanes<std::uint16_t>*>(super)[((p >> a.super_shift) * kRows + lane) / kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) to[i] = numerics::half_to_float(stored.of[i]);
  }
};

}  // namespace qcore
