#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "formats/encoded_storage.h"

// Parameters of a weight's blocks in an encoding, chosen for a small squared error.
namespace qcore {

// The integers q of an encoding, and which of them is nearest to a number.
class EncodingCodes {
 public:
  static constexpr int kLanes = 8;  // numbers that are rounded side by side

  explicit EncodingCodes(const WeightEncoding& encoding) : codebook_(encoding.has_codebook), zero_(encoding.zero) {
    const int count = 1 << encoding.bits;
    if (!codebook_) {
      lowest_ = static_cast<float>(-zero_), highest_ = static_cast<float>(count - 1 - zero_);
      return;
    }
    std::vector<int> values(encoding.codebook, encoding.codebook + count);
    // The first of equal numbers is the one that is stored: +0 of a float's two zeros.
    for (int u = count - 1; u >= 0; --u)
      stored_[values[static_cast<std::size_t>(u)] + 128] = static_cast<std::uint8_t>(u);
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    lowest_ = static_cast<float>(values.front()), highest_ = static_cast<float>(values.back());
    std::size_t next = 1;
    for (int half = 2 * values.front(); half <= 2 * values.back(); ++half) {
      while (next < values.size() && half > values[next - 1] + values[next]) ++next;
      nearest_[half + 256] = static_cast<std::int8_t>(values[next - 1]);
    }
  }

  float lowest() const { return lowest_; }
  float highest() const { return highest_; }
  std::uint8_t stored(float q) const {
    const int integer = static_cast<int>(q);
    return codebook_ ? stored_[integer + 128] : static_cast<std::uint8_t>(integer + zero_);
  }

  // q [kLanes] nearest to (value - offset) * inverse. A number in the middle of two becomes the even one, with a
  // codebook the smaller one.
  void nearest(const float* values, float inverse, float offset, float* q) const {
    codebook_ ? nearest_of_codebook(values, inverse, offset, q) : nearest_integer(values, inverse, offset, q);
  }

 private:
  float clamped(float x) const {
    x = x > lowest_ ? x : lowest_;
    return x < highest_ ? x : highest_;
  }
  void nearest_integer(const float* values, float inverse, float offset, float* q) const {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
    for (int i = 0; i < kLanes; ++i) q[i] = (clamped((values[i] - offset) * inverse) + kRound) - kRound;
  }
  // The middle of two integers is a multiple of a half, so that all numbers up to the next one have the same neighbor.
  void nearest_of_codebook(const float* values, float inverse, float offset, float* q) const {
    int halves[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const float twice = 2.0f * clamped((values[i] - offset) * inverse);
      halves[i] = static_cast<int>(twice);
      halves[i] += twice > static_cast<float>(halves[i]);
    }
    for (int i = 0; i < kLanes; ++i) q[i] = nearest_[halves[i] + 256];
  }

  bool codebook_;
  int zero_;
  float lowest_, highest_;
  std::int8_t nearest_[512] = {};  // of a half of the index - 256
  std::uint8_t stored_[256] = {};
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

// A block of finite values, and what each one's error counts, both padded to a multiple of EncodingCodes::kLanes by
// zeros; and the parameters that it gets.
struct EncodedBlock {
  const float* values;
  const float* importance;
  std::int64_t padded;
  float lo, hi;  // of the values

  StoredParameters parameters;
  double error = 0.0;  // sum of importance * (value - decoded)^2
};

// What the blocks of a super-block share, fp16.
struct SuperParameters {
  std::uint16_t scale = 0, offset = 0;
};

class EncodedSearch {
 public:
  // Without a search no value is clipped, but for what the rounding of the parameters clips.
  EncodedSearch(const WeightEncoding& encoding, bool search)
      : encoding_(encoding),
        codes_(encoding),
        search_(search),
        integer_scales_(is_integer(encoding.scales)),
        integer_offsets_(is_integer(encoding.offsets)) {}

  const EncodingCodes& codes() const { return codes_; }

  // Chooses the parameters of blocks [count] that share super-parameters, or of one block if the encoding has none.
  // Returns false if the encoding cannot hold a parameter that is large enough.
  bool run(EncodedBlock* blocks, std::int64_t count, SuperParameters& super) const;

 private:
  enum class Stored { yes, too_small, too_large };

  // Of single blocks. Integer scales and offsets are any float here, and become numbers together with the super-block.
  bool fit(EncodedBlock& block) const;
  Stored first_parameters(const EncodedBlock& block, StoredParameters& parameters) const;
  void search_scale(EncodedBlock& block) const;
  void search_span(EncodedBlock& block) const;
  bool polish(EncodedBlock& block) const;
  void consider(EncodedBlock& block, float scale, float offset) const;
  Stored store(float scale, float offset, StoredParameters& parameters) const;
  Stored store_offset(float offset, StoredParameters& parameters) const;

  // Of super-blocks; `fitted` are the blocks as fit() leaves them.
  double choose_numbers(const EncodedBlock* fitted, EncodedBlock* blocks, std::int64_t count,
                        const SuperParameters& super, bool search) const;
  bool refine(const EncodedBlock* fitted, EncodedBlock* blocks, std::int64_t count, SuperParameters& super) const;

  double error(const EncodedBlock& block, const StoredParameters& parameters) const;
  bool negative_scales() const {
    return integer_scales_ ? encoding_.scale_zero > 0 : parameter_bits(encoding_.scales) > 8;
  }

  const WeightEncoding& encoding_;
  EncodingCodes codes_;
  bool search_, integer_scales_, integer_offsets_;
};

}  // namespace qcore
