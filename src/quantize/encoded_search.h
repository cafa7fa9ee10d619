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
  // Writes the codes of q [length].
  void store(const float* q, std::int64_t length, std::uint8_t* stored) const {
    if (table_.codebook)
      for (std::int64_t i = 0; i < length; ++i) stored[i] = stored_[static_cast<int>(q[i]) + 128];
    else
      for (std::int64_t i = 0; i < length; ++i) stored[i] = static_cast<std::uint8_t>(static_cast<int>(q[i]) + zero_);
  }

 private:
  CodeTable table_{};
  int zero_;
  std::uint8_t stored_[256] = {};  // of q + 128
};

// 1 / scale, or 0 for a scale that has no finite one: the block's codes are those nearest to 0 then.
inline float inverse_or_zero(float scale) {
  const float inverse = 1.0f / scale;
  return numerics::is_finite(inverse) ? inverse : 0.0f;
}

// The parameters of a block: their values, and the numbers that are stored (the bits of a float, or an integer).
struct StoredParameters {
  float scale, inverse, offset;
  std::uint32_t scale_number, offset_number;

  void set_scale(float value) {
    scale = value;
    inverse = inverse_or_zero(value);
  }
};

// A block of finite values, and the parameters that it gets.
struct EncodedBlock {
  EncodedValues data{};
  float lo = 0.0f, hi = 0.0f;  // of the values

  StoredParameters parameters{};
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
        integer_offsets_(is_integer(encoding.offsets)) {
    stay_floats_ = integer_scales_ && (encoding.offsets == ParameterType::none || integer_offsets_);
    negative_without_offset_ = negative_scales() && encoding.offsets == ParameterType::none;
    // The more codes there are, the less of the range is worth clipping.
    const int bits = encoding.bits;
    steps_ = bits <= 3 ? 10 : bits == 4 ? 8 : 5;
    const float least = bits <= 3 ? 0.4f : bits == 4 ? 0.55f : bits == 5 ? 0.75f : 0.85f;
    for (int step = 0; step <= steps_; ++step)
      shrunk_[step] = 1.0f - (1.0f - least) * static_cast<float>(step) / static_cast<float>(steps_);
  }

  const EncodingCodes& codes() const { return codes_; }

  // Chooses the parameters of blocks [count], which share super-parameters if the encoding has any.
  // Returns false if the encoding cannot hold a parameter that is large enough.
  bool run(EncodedBlock* blocks, std::int64_t count, SuperParameters& super) const;

 private:
  enum class Stored { yes, too_small, too_large };

  // Candidates and blocks of a call of the kernels.
  static constexpr int kMaxTasks = 32;

  // Parameters that a block gets if its error is smaller with them, and if kGain times its error exceeds `estimate`
  // when their turn comes: the error with the codes that they were fitted to.
  struct Candidate {
    EncodedBlock* block;
    StoredParameters parameters;
    double estimate;
  };

  // These choose the parameters of each of up to kMaxTasks blocks. Scales and offsets whose type is an integer stay
  // floats until choose_numbers() knows the super-parameters that they are multiples of.
  bool fit(EncodedBlock* blocks, int count) const;
  Stored first_parameters(const EncodedBlock& block, StoredParameters& parameters) const;
  void search_scale(EncodedBlock& block) const;
  void search_span(EncodedBlock& block) const;
  // Considers the least-squares parameters for the codes that each task's parameters give to its block.
  void consider_fits(EncodedBlock* const* blocks, const EncodedTask* tasks, int count) const;
  // The same for one block; offsets may be null.
  void consider_fits(EncodedBlock& block, const float* scales, const float* offsets, int count) const;
  // Writes a candidate, and returns whether the encoding can hold its parameters and the estimate is small enough.
  bool propose(EncodedBlock& block, float scale, float offset, double estimate, Candidate& candidate) const;
  // Computes all errors at once, and takes the candidates in order.
  void take(const Candidate* candidates, int count) const;
  Stored store(float scale, float offset, StoredParameters& parameters) const;
  Stored store_offset(float offset, StoredParameters& parameters) const;

  // These choose the integers and the super-parameters of a super-block, whose blocks `fitted` are results of fit().
  double choose_numbers(const EncodedBlock* fitted, EncodedBlock* blocks, std::int64_t count,
                        const SuperParameters& super, bool search) const;
  bool refine(const EncodedBlock* fitted, EncodedBlock* blocks, std::int64_t count, SuperParameters& super) const;

  static EncodedTask task(const EncodedBlock& block, const StoredParameters& parameters) {
    return {&block.data, parameters.scale, parameters.inverse, parameters.offset};
  }
  bool negative_scales() const {
    return integer_scales_ ? encoding_.scale_zero > 0 : parameter_bits(encoding_.scales) > 8;
  }

  const WeightEncoding& encoding_;
  EncodingCodes codes_;
  const EncodedKernels kernels_;
  bool search_, integer_scales_, integer_offsets_;
  bool stay_floats_;  // all parameters, until choose_numbers()
  bool negative_without_offset_;
  int steps_;         // of clipped ranges of scales without offsets
  float shrunk_[11];  // their bounds, times the unclipped one
};

}  // namespace qcore
