#pragma once

#include <memory>

#include "formats/packed_block.h"
#include "formats/packed_weight.h"

namespace qcore {

// Throws in the name of `op` unless block_size and all extents are within bounds, and the weight is so small that
// counts of its codes, bits and bytes do not overflow.
void check_weight_size(const char* op, const char* argument, int rank, const std::int64_t* shape,
                       std::int64_t block_size);

// Checks the weight's shape, bits and block size, and allocates its storage: padding written, the rest not. Parameters
// are fp32 until finish_weight(), unless it is known that all of them are fp16: then the memory is where they stay.
std::shared_ptr<PackedWeight> allocate_weight(const char* op, const char* argument, const TensorView& shaped_like,
                                              int bits, std::int64_t block_size, Scheme scheme,
                                              bool half_parameters = false);

// Returns whether the scales, and the offsets if there are any, are fp16 arrays.
bool are_half(const TensorView& scales, const TensorView* offsets);

// Throws in the name of `op` unless scales, and offsets, are finite floating-point arrays [N, P] on the CPU.
void check_parameter_arrays(const char* op, const PackedWeight& weight, const TensorView& scales,
                            const TensorView* offsets);

// Writes them into a freshly allocated weight.
void set_parameters(const PackedWeight& weight, const TensorView& scales, const TensorView* offsets);

// Moves a filled weight on the CPU to memory where it stays. Scales, and offsets, take half the bytes there if every
// one of them is exact in fp16.
void finish_weight(PackedWeight& weight);

// Fills a freshly allocated weight; different rows may be written by different threads.
class PackedWriter {
 public:
  explicit PackedWriter(const PackedWeight& weight)
      : layout_(weight.layout),
        places_(weight.layout),
        codes_(const_cast<std::uint8_t*>(weight.codes)),
        scales_(static_cast<float*>(const_cast<void*>(weight.scales.data))),
        offsets_(static_cast<float*>(const_cast<void*>(weight.offsets.data))) {}

  void set_code(std::int64_t row, std::int64_t k, std::int64_t tap, int code) {
    const auto place = layout_.place(row, k, tap);
    const unsigned stored = static_cast<unsigned>(code + layout_.zero_code());
    if (layout_.bits == 8)
      codes_[place.byte] = static_cast<std::uint8_t>(stored);
    else
      codes_[place.byte] =
          static_cast<std::uint8_t>((codes_[place.byte] & ~(15u << place.shift)) | stored << place.shift);
  }

  // int8 [block_length(p)]
  void set_block(std::int64_t row, std::int64_t p, std::int64_t tap, const std::int8_t* codes, std::int64_t length) {
    pack_block(codes, length, layout_.bits, codes_ + places_.first(row, p, tap));
  }

  // Writes the parameters of a block into a weight that was allocated with fp32 ones.
  void set_parameters(std::int64_t row, std::int64_t p, float scale, float offset) {
    const std::int64_t at = places_.parameter(row, p);
    scales_[at] = scale;
    if (offsets_) offsets_[at] = offset;
  }

 private:
  PackedLayout layout_;
  BlockPlaces places_;
  std::uint8_t* codes_;
  float* scales_;
  float* offsets_;
};

}  // namespace qcore
