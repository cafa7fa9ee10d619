#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "formats/block_parameters.h"
#include "formats/encoded_storage.h"
#include "formats/packed_block.h"
#include "formats/packed_layout.h"
#include "numerics/block_scale.h"
#include "qcore/quantize.h"

namespace qcore {

// Where the parts of a weight lie in its one block of memory: codes, scales, offsets, each at a multiple of 64 bytes.
struct StorageLayout {
  static constexpr std::int64_t kPartAlignment = 64;

  std::int64_t scales = 0, offsets = 0, bytes = 0;  // where scales and offsets begin, and where the memory ends

  // Parameters take 2 bytes (fp16) or 4 (fp32); offset_size is 0 for a symmetric weight.
  constexpr StorageLayout(const PackedLayout& layout, std::int64_t scale_size, std::int64_t offset_size)
      : scales(aligned(layout.code_bytes())),
        offsets(scales + aligned(layout.parameter_count() * scale_size)),
        bytes(offsets + aligned(layout.parameter_count() * offset_size)) {}

 private:
  static constexpr std::int64_t aligned(std::int64_t bytes_of_part) {
    return (bytes_of_part + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  }
};

// The storage behind QuantizedTensor; immutable once built.
struct PackedWeight {
  PackedLayout layout;
  int rank = 2;
  std::int64_t shape[4] = {};
  Scheme scheme = Scheme::symmetric;
  Device device;

  const std::uint8_t* codes = nullptr;  // layout.code_bytes()
  BlockParameters scales;               // layout.parameter_count(); fp32 on a CUDA device
  BlockParameters offsets;              // the same, or null for a symmetric weight
  // Set for weights of 4 bits of which this is known: every offset is scale * (8 - z) exactly, with an integer z from 0
  // to 15, so that a weight is scale * (stored code - z). The magnitudes of finite scales are 0 or from 2^-100 to
  // 2^100.
  bool has_zero_points = false;
  std::shared_ptr<const void> memory;  // owns codes, scales and offsets, which lie as storage() says

  // Set for an encoded weight: `codes` then points to planes, and this holds the scales and offsets; `scales` and
  // `offsets` above are null.
  std::optional<EncodedWeight> encoded;

  StorageLayout storage() const { return StorageLayout(layout, scales.item_size(), offsets ? offsets.item_size() : 0); }

  // Takes memory that has the parts, or room for them, in parameters of these widths.
  void set_memory(std::shared_ptr<const void> owner, bool half_scales, bool half_offsets) {
    const bool has_offsets = scheme == Scheme::asymmetric;
    const StorageLayout parts(layout, half_scales ? 2 : 4, !has_offsets ? 0 : half_offsets ? 2 : 4);
    const auto* begin = static_cast<const std::uint8_t*>(owner.get());
    codes = begin;
    scales = {begin + parts.scales, half_scales};
    offsets = {has_offsets ? begin + parts.offsets : nullptr, has_offsets && half_offsets};
    memory = std::move(owner);
  }

  // Takes memory that has the parts of an encoded weight, or room for them.
  void set_encoded_memory(const WeightEncoding& encoding, std::shared_ptr<const void> owner) {
    encoded.emplace(encoding, layout);
    encoded->set_memory(layout, owner.get());
    codes = static_cast<const std::uint8_t*>(owner.get());
    memory = std::move(owner);
  }

  bool has_offsets() const { return scheme == Scheme::asymmetric; }
  // Whether has_zero_points may be set: reads all parameters of a plain weight in the CPU's memory.
  bool finds_zero_points() const;
  std::int64_t storage_bytes() const { return encoded ? encoded->parts(layout).bytes : storage().bytes; }

  // q of one element.
  int code(std::int64_t row, std::int64_t k, std::int64_t tap = 0) const {
    const auto place = layout.place(row, k, tap);
    if (encoded) {
      const std::int64_t panel = row / PackedLayout::kPanelRows, byte = place.byte - panel * layout.panel_bytes();
      return encoded->code(encoded->code_planes().get<std::uint8_t>(codes + panel * encoded->code_panel_bytes(layout),
                                                                    byte / PackedLayout::kStepBytes,
                                                                    byte % PackedLayout::kStepBytes));
    }
    const int stored = layout.bits == 8 ? codes[place.byte] : codes[place.byte] >> place.shift & 15;
    return stored - layout.zero_code();
  }
  float scale(std::int64_t row, std::int64_t p) const {
    return encoded ? encoded->scale(row, p) : scales[layout.parameter_index(row, p)];
  }
  float offset(std::int64_t row, std::int64_t p) const {
    if (encoded) return has_offsets() ? encoded->offset(row, p) : 0.0f;
    return offsets ? offsets[layout.parameter_index(row, p)] : 0.0f;
  }

  // Decodes the codes of one block: w = numerics::decode(code + shift, scale, offset).
  struct BlockDecoder {
    int shift;
    float scale, offset;
    float value(int code) const { return numerics::decode(code + shift, scale, offset); }
  };
  BlockDecoder decoder(std::int64_t row, std::int64_t p) const {
    const int shift = encoded ? encoded->code_shift(row, p) : 0;
    return {shift, scale(row, p), shift ? 0.0f : offset(row, p)};
  }

  // The sum of each block's dequantized weights, placed like the scales (a tap's panels after each other): what
  // activations with an offset are multiplied by. Computed at the first use, once.
  const float* weight_sums() const;

 private:
  mutable std::once_flag sums_once_;
  mutable std::unique_ptr<float[]> sums_;
};

// Reads the int8 codes of a weight's blocks.
class BlockReader {
 public:
  explicit BlockReader(const PackedWeight& weight) : weight_(weight), places_(weight.layout) {}

  // int8 [block_length(p)]
  void read(std::int64_t row, std::int64_t p, std::int64_t tap, std::int8_t* codes) const {
    const PackedLayout& layout = weight_.layout;
    const std::int64_t first = places_.first(row, p, tap), length = layout.block_length(p);
    if (!weight_.encoded) return unpack_block(weight_.codes + first, length, layout.bits, codes);
    const EncodedWeight& encoded = *weight_.encoded;
    const Planes planes = encoded.code_planes();
    const std::int64_t panel = row / PackedLayout::kPanelRows, step_k = layout.step_k();
    const std::uint8_t* data = weight_.codes + panel * encoded.code_panel_bytes(layout);
    const std::int64_t step = layout.block_first_step(p), lane = step_k * (row % PackedLayout::kPanelRows);
    for (std::int64_t k = 0; k < length; k += step_k) {
      std::uint32_t numbers = planes.get<std::uint32_t>(data, step + k / step_k, lane);
      for (std::int64_t i = k; i < std::min(length, k + step_k); ++i, numbers >>= 8)
        codes[i] = static_cast<std::int8_t>(encoded.code(numbers & 255u));
    }
  }

 private:
  const PackedWeight& weight_;
  BlockPlaces places_;
};

}  // namespace qcore
