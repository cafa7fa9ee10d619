#include "quantize/encoded_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "numerics/half_bits.h"
#include "numerics/small_floats.h"

namespace qcore {
namespace {

constexpr int kSpanSteps = 3;  // of each of two bounds
constexpr int kFineSteps = 6;  // of scales smaller, and larger, than that of the whole span
constexpr int kRounds = 8;     // of least squares
constexpr int kSuperRounds = 3;
// Other codes than those that a candidate was fitted to can make its error only a little smaller.
constexpr double kGain = 1.1;

int largest_number(ParameterType type) { return (1 << parameter_bits(type)) - 1; }

int rounded_number(double number, ParameterType type) {
  constexpr double kRoundDouble = 6755399441055744.0;  // 1.5 * 2^52, behind which there are no fraction bits
  return static_cast<int>(std::clamp(number, 0.0, static_cast<double>(largest_number(type))) + kRoundDouble -
                          kRoundDouble);
}

// The power of two nearest to a positive number, as e8m0.
int nearest_e8m0(float value) {
  int exponent;
  const float fraction = std::frexp(value, &exponent);  // in [0.5, 1)
  return std::clamp(exponent - (fraction > 0.75f ? 0 : 1) + 127, 0, 254);
}

// The number of e4m3 nearest to one that is not negative; the even one of two.
int nearest_e4m3(float value) {
  int below = 0, above = 126;
  while (above - below > 1) {
    const int middle = (below + above) / 2;
    (numerics::e4m3_to_float(static_cast<std::uint8_t>(middle)) <= value ? below : above) = middle;
  }
  const double low = value - static_cast<double>(numerics::e4m3_to_float(static_cast<std::uint8_t>(below)));
  const double high = static_cast<double>(numerics::e4m3_to_float(static_cast<std::uint8_t>(above))) - value;
  return low < high || (low == high && below % 2 == 0) ? below : above;
}

bool is_finite(std::uint16_t half) { return numerics::is_finite(numerics::half_to_float(half)); }

// A float as it is stored in a type of 16 or 32 bits.
float as_stored(ParameterType type, float value, std::uint32_t& number) {
  switch (type) {
    case ParameterType::f16:
      number = numerics::float_to_half(value);
      return numerics::half_to_float(static_cast<std::uint16_t>(number));
    case ParameterType::bf16:
      number = numerics::float_to_bfloat(value);
      return numerics::bfloat_to_float(static_cast<std::uint16_t>(number));
    default:
      number = numerics::float_bits(value);
      return value;
  }
}

// Sums for least squares: values v are x * a + y * b for numbers a and b of each.
struct LeastSquares {
  double aa = 0, ab = 0, bb = 0, av = 0, bv = 0;

  bool solve(double& x, double& y) const {
    if (bb == 0) {
      x = aa > 0 ? av / aa : 0.0, y = 0.0;
      return aa > 0;
    }
    const double determinant = aa * bb - ab * ab;
    if (!(determinant > 0)) return false;
    x = (av * bb - bv * ab) / determinant;
    y = (bv * aa - av * ab) / determinant;
    return true;
  }
};

}  // namespace

EncodingCodes::EncodingCodes(const WeightEncoding& encoding) : zero_(encoding.zero) {
  const int count = 1 << encoding.bits;
  table_.codebook = encoding.has_codebook;
  table_.offsets = encoding.offsets != ParameterType::none;
  if (!encoding.has_codebook) {
    table_.lowest = static_cast<float>(-zero_), table_.highest = static_cast<float>(count - 1 - zero_);
    return;
  }
  std::vector<int> values(encoding.codebook, encoding.codebook + count);
  // The first of equal numbers is the one that is stored: +0 of a float's two zeros.
  for (int u = count - 1; u >= 0; --u)
    stored_[values[static_cast<std::size_t>(u)] + 128] = static_cast<std::uint8_t>(u);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  table_.lowest = static_cast<float>(values.front()), table_.highest = static_cast<float>(values.back());
  std::size_t next = 1;
  for (int half = 2 * values.front(); half <= 2 * values.back(); ++half) {
    while (next < values.size() && half > values[next - 1] + values[next]) ++next;
    table_.nearest[half + 256] = static_cast<float>(values[next - 1]);
  }
}

EncodedSearch::Stored EncodedSearch::store_offset(float offset, StoredParameters& parameters) const {
  const ParameterType type = encoding_.offsets;
  parameters.offset_number = 0;
  if (type == ParameterType::none) {
    parameters.offset = 0.0f;
  } else if (is_zero_point(type)) {
    const double zero = encoding_.zero;
    const int number =
        rounded_number(zero - (parameters.scale == 0.0f ? 0.0 : double{offset} / parameters.scale), type);
    parameters.offset_number = static_cast<std::uint32_t>(number);
    parameters.offset = parameters.scale * static_cast<float>(encoding_.zero - number);
  } else if (is_integer(type)) {
    parameters.offset = std::min(offset, 0.0f);
  } else {
    parameters.offset = as_stored(type, offset, parameters.offset_number);
  }
  return numerics::is_finite(parameters.offset) ? Stored::yes : Stored::too_large;
}

EncodedSearch::Stored EncodedSearch::store(float scale, float offset, StoredParameters& parameters) const {
  parameters = {scale, 0.0f, 0.0f, 0, 0};
  if (!integer_scales_ && parameter_bits(encoding_.scales) == 8) {
    const float ratio = scale / encoding_.tensor_scale;
    constexpr float kLargestE4m3 = 464.0f;  // and half of the last step
    if (!(ratio > 0.0f)) return Stored::too_small;
    if (!numerics::is_finite(ratio)) return Stored::too_large;
    const bool e8m0 = encoding_.scales == ParameterType::e8m0;
    if (!e8m0 && ratio > kLargestE4m3) return Stored::too_large;
    const auto number = static_cast<std::uint8_t>(e8m0 ? nearest_e8m0(ratio) : nearest_e4m3(ratio));
    parameters.scale_number = number;
    parameters.scale =
        (e8m0 ? numerics::e8m0_to_float(number) : numerics::e4m3_to_float(number)) * encoding_.tensor_scale;
  } else if (!integer_scales_) {
    parameters.scale = as_stored(encoding_.scales, scale, parameters.scale_number);
  }
  if (!numerics::is_finite(parameters.scale)) return Stored::too_large;
  parameters.inverse = inverse_or_zero(parameters.scale);
  if (parameters.inverse == 0.0f) return Stored::too_small;
  return store_offset(offset, parameters);
}

// Without branches where the parameters stay floats, because nothing could predict which candidates fail.
inline bool EncodedSearch::propose(EncodedBlock& block, float scale, float offset, double estimate,
                                   Candidate& candidate) const {
  candidate.block = &block;
  candidate.estimate = estimate;
  const bool better = estimate < kGain * block.error;
  const bool sign = (scale >= 0.0f) | negative_without_offset_;
  if (!stay_floats_) return better && sign && store(scale, offset, candidate.parameters) == Stored::yes;
  const float inverse = inverse_or_zero(scale), below = std::min(offset, 0.0f);
  candidate.parameters = {scale, inverse, below, 0, 0};
  return better & sign & (inverse != 0.0f) & numerics::is_finite(scale) & numerics::is_finite(below);
}

void EncodedSearch::take(const Candidate* candidates, int count) const {
  if (count == 0) return;
  EncodedTask tasks[kMaxTasks];
  tasks[0] = {};  // else g++ warns of an array without values
  double errors[kMaxTasks];
  for (int i = 0; i < count; ++i) tasks[i] = task(*candidates[i].block, candidates[i].parameters);
  kernels_.errors(codes_.table(), tasks, count, errors);
  for (int i = 0; i < count; ++i) {
    EncodedBlock& block = *candidates[i].block;
    if (!(errors[i] < block.error) || !(candidates[i].estimate < kGain * block.error)) continue;
    block.parameters = candidates[i].parameters;
    block.error = errors[i];
  }
}

// Without an offset: the smallest scale that clips nothing, or nothing but values whose sign no code has.
EncodedSearch::Stored EncodedSearch::first_parameters(const EncodedBlock& block, StoredParameters& parameters) const {
  const float lowest = codes_.table().lowest, highest = codes_.table().highest;
  float scale = 0.0f, offset = 0.0f;
  if (encoding_.offsets == ParameterType::none) {
    if (highest > 0.0f) scale = std::max(scale, block.hi / highest);
    if (lowest < 0.0f) scale = std::max(scale, block.lo / lowest);
    if (encoding_.scales == ParameterType::e8m0 && scale > 0.0f) {
      // The OCP's rule: the exponent of the largest magnitude less that of the largest number.
      const float extreme = std::max(block.hi, -block.lo), largest = std::max(highest, -lowest);
      const int exponent = std::ilogb(extreme) - std::ilogb(largest * encoding_.tensor_scale);
      scale = std::ldexp(1.0f, exponent) * encoding_.tensor_scale;
    }
  } else {
    const bool around_zero = is_zero_point(encoding_.offsets);
    const float lo = around_zero || integer_offsets_ ? std::min(block.lo, 0.0f) : block.lo;
    const float hi = around_zero ? std::max(block.hi, 0.0f) : block.hi;
    const float levels = highest - lowest;
    scale = std::max(hi / levels - lo / levels, 0.0f);
    offset = numerics::fma_once(-scale, lowest, lo);
  }
  return store(scale, offset, parameters);
}

bool EncodedSearch::fit(EncodedBlock* blocks, int count) const {
  EncodedTask tasks[kMaxTasks];
  tasks[0] = {};  // else g++ warns of an array without values
  double errors[kMaxTasks];
  // A block of zeros, or of one number that the offset holds.
  for (int i = 0; i < count; ++i) {
    EncodedBlock& block = blocks[i];
    block.parameters = {};
    if (!integer_scales_ && encoding_.scales == ParameterType::e8m0)
      block.parameters.set_scale(numerics::e8m0_to_float(0) * encoding_.tensor_scale);
    if (store_offset(block.lo == block.hi ? block.lo : 0.0f, block.parameters) != Stored::yes) return false;
    tasks[i] = task(block, block.parameters);
  }
  kernels_.errors(codes_.table(), tasks, count, errors);
  EncodedBlock *searched[kMaxTasks], *stored[kMaxTasks];
  StoredParameters first[kMaxTasks];
  int searches = 0, firsts = 0;
  for (int i = 0; i < count; ++i) {
    blocks[i].error = errors[i];
    if (errors[i] == 0.0) continue;
    searched[searches++] = &blocks[i];
    const Stored fits = first_parameters(blocks[i], first[firsts]);
    if (fits == Stored::too_large) return false;
    if (fits != Stored::yes) continue;
    tasks[firsts] = task(blocks[i], first[firsts]);
    stored[firsts++] = &blocks[i];
  }
  if (firsts > 0) kernels_.errors(codes_.table(), tasks, firsts, errors);
  for (int i = 0; i < firsts; ++i) {
    stored[i]->parameters = first[i];
    stored[i]->error = errors[i];
  }
  if (!search_) return true;
  for (int i = 0; i < searches; ++i)
    encoding_.offsets == ParameterType::none ? search_scale(*searched[i]) : search_span(*searched[i]);
  for (int round = 0; searches > 0 && round < kRounds; ++round) {
    double before[kMaxTasks];
    for (int i = 0; i < searches; ++i) {
      before[i] = searched[i]->error;
      tasks[i] = task(*searched[i], searched[i]->parameters);
    }
    consider_fits(searched, tasks, searches);
    int better = 0;
    for (int i = 0; i < searches; ++i)
      if (searched[i]->error < before[i]) searched[better++] = searched[i];
    searches = better;
  }
  return true;
}

void EncodedSearch::search_scale(EncodedBlock& block) const {
  const float extreme = -block.lo > block.hi ? block.lo : block.hi;
  const bool either_sign = negative_scales();
  if (encoding_.scales == ParameterType::e8m0)  // which has few scales
    for (const float factor : {2.0f, 0.5f}) {
      Candidate candidate;
      if (propose(block, block.parameters.scale * factor, 0.0f, 0.0, candidate)) take(&candidate, 1);
    }
  float scales[kMaxTasks];
  int count = 0;
  for (const float end : {codes_.table().highest, codes_.table().lowest}) {
    if (end == 0.0f) continue;
    // The largest magnitude gets the last code of either sign, or each bound that of its own.
    const float bound = either_sign ? extreme : end > 0.0f ? block.hi : block.lo;
    for (int step = 0; step <= steps_; ++step) scales[count + step] = bound * shrunk_[step] / end;
    count += steps_ + 1;
  }
  consider_fits(block, scales, nullptr, count);
}

void EncodedSearch::search_span(EncodedBlock& block) const {
  constexpr float kMost = 0.3f;  // of the span that a bound moves
  constexpr float kFine = 0.9f;  // of a level that the whole span has more or less
  const float lowest = codes_.table().lowest, levels = codes_.table().highest - lowest;
  const float bottom = integer_offsets_ ? std::min(block.lo, 0.0f) : block.lo, span = block.hi - bottom;
  if (!(span > 0.0f) || !numerics::is_finite(span)) return;
  const auto part = [](float of, int step, int steps) {
    return of * static_cast<float>(step) / static_cast<float>(steps);
  };
  static_assert((kSpanSteps + 1) * (kSpanSteps + 1) <= kMaxTasks && 2 * kFineSteps + 1 <= kMaxTasks);
  Candidate candidates[kMaxTasks];
  int count = 0;
  for (int i = 0; i <= kSpanSteps; ++i)
    for (int j = 0; j <= kSpanSteps; ++j) {
      const float hi = block.hi - part(kMost * span, i, kSpanSteps), lo = bottom + part(kMost * span, j, kSpanSteps);
      const float scale = (hi - lo) / levels;
      count += propose(block, scale, numerics::fma_once(-scale, lowest, lo), 0.0, candidates[count]);
    }
  take(candidates, count);
  // With many levels, small changes of the scale decide which codes are taken.
  float scales[2 * kFineSteps + 1], offsets[2 * kFineSteps + 1];
  for (int step = 0; step <= 2 * kFineSteps; ++step) {
    scales[step] = span / (levels + part(kFine, step - kFineSteps, kFineSteps));
    offsets[step] = numerics::fma_once(-scales[step], lowest, bottom);
  }
  consider_fits(block, scales, offsets, 2 * kFineSteps + 1);
}

void EncodedSearch::consider_fits(EncodedBlock& block, const float* scales, const float* offsets, int count) const {
  float inverses[kMaxTasks];
  for (int i = 0; i < count; ++i) inverses[i] = inverse_or_zero(scales[i]);
  EncodedBlock* blocks[kMaxTasks];
  EncodedTask tasks[kMaxTasks];
  for (int i = 0; i < count; ++i) {
    blocks[i] = &block;
    tasks[i] = {&block.data, scales[i], inverses[i], offsets ? offsets[i] : 0.0f};
  }
  consider_fits(blocks, tasks, count);
}

void EncodedSearch::consider_fits(EncodedBlock* const* blocks, const EncodedTask* tasks, int count) const {
  EncodedMoments sums[kMaxTasks];
  kernels_.moments(codes_.table(), tasks, count, sums);
  Candidate candidates[kMaxTasks];
  int proposed = 0;
  for (int i = 0; i < count; ++i) {
    EncodedBlock& block = *blocks[i];
    const LeastSquares squares = encoding_.offsets != ParameterType::none
                                     ? LeastSquares{sums[i].qq, sums[i].q, block.one, sums[i].q_value, block.value}
                                     : LeastSquares{sums[i].qq, 0.0, 0.0, sums[i].q_value, 0.0};
    double x, y;
    if (!squares.solve(x, y)) continue;
    const double with_codes = block.square - x * sums[i].q_value - y * block.value;
    // Counted without a branch, which nothing could predict.
    proposed += propose(block, static_cast<float>(x), static_cast<float>(y), with_codes, candidates[proposed]);
  }
  take(candidates, proposed);
}

// Gives each block the numbers that are nearest to its fitted parameters, or with a search the best of those beside
// them, too. Returns the error of all blocks.
double EncodedSearch::choose_numbers(const EncodedBlock* fitted, EncodedBlock* blocks, std::int64_t count,
                                     const SuperParameters& super, bool search) const {
  const float super_scale = numerics::half_to_float(super.scale), super_offset = numerics::half_to_float(super.offset);
  const int around_scale = search && integer_scales_ && super_scale != 0.0f;
  const int around_offset = search && integer_offsets_ && super_offset != 0.0f;
  Candidate candidates[kMaxTasks];
  int proposed = 0;
  for (std::int64_t p = 0; p < count; ++p) {
    constexpr int kMost = 9;  // candidates of a block
    if (proposed > kMaxTasks - kMost) take(candidates, std::exchange(proposed, 0));
    const StoredParameters& wanted = fitted[p].parameters;
    int n = 0, m = 0;
    if (integer_scales_)
      n = rounded_number(encoding_.scale_zero + (super_scale == 0.0f ? 0.0 : double{wanted.scale} / super_scale),
                         encoding_.scales);
    if (integer_offsets_)
      m = rounded_number(super_offset == 0.0f ? 0.0 : -double{wanted.offset} / super_offset, encoding_.offsets);
    EncodedBlock& block = blocks[p];
    block.error = std::numeric_limits<double>::infinity();
    for (int i = n - around_scale; i <= n + around_scale; ++i) {
      if (i < 0 || (integer_scales_ && i > largest_number(encoding_.scales))) continue;
      for (int j = m - around_offset; j <= m + around_offset; ++j) {
        if (j < 0 || (integer_offsets_ && j > largest_number(encoding_.offsets))) continue;
        candidates[proposed] = {&block, wanted, 0.0};
        StoredParameters& candidate = candidates[proposed++].parameters;
        if (integer_scales_) {
          candidate.set_scale(super_scale * static_cast<float>(i - encoding_.scale_zero));
          candidate.scale_number = static_cast<std::uint32_t>(i);
        }
        if (integer_offsets_) {
          candidate.offset = -(super_offset * static_cast<float>(j));
          candidate.offset_number = static_cast<std::uint32_t>(j);
        } else if (integer_scales_ && encoding_.offsets != ParameterType::none) {
          store_offset(wanted.offset, candidate);
        }
      }
    }
  }
  take(candidates, proposed);
  double sum = 0.0;
  for (std::int64_t p = 0; p < count; ++p) sum += blocks[p].error;
  return sum;
}

// The least-squares super-parameters for the numbers and codes that the blocks have. Returns whether they are better.
bool EncodedSearch::refine(const EncodedBlock* fitted, EncodedBlock* blocks, std::int64_t count,
                           SuperParameters& super) const {
  LeastSquares sums;
  EncodedMoments moments[kMaxTasks];
  double before = 0.0;
  for (std::int64_t p = 0; p < count; ++p) {
    const EncodedBlock& block = blocks[p];
    const StoredParameters& at = block.parameters;
    const double number =
        integer_scales_ ? double{static_cast<float>(at.scale_number)} - encoding_.scale_zero : at.scale;
    const double offset_number = integer_offsets_ ? -double{static_cast<float>(at.offset_number)} : 0.0;
    before += block.error;
    if (p % kMaxTasks == 0) {
      const int here = static_cast<int>(std::min<std::int64_t>(kMaxTasks, count - p));
      EncodedTask tasks[kMaxTasks];
      for (int i = 0; i < here; ++i) tasks[i] = task(blocks[p + i], blocks[p + i].parameters);
      kernels_.moments(codes_.table(), tasks, here, moments);
    }
    const EncodedMoments& of = moments[p % kMaxTasks];
    const double constant = integer_offsets_ ? 0.0 : double{at.offset};  // is no multiple of a super-offset
    sums.aa += number * number * of.qq;
    sums.ab += number * offset_number * of.q;
    sums.bb += offset_number * offset_number * block.one;
    sums.av += number * (of.q_value - constant * of.q);
    sums.bv += offset_number * block.value;
  }
  double scale, offset;
  if (!sums.solve(scale, offset) || (!negative_scales() && scale <= 0) || offset < 0) return false;
  SuperParameters candidate = super;
  if (integer_scales_) candidate.scale = numerics::float_to_half(static_cast<float>(scale));
  if (integer_offsets_) candidate.offset = numerics::float_to_half(static_cast<float>(offset));
  if (!is_finite(candidate.scale) || !is_finite(candidate.offset)) return false;
  std::vector<EncodedBlock> tried(blocks, blocks + count);
  if (!(choose_numbers(fitted, tried.data(), count, candidate, true) < before)) return false;
  std::copy(tried.begin(), tried.end(), blocks);
  super = candidate;
  return true;
}

bool EncodedSearch::run(EncodedBlock* blocks, std::int64_t count, SuperParameters& super) const {
  for (std::int64_t p = 0; p < count; p += kMaxTasks)
    if (!fit(blocks + p, static_cast<int>(std::min<std::int64_t>(kMaxTasks, count - p)))) return false;
  if (!integer_scales_ && !integer_offsets_) return true;

  const std::vector<EncodedBlock> fitted(blocks, blocks + count);
  float extreme = 0.0f, lowest_offset = 0.0f;
  for (const EncodedBlock& block : fitted) {
    if (std::abs(block.parameters.scale) > std::abs(extreme)) extreme = block.parameters.scale;
    lowest_offset = std::min(lowest_offset, block.parameters.offset);
  }
  SuperParameters first;
  if (integer_offsets_)
    first.offset = numerics::float_to_half(-lowest_offset / static_cast<float>(largest_number(encoding_.offsets)));
  const int zero = integer_scales_ ? encoding_.scale_zero : 0;
  const int last = integer_scales_ ? largest_number(encoding_.scales) - zero : 1;
  double best = std::numeric_limits<double>::infinity();
  std::vector<EncodedBlock> tried = fitted;
  for (const int end : {last, -zero}) {  // the number that the largest scale gets
    if (end == 0) continue;
    if (integer_scales_) first.scale = numerics::float_to_half(extreme / static_cast<float>(end));
    if (!is_finite(first.scale) || !is_finite(first.offset)) return false;
    const double sum = choose_numbers(fitted.data(), tried.data(), count, first, search_);
    if (sum < best) {
      best = sum;
      std::copy(tried.begin(), tried.end(), blocks);
      super = first;
    }
    if (!search_) break;
  }
  for (int round = 0; search_ && round < kSuperRounds && refine(fitted.data(), blocks, count, super); ++round) {
  }
  return true;
}

}  // namespace qcore
