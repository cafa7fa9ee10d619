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

// Calls visit(std::integral_constant<ParameterType, type>) for a type that scales or offsets can have. Each type has
// code of its own, so that few instructions are fetched and run for a parameter; nothing is called for `none`.
template <bool kOffsets, class Visit>
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
    case T::u4:
      return visit(std::integral_constant<T, T::u4>{});
    case T::u6:
      return visit(std::integral_constant<T, T::u6>{});
    case T::u8:
      return visit(std::integral_constant<T, T::u8>{});
    case T::e8m0:
      if constexpr (!kOffsets) visit(std::integral_constant<T, T::e8m0>{});
      return;
    case T::e4m3:
      if constexpr (!kOffsets) visit(std::integral_constant<T, T::e4m3>{});
      return;
    case T::z4:
      if constexpr (kOffsets) visit(std::integral_constant<T, T::z4>{});
      return;
    case T::z8:
      if constexpr (kOffsets) visit(std::integral_constant<T, T::z8>{});
      return;
  }
}

// The scale or the offset that a stored number stands for, `super` being the super-parameter if it is an integer.
template <ParameterType kType>
__device__ __forceinline__ float scale_of(const ParameterForm& a, float number, float super) {
  if constexpr (is_integer(kType)) return super * (number - a.scale_zero);
  if constexpr (kType == ParameterType::e8m0 || kType == ParameterType::e4m3) return number * a.tensor_scale;
  return number;
}
template <ParameterType kType>
__device__ __forceinline__ float offset_of(const ParameterForm& a, float number, float super, float scale) {
  if constexpr (is_zero_point(kType)) return scale * (a.offset_zero - number);
  if constexpr (is_integer(kType)) return -(super * number);
  return number;
}

// The numbers of one row's four blocks from `first` on, a multiple of four; those of blocks that do not exist, from
// `blocks` on, are any. `data` and `super` are of the row's panel. What the blocks share is loaded once.
template <ParameterType kType>
struct FourBlocks {
  static constexpr int kBlocks = 4;
  float numbers[kBlocks], supers[kBlocks];

  __device__ __forceinline__ FourBlocks(const ParameterForm& a, const std::uint8_t* data, const std::uint16_t* super,
                                        int lane, unsigned first, unsigned blocks) {
    using T = ParameterType;
    constexpr unsigned kRows = static_cast<unsigned>(PackedLayout::kPanelRows);
    const auto each = [&](const auto& number) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) numbers[i] = number(i);
    };
    const auto load = [&](auto zero) {
      using Stored = decltype(zero);
      const auto* from = reinterpret_cast<const Stored*>(data) + first * kRows + lane;
      // Planes are padded to groups of eight blocks, so that four exist in memory.
      return [=](int i) { return sizeof(Stored) == 1 || first + i < blocks ? from[i * kRows] : Stored{}; };
    };
    if constexpr (kType == T::f32) {
      each(load(0.0f));
    } else if constexpr (kType == T::f16) {
      const auto stored = load(std::uint16_t{});
      each([&](int i) { return numerics::half_to_float(stored(i)); });
    } else if constexpr (kType == T::bf16) {
      const auto stored = load(std::uint16_t{});
      each([&](int i) { return numerics::bfloat_to_float(stored(i)); });
    } else if constexpr (kType == T::e8m0) {
      const auto stored = load(std::uint8_t{});
      each([&](int i) { return numerics::e8m0_to_float(stored(i)); });
    } else if constexpr (kType == T::e4m3) {
      const auto stored = load(std::uint8_t{});
      each([&](int i) { return numerics::e4m3_to_float(stored(i)); });
    } else if constexpr (kType == T::u4 || kType == T::z4) {
      const std::uint8_t* from = data + first / 2 * kRows + lane;
      const unsigned pairs[2] = {from[0], from[kRows]};
      each([&](int i) { return static_cast<float>(pairs[i / 2] >> i % 2 * 4 & 15); });
    } else if constexpr (kType == T::u6) {
      const std::uint8_t* group = data + first / 8 * (6 * kRows) + lane;
      const std::uint8_t* from = group + first % 8 / 2 * kRows;
      const unsigned low[2] = {from[0], from[kRows]}, high = group[(4 + first % 8 / 4) * kRows];
      each([&](int i) { return static_cast<float>((low[i / 2] >> i % 2 * 4 & 15) | (high >> i * 2 & 3) << 4); });
    } else {
      const auto stored = load(std::uint8_t{});
      each([&](int i) { return static_cast<float>(stored(i)); });
    }
    if constexpr (is_integer(kType)) {
      if (a.super_shift >= 2) {
        const float shared = numerics::half_to_float(super[(first >> a.super_shift) * kRows + lane]);
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) supers[i] = shared;
      } else {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i)
          supers[i] =
              first + i < blocks ? numerics::half_to_float(super[((first + i) >> a.super_shift) * kRows + lane]) : 0.0f;
      }
    }
  }

  __device__ __forceinline__ float4 scales(const ParameterForm& a) const {
    return {scale_of<kType>(a, numbers[0], supers[0]), scale_of<kType>(a, numbers[1], supers[1]),
            scale_of<kType>(a, numbers[2], supers[2]), scale_of<kType>(a, numbers[3], supers[3])};
  }
  __device__ __forceinline__ float4 offsets(const ParameterForm& a, const float4& scales) const {
    return {offset_of<kType>(a, numbers[0], supers[0], scales.x), offset_of<kType>(a, numbers[1], supers[1], scales.y),
            offset_of<kType>(a, numbers[2], supers[2], scales.z), offset_of<kType>(a, numbers[3], supers[3], scales.w)};
  }
};

// The scales or the offsets of kLanes rows of a panel, from `lane` on, which is a multiple of kLanes: the values that
// EncodedWeight has. Their numbers are loaded together.
template <ParameterType kType, int kLanes>
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
    for (int i = 0; i < kLanes; ++i) to[i] = scale_of<kType>(a, to[i], supers[i]);
  }
  // `scales` are those of the block.
  __device__ __forceinline__ void offsets(const ParameterForm& a, int p, const Values& scales, Values& to) const {
    numbers_of(p, to);
    Values supers = {};
    if constexpr (is_integer(kType)) supers_of(a, p, supers);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) to[i] = offset_of<kType>(a, to[i], supers[i], scales[i]);
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
