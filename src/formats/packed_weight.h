#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "formats/block_parameters.h"
#include "formats/packed_layout.h"
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
  std::shared_ptr<const void> memory;   // owns all three, which lie in it as storage() says

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

  // q of one element.
  int code(std::int64_t row, std::int64_t k, std::int64_t tap = 0) const {
    const auto place = layout.place(row, k, tap);
    const int stored = layout.bits == 8 ? codes[place.byte] : codes[place.byte] >> place.shift & 15;
    return stored - layout.zero_code();
  }
  float scale(std::int64_t row, std::int64_t p) const { return scales[layout.parameter_index(row, p)]; }
  float offset(std::int64_t row, std::int64_t p) const {
    return offsets ? offsets[layout.parameter_index(row, p)] : 0.0f;
  }

  // The sum of each block's dequantized weights, placed like the scales (a tap's panels after each other): what
  // activations with an offset are multiplied by. Computed at the first use, once.
  const float* weight_sums() const;

 private:
  mutable std::once_flag sums_once_;
  mutable std::unique_ptr<float[]> sums_;
};

}  // namespace qcore
