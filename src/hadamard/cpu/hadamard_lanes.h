#pragma once

#include "hadamard/butterfly.h"
#include "hadamard/cpu/vtable.h"
#include "numerics/half_bits.h"

// The stages of butterfly.h for the vectors of simd/vector_avx2.h, with the same bits. In an unnamed namespace, because
// it is compiled for one instruction set. V::stages(a) does the stages within a vector.
namespace qcore {
namespace {

template <class V>
QCORE_NUMERIC void hadamard_block(float* values, std::int64_t block) {
  using Float = typename V::Float;
  const Float factor = V::set1(hadamard_scale(block));
  const auto finished = [&](Float a, bool last) { return last ? V::mul(a, factor) : a; };
  std::int64_t h = V::kLanes;
  for (std::int64_t i = 0; i < block; i += V::kLanes)
    V::store(values + i, finished(V::stages(V::load(values + i)), h == block));
  int left = 0;  // stages
  for (std::int64_t each = h; each < block; each *= 2) ++left;
  if (left % 2) {
    for (std::int64_t begin = 0; begin < block; begin += 2 * h)
      for (std::int64_t i = begin; i < begin + h; i += V::kLanes) {
        const Float a = V::load(values + i), b = V::load(values + i + h);
        V::store(values + i, finished(V::add(a, b), left == 1));
        V::store(values + i + h, finished(V::sub(a, b), left == 1));
      }
    h *= 2;
  }
  // Two stages in one pass over memory.
  for (; h < block; h *= 4) {
    const bool last = 4 * h == block;
    for (std::int64_t begin = 0; begin < block; begin += 4 * h)
      for (std::int64_t i = begin; i < begin + h; i += V::kLanes) {
        const Float a = V::load(values + i), b = V::load(values + i + h);
        const Float c = V::load(values + i + 2 * h), d = V::load(values + i + 3 * h);
        const Float ab = V::add(a, b), a_b = V::sub(a, b), cd = V::add(c, d), c_d = V::sub(c, d);
        V::store(values + i, finished(V::add(ab, cd), last));
        V::store(values + i + h, finished(V::add(a_b, c_d), last));
        V::store(values + i + 2 * h, finished(V::sub(ab, cd), last));
        V::store(values + i + 3 * h, finished(V::sub(a_b, c_d), last));
      }
  }
}

template <class V>
void hadamard_transform(float* values, std::int64_t count, std::int64_t block) {
  for (std::int64_t begin = 0; begin < count; begin += block) {
    if (block >= V::kLanes) {
      hadamard_block<V>(values + begin, block);
      continue;
    }
    const float factor = hadamard_scale(block);
    hadamard_stages(values + begin, block);
    for (std::int64_t i = begin; i < begin + block; ++i) values[i] *= factor;
  }
}

template <class V>
void hadamard_load(const void* from, bool bfloat, std::int64_t count, float* values) {
  const auto* words = static_cast<const std::uint16_t*>(from);
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes)
    V::store(values + i, bfloat ? V::load_bfloat(words + i) : V::load_half(words + i));
  for (; i < count; ++i) values[i] = bfloat ? numerics::bfloat_to_float(words[i]) : numerics::half_to_float(words[i]);
}

template <class V>
void hadamard_store(const float* values, std::int64_t count, bool bfloat, void* to) {
  auto* words = static_cast<std::uint16_t*>(to);
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes)
    bfloat ? V::store_bfloat(words + i, V::load(values + i)) : V::store_half(words + i, V::load(values + i));
  for (; i < count; ++i) words[i] = bfloat ? numerics::float_to_bfloat(values[i]) : numerics::float_to_half(values[i]);
}

}  // namespace
}  // namespace qcore
