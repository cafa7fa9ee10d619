#pragma once

#include "formats/packed_weight.h"
#include "runtime/cuda/cuda_scratch.h"

// Encoded weights on a device in their plain form: codes of 8 bits, or of 4 that are read where they are, fp32 scales
// and offsets.
namespace qcore {

// An encoded weight as a kernel takes it: plain values, passed by copy.
struct DeviceEncoded {
  EncodedWeight encoded;
  const std::uint8_t* codes;
  PackedLayout layout;

  explicit DeviceEncoded(const PackedWeight& weight)
      : encoded(*weight.encoded), codes(weight.codes), layout(weight.layout) {}

  // Returns the four codes q + 128 of a row in a step.
  __device__ __forceinline__ std::uint32_t stored_codes(std::int64_t panel, std::int64_t step, int row) const {
    const WeightEncoding& encoding = encoded.encoding;
    const std::uint32_t numbers = encoded.code_planes().get<std::uint32_t>(
        codes + panel * encoded.code_panel_bytes(layout), step, 4 * static_cast<std::int64_t>(row));
    if (!encoding.has_codebook) return numbers + 0x01010101u * static_cast<std::uint32_t>(128 - encoding.zero);
    std::uint32_t stored = 0;
    for (int i = 0; i < 4; ++i)
      stored |= static_cast<std::uint32_t>(encoding.codebook[numbers >> (8 * i) & 15u] + 128) << (8 * i);
    return stored;
  }
};

// Returns the bytes that the plain form of so many panels takes.
std::int64_t expanded_bytes(const PackedWeight& weight, std::int64_t panels);

// Panels [first, first + panels) of an encoded weight in plain form, in scratch memory: an operand of every kernel that
// reads plain weights, for work that is enqueued on `stream` during the object's lifetime. The values are those of
// PackedWeight::code(), scale() and offset().
//
// Numbers of 4 bits in blocks of whole steps lie as plain codes do. They are used where they are if they stand for -8
// to 7, or for 0 to 15 and User::from_zero.
class ExpandedWeight {
 public:
  struct User {
    bool from_zero = false;  // takes plain codes of 4 bits that stand for 0 to 15
    bool overlaps = false;   // the next kernel may overlap, for it does not need the weight; those that do wait
  };
  ExpandedWeight(const PackedWeight& weight, std::int64_t first, std::int64_t panels, cudaStream_t stream,
                 const User& user);
  const PackedWeight& plain() const { return plain_; }
  bool counts_from_zero() const { return counts_from_zero_; }

 private:
  PackedWeight plain_;
  bool counts_from_zero_ = false;
  ScratchSlot<std::uint8_t> codes_{};
  ScratchSlot<float> scales_{}, offsets_{};
  CudaScratch scratch_;

  ScratchPlan plan(const PackedWeight& weight, std::int64_t first, std::int64_t panels, const User& user);
};

}  // namespace qcore
