#pragma once

#include <cstdint>

#include "formats/packed_layout.h"
#include "formats/planes.h"
#include "numerics/half_bits.h"
#include "numerics/small_floats.h"
#include "qcore/quantize.h"

// Where the parts of an encoded weight lie, and what they say. Its PackedLayout is that of the same weight in plain
// codes of 8 bits, whose steps (64 bytes: 16 rows, 4 k) are the vectors of the codes' planes, and whose blocks
// (16 rows) are the vectors of the parameters.
namespace qcore {

QCORE_INLINE constexpr bool is_integer(ParameterType type) {
  return type == ParameterType::u4 || type == ParameterType::u6 || type == ParameterType::u8;
}

QCORE_INLINE constexpr bool is_zero_point(ParameterType type) {
  return type == ParameterType::z4 || type == ParameterType::z8;
}

// Bits of a number of this type; 0 for none.
QCORE_INLINE constexpr int parameter_bits(ParameterType type) {
  switch (type) {
    case ParameterType::none:
      return 0;
    case ParameterType::f32:
      return 32;
    case ParameterType::f16:
    case ParameterType::bf16:
      return 16;
    case ParameterType::u4:
    case ParameterType::z4:
      return 4;
    case ParameterType::u6:
      return 6;
    default:
      return 8;
  }
}

// Returns the dtype of an array of such numbers, in EncodedParts.
inline DType array_dtype(ParameterType type) {
  switch (type) {
    case ParameterType::f32:
      return DType::f32;
    case ParameterType::f16:
      return DType::f16;
    case ParameterType::bf16:
      return DType::bf16;
    default:
      return DType::u8;
  }
}

// One kind of parameter, [panels][P][16 rows], and the super-parameters of its integers, [panels][ceil(P / S)][16].
struct EncodedParameters {
  ParameterType type = ParameterType::none;
  const std::uint8_t* data = nullptr;
  const std::uint16_t* super = nullptr;  // fp16
  std::int64_t blocks = 0, super_block = 0;

  QCORE_INLINE std::int64_t panel_bytes() const {
    constexpr std::int64_t kRows = PackedLayout::kPanelRows;
    const int bits = parameter_bits(type);
    return bits > 8 ? blocks * kRows * bits / 8 : Planes{bits, kRows}.bytes(blocks);
  }
  QCORE_INLINE std::int64_t supers() const { return super_block ? (blocks + super_block - 1) / super_block : 0; }

  // The number of one block: an integer, or the float that it stands for.
  QCORE_INLINE float number(std::int64_t row, std::int64_t p) const {
    const std::int64_t lane = row % PackedLayout::kPanelRows, at = p * PackedLayout::kPanelRows + lane;
    const std::uint8_t* panel = data + row / PackedLayout::kPanelRows * panel_bytes();
    switch (type) {
      case ParameterType::f32:
        return reinterpret_cast<const float*>(panel)[at];
      case ParameterType::f16:
        return numerics::half_to_float(reinterpret_cast<const std::uint16_t*>(panel)[at]);
      case ParameterType::bf16:
        return numerics::bfloat_to_float(reinterpret_cast<const std::uint16_t*>(panel)[at]);
      case ParameterType::e8m0:
        return numerics::e8m0_to_float(panel[at]);
      case ParameterType::e4m3:
        return numerics::e4m3_to_float(panel[at]);
      default:
        return static_cast<float>(
            Planes{parameter_bits(type), PackedLayout::kPanelRows}.get<std::uint8_t>(panel, p, lane));
    }
  }
  QCORE_INLINE float super_of(std::int64_t row, std::int64_t p) const {
    const std::int64_t panel = row / PackedLayout::kPanelRows;
    return numerics::half_to_float(
        super[(panel * supers() + p / super_block) * PackedLayout::kPanelRows + row % PackedLayout::kPanelRows]);
  }
};

struct EncodedWeight {
  WeightEncoding encoding;
  EncodedParameters scales, offsets;

  QCORE_INLINE Planes code_planes() const { return {encoding.bits, PackedLayout::kStepBytes}; }
  QCORE_INLINE std::int64_t code_panel_bytes(const PackedLayout& layout) const {
    return code_planes().bytes(layout.steps());
  }

  // The definitions of WeightEncoding.
  QCORE_INLINE int code(unsigned u) const {
    return encoding.has_codebook ? encoding.codebook[u] : static_cast<int>(u) - encoding.zero;
  }
  QCORE_INLINE float scale(std::int64_t row, std::int64_t p) const {
    const float number = scales.number(row, p);
    if (is_integer(encoding.scales))
      return scales.super_of(row, p) * (number - static_cast<float>(encoding.scale_zero));
    return parameter_bits(encoding.scales) == 8 ? number * encoding.tensor_scale : number;
  }
  QCORE_INLINE float offset(std::int64_t row, std::int64_t p) const {
    const float number = offsets.number(row, p);
    if (is_zero_point(encoding.offsets)) return scale(row, p) * (static_cast<float>(encoding.zero) - number);
    return is_integer(encoding.offsets) ? -(offsets.super_of(row, p) * number) : number;
  }
  // Returns the integer that makes w = scale * (q + integer) exact without an offset; 0 where fp32 holds the offset.
  QCORE_INLINE int code_shift(std::int64_t row, std::int64_t p) const {
    if (!is_zero_point(encoding.offsets)) return 0;
    const int shift = encoding.zero - static_cast<int>(offsets.number(row, p));
    const double wide = static_cast<double>(scale(row, p)) * shift;
    return static_cast<double>(static_cast<float>(wide)) == wide ? 0 : shift;
  }

  // The place where each part begins, at multiples of 64 bytes, and where the memory ends.
  struct Parts {
    std::int64_t scales, super_scales, offsets, super_offsets, bytes;
  };
  // Bytes of the parts one after the other; `total` is without what aligns them.
  Parts parts(const PackedLayout& layout, std::int64_t* total = nullptr) const {
    const std::int64_t panels = layout.panels(), supers = scales.supers() * PackedLayout::kPanelRows * 2;
    std::int64_t end = 0, sum = 0;
    const auto add = [&](std::int64_t bytes) {
      end = (end + panels * bytes + 63) / 64 * 64;
      sum += panels * bytes;
      return end;
    };
    Parts result{};
    result.scales = add(code_panel_bytes(layout));
    result.super_scales = add(scales.panel_bytes());
    result.offsets = add(is_integer(encoding.scales) ? supers : 0);
    result.super_offsets = add(encoding.offsets == ParameterType::none ? 0 : offsets.panel_bytes());
    result.bytes = add(is_integer(encoding.offsets) ? supers : 0);
    if (total) *total = sum;
    return result;
  }

  EncodedWeight(const WeightEncoding& given, const PackedLayout& layout) : encoding(given) {
    scales.type = given.scales, offsets.type = given.offsets;
    scales.blocks = offsets.blocks = layout.blocks();
    scales.super_block = offsets.super_block = given.super_block;
  }

  void set_memory(const PackedLayout& layout, const void* memory) {
    const auto* begin = static_cast<const std::uint8_t*>(memory);
    const Parts at = parts(layout);
    scales.data = begin + at.scales;
    scales.super = reinterpret_cast<const std::uint16_t*>(begin + at.super_scales);
    offsets.data = begin + at.offsets;
    offsets.super = reinterpret_cast<const std::uint16_t*>(begin + at.super_offsets);
  }
};

}  // namespace qcore
