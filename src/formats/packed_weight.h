#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "formats/block_parameters.h"
#include "formats/packed_layout.h"
#include "qcore/quantize.h"

namespace qcore {

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
  std::shared_ptr<const void> code_storage, scale_storage, offset_storage;

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

  // The sum of each block's dequantised weights, placed like the scales (a tap's panels after each other): what
  // activations with an offset are multiplied by. Computed at the first use, once.
  const float* weight_sums() const;

 private:
  mutable std::once_flag sums_once_;
  mutable std::unique_ptr<float[]> sums_;
};

}  // namespace qcore
