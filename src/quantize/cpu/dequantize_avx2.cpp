#include <cstring>

#include "numerics/half_bits.h"
#include "quantize/cpu/dequantize_vtable.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

using V = Avx2;

// Calls store(i, y) with the values of codes i .. i + 7; of the last ones only as many as there are lead to y.
template <class Store>
QCORE_NUMERIC void decode(const std::int8_t* codes, std::int64_t count, float scale, float offset, Store&& store) {
  const V::Float scales = V::set1(scale), offsets = V::set1(offset);
  const auto decoded = [&](const std::int8_t* from) {
    const V::Int wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    return V::fma(scales, V::to_float(wide), offsets);
  };
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) store(i, V::kLanes, decoded(codes + i));
  if (i == count) return;
  std::int8_t last[V::kLanes] = {};
  memcpy(last, codes + i, static_cast<std::size_t>(count - i));
  store(i, count - i, decoded(last));
}

void to_float(const std::int8_t* codes, std::int64_t count, float scale, float offset, float* y) {
  decode(codes, count, scale, offset, [&](std::int64_t i, std::int64_t lanes, V::Float values) {
    if (lanes == V::kLanes) return V::store(y + i, values);
    float parts[V::kLanes];
    V::store(parts, values);
    memcpy(y + i, parts, static_cast<std::size_t>(lanes) * sizeof(float));
  });
}

void to_half(const std::int8_t* codes, std::int64_t count, float scale, float offset, std::uint16_t* y) {
  decode(codes, count, scale, offset, [&](std::int64_t i, std::int64_t lanes, V::Float values) {
    if (lanes == V::kLanes) return V::store_half(y + i, values);
    std::uint16_t parts[V::kLanes];
    V::store_half(parts, values);
    memcpy(y + i, parts, static_cast<std::size_t>(lanes) * sizeof(std::uint16_t));
  });
}

void to_bfloat(const std::int8_t* codes, std::int64_t count, float scale, float offset, std::uint16_t* y) {
  decode(codes, count, scale, offset, [&](std::int64_t i, std::int64_t lanes, V::Float values) {
    float parts[V::kLanes];
    V::store(parts, values);
    for (std::int64_t lane = 0; lane < lanes; ++lane) y[i + lane] = numerics::float_to_bfloat(parts[lane]);
  });
}

}  // namespace

const DequantizeKernels kDequantizeAvx2{to_float, to_half, to_bfloat};

}  // namespace qcore
