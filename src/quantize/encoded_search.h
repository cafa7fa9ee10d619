#pragma once

#include <cstdint>

#include "formats/encoded_storage.h"
#include "quantize/cpu/vtable.h"

// Parameters of a weight's blocks in an encoding, chosen for a small squared error.
namespace qcore {

// The integers q of an encoding, and the codes u that stand for them.
class EncodingCodes {
 public:
  explicit EncodingCodes(const WeightEncoding& encoding);

  const CodeTable& table() const { return table_; }
  std::uint8_t stored(float q) const {
    const int integer = static_cast<int>(q);
    return table_.codebook ? stored_[integer + 128] : static_cast<std::uint8_t>(integer + zero_);
  }

 private:
  CodeTable table_{};
  int zero_;
  std::uint8_t stored_[256] = {};  // of q + 128
};

// The parameters of a block: their values, and the numbers that are stored (the bits of a float, or an integer).
struct StoredParameters {
  float scale = 0.0f, offset = 0.0f;
  std::uint32_t scale_number = 0, offset_number = 0;

  // 0 for a scale so small that it has none: the block's codes are those nearest to 0 then.
  float inverse() const {
    const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    return numerics::is_finite(inverse) ? inverse : 0.0f;
  }
};

// A block of finite values, and the parameters that it gets.
struct EncodedBlock {
  EncodedValues data{};
  float lo = 0.0f, hi = 0.0f;  // of the values

  StoredParameters parameters;
  double error = 0.0;  // sum of importance * (value - decoded)^2
  // Sums of the importance, and of it times the values and their squares.
  double one = 0.0, value = 0.0, square = 0.0;
};

// Holds the scale and the offset that the blocks of a super-block share, fp16.
struct SuperParameters {
  std::uint16_t scale = 0, offset = 0;
};

class EncodedSearch {
 public:
  // Without a search no value is clipped, but for what the rounding of the parameters clips.
  EncodedSearch(const WeightEncoding& encoding, bool search, const EncodedKernels& kernels)
      : encoding_(encoding),
        codes_(encoding),
        kernels_(kernels),
        search_(search),
        integer_scales_(is_integer(encoding.scales)),
        integer_offsets_(is_integer(encoding.offsets)) {}

  const EncodingCodes& codes() const { return codes_; }

  // Chooses the parameters of blocks [count] that share super-parameters, or of one block if the encoding has none.
  // Returns false if the encoding cannot hold a parameter that is large enough.
  bool run(EncodedBlock* blocks, std::int64_t count, SuperParameters& super) const;

 private:
  enum class Stored { yes, too_small, too_large };

  // These choose the parameters of one block. Scales and offsets whose type is an integer stay floats until
  // choose_numbers() knows the super-parameters that they are multiples of.
  bool fit(EncodedBlock& block) const;
  Stored first_parameters(const EncodedBlock& block, StoredParameters& parameters) const;
  void search_scale(EncodedBlock& block) const;
  void search_span(EncodedBlock& block) const;
  // Considers the least-squares parameters for the codes that some parameters give.
  void consider_fit(EncodedBlock& block, float scale, float offset) const;
  void consider(EncodedBlock& block, float scale, float offset) const;
  Stored store(float scale, float offset, StoredParameters& parameters) const;
  Stored store_offset(float offset, StoredParameters& parameters) const;

  // These choose the integers and the super-parameters of a super-block, whose blocks `fitted` are results of fit().
  double choose_numbers(const EncodedBlock* fitted, EncodedBlock* blocks, std::int64_t count,
                        const SuperParameters& super, bool search) const;
  bool refine(const EncodedBlock* fitted, EncodedBlock* blocks, std::int64_t count, SuperParameters& super) const;

  double error(const EncodedBlock& block, const StoredParameters& parameters) const {
    return kernels_.error(codes_.table(), block.data, parameters.scale, parameters.inverse(), parameters.offset);
  }
  bool negative_scales() const {
    return integer_scales_ ? encoding_.scale_zero > 0 : parameter_bits(encoding_.scales) > 8;
  }

  const WeightEncoding& encoding_;
  EncodingCodes codes_;
  const EncodedKernels kernels_;
  bool search_, integer_scales_, integer_offsets_;
};

}  // namespace qcore
