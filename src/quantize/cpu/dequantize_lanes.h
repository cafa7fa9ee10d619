#pragma once

#include <cstring>

#include "numerics/half_bits.h"
#include "quantize/cpu/dequantize_vtable.h"

// The functions of DequantizeKernels for vectors V: those of simd, and Int load_codes(p), kLanes bytes with their sign.
namespace qcore {
namespace {

// Calls store(i, y) with the values of codes from i on, a vector of them; of the last ones only as many as there are
// lead to y.
template <class V, class Store>
QCORE_NUMERIC void decode(const std::int8_t* codes, std::int64_t count, float scale, float offset, Store&& store) {
  const typename V::Float scales = V::set1(scale), offsets = V::set1(offset);
  const auto decoded = [&](const std::int8_t* from) {
    return V::fma(scales, V::to_float(V::load_codes(from)), offsets);
  };
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) store(i, V::kLanes, decoded(codes + i));
  if (i == count) return;
  std::int8_t last[V::kLanes] = {};
  memcpy(last, codes + i, static_cast<std::size_t>(count - i));
  store(i, count - i, decoded(last));
}

template <class V>
void to_float(const std::int8_t* codes, std::int64_t count, float scale, float offset, float* y) {
  decode<V>(codes, count, scale, offset, [&](std::int64_t i, std::int64_t lanes, typename V::Float values) {
    if (lanes == V::kLanes) return V::store(y + i, values);
    float parts[V::kLanes];
    V::store(parts, values);
    memcpy(y + i, parts, static_cast<std::size_t>(lanes) * sizeof(float));
  });
}

template <class V>
void to_half(const std::int8_t* codes, std::int64_t count, float scale, float offset, std::uint16_t* y) {
  decode<V>(codes, count, scale, offset, [&](std::int64_t i, std::int64_t lanes, typename V::Float values) {
    if (lanes == V::kLanes) return V::store_half(y + i, values);
    std::uint16_t parts[V::kLanes];
    V::store_half(parts, values);
    memcpy(y + i, parts, static_cast<std::size_t>(lanes) * sizeof(std::uint16_t));
  });
}

template <class V>
void to_bfloat(const std::int8_t* codes, std::int64_t count, float scale, float offset, std::uint16_t* y) {
  decode<V>(codes, count, scale, offset, [&](std::int64_t i, std::int64_t lanes, typename V::Float values) {
    float parts[V::kLanes];
    V::store(parts, values);
    for (std::int64_t lane = 0; lane < lanes; ++lane) y[i + lane] = numerics::float_to_bfloat(parts[lane]);
  });
}

}  // namespace
}  // namespace qcore
