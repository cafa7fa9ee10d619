#pragma once

#include <cstring>

#include "quantize/cpu/vtable.h"

// A block's range and codes for the vectors of simd/vector_avx2.h, with the bits of
// numerics::encode. In an unnamed namespace, since it is compiled for one instruction set.
namespace qcore {
namespace {

using numerics::BlockScale;

// The values of a block as vectors. The last one is filled up with the first value, which changes no bound.
template <class V>
class BlockVectors {
 public:
  QCORE_INLINE BlockVectors(const float* values, std::int64_t count) : values_(values), full_(count / V::kLanes) {
    const int rest = static_cast<int>(count % V::kLanes);
    count_ = full_ + (rest != 0);
    if (!rest) return;
    for (int i = 0; i < V::kLanes; ++i) last_[i] = values[i < rest ? full_ * V::kLanes + i : 0];
  }

  QCORE_INLINE std::int64_t count() const { return count_; }
  QCORE_INLINE typename V::Float operator[](std::int64_t i) const {
    return V::load(i < full_ ? values_ + i * V::kLanes : last_);
  }

 private:
  const float* values_;
  std::int64_t full_, count_;
  alignas(64) float last_[V::kLanes];
};

template <class V>
QCORE_NUMERIC BlockScale scale_of(const BlockVectors<V>& block, const NearestForm& form) {
  if (form.symmetric) {
    const typename V::Int magnitude = V::set1(0x7fffffff);
    typename V::Int largest = V::set1(0);
    for (std::int64_t i = 0; i < block.count(); ++i)
      largest = V::max(largest, V::bit_and(V::as_int(block[i]), magnitude));
    return numerics::nearest_scale(static_cast<std::uint32_t>(V::largest(largest)), 0.0f, 0.0f, form.bits, true,
                                   form.half);
  }
  typename V::Float lo = block[0], hi = lo;
  for (std::int64_t i = 1; i < block.count(); ++i) {
    lo = V::at_most(block[i], lo);
    hi = V::at_least(block[i], hi);
  }
  return numerics::nearest_scale(0, V::smallest(lo), V::largest(hi), form.bits, false, form.half);
}

// Four vectors are one of codes.
constexpr int kTogether = 4;

template <class V>
QCORE_NUMERIC BlockScale quantize_lanes(const float* values, std::int64_t count, const NearestForm& form,
                                        std::int8_t* codes) {
  const BlockVectors<V> block(values, count);
  const BlockScale scale = scale_of<V>(block, form);
  if (scale.inverse == 0.0f) {
    memset(codes, 0, static_cast<std::size_t>(count));
    return scale;
  }
  const typename V::Float offset = V::set1(scale.offset), inverse = V::set1(scale.inverse),
                          lowest = V::set1(static_cast<float>(form.lowest)),
                          highest = V::set1(static_cast<float>(numerics::code_max(form.bits)));
  const auto encoded = [&](typename V::Float x) {
    return V::to_int(V::at_most(V::at_least(V::mul(V::sub(x, offset), inverse), lowest), highest));
  };
  constexpr std::int64_t kCodes = kTogether * V::kLanes;
  std::int64_t i = 0;
  for (; (i + 1) * kCodes <= count; ++i) {
    const float* at = values + i * kCodes;
    const typename V::Int parts[kTogether] = {encoded(V::load(at)), encoded(V::load(at + V::kLanes)),
                                              encoded(V::load(at + 2 * V::kLanes)),
                                              encoded(V::load(at + 3 * V::kLanes))};
    V::store(codes + i * kCodes, V::narrow_to_bytes(parts));
  }
  if (i * kCodes == count) return scale;
  const auto part = [&](std::int64_t j) {
    return i * kTogether + j < block.count() ? encoded(block[i * kTogether + j]) : V::set1(0);
  };
  const typename V::Int parts[kTogether] = {part(0), part(1), part(2), part(3)};
  alignas(64) std::int8_t last[kCodes];
  V::store(last, V::narrow_to_bytes(parts));
  memcpy(codes + i * kCodes, last, static_cast<std::size_t>(count - i * kCodes));
  return scale;
}

template <class V>
QCORE_NUMERIC void load_lanes(const void* x, bool bfloat, std::int64_t count, float* values) {
  const auto* words = static_cast<const std::uint16_t*>(x);
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes)
    V::store(values + i, bfloat ? V::load_bfloat(words + i) : V::load_half(words + i));
  for (; i < count; ++i) values[i] = bfloat ? numerics::bfloat_to_float(words[i]) : numerics::half_to_float(words[i]);
}

}  // namespace
}  // namespace qcore
