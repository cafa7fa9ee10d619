#pragma once

#include "decoder/cpu/vtable.h"
#include "gemm/cpu/tile_data.h"
#include "numerics/attention.h"
#include "numerics/half_bits.h"
#include "numerics/rms_norm.h"
#include "numerics/rotary.h"

// Operators on one fp32 row, for any lanes (lanes_avx2.h, lanes_avx512.h). In an unnamed namespace, since they are
// compiled for one instruction set.
namespace qcore {
namespace {

constexpr int kBf16 = 2, kI8 = 3;  // DType::bf16, DType::i8

template <class L>
struct RowLanes {
  using F = typename L::F;
  static constexpr int kLanes = L::kLanes;

  QCORE_NUMERIC std::int64_t padded(std::int64_t count) {
    return (count + kRowPadding - 1) / kRowPadding * kRowPadding;
  }

  static void load_row(const void* x, int dtype, std::int64_t count, float* row) {
    if (dtype == kF32) {
      memcpy(row, x, static_cast<std::size_t>(count) * sizeof *row);
    } else {
      auto* from = static_cast<const std::uint16_t*>(x);
      dtype == kF16 ? widen(from, count, row, load_half) : widen(from, count, row, load_bfloat);
    }
  }

  static void store_row(const float* row, std::int64_t count, int dtype, void* y) {
    if (dtype == kF32) {
      memcpy(y, row, static_cast<std::size_t>(count) * sizeof *row);
    } else {
      auto* to = static_cast<std::uint16_t*>(y);
      dtype == kF16 ? narrow(row, count, to, store_half) : narrow(row, count, to, store_bfloat);
    }
  }

  static void add_row(float* row, const float* other, std::int64_t count) {
    for (std::int64_t i = 0; i < padded(count); i += kLanes)
      L::store(row + i, L::add(L::load(row + i), L::load(other + i)));
  }

  static void multiply_row(float* row, const float* other, std::int64_t count) {
    for (std::int64_t i = 0; i < padded(count); i += kLanes)
      L::store(row + i, L::mul(L::load(row + i), L::load(other + i)));
  }

  static void scale_row(float* row, float factor, std::int64_t count) {
    for (std::int64_t i = 0; i < padded(count); i += kLanes)
      L::store(row + i, L::mul(L::load(row + i), L::set(factor)));
  }

  static void normalize_row(float* row, std::int64_t count, float eps) {
    static_assert(kRowPadding % numerics::kNormSums == 0);
    constexpr int kVectors = numerics::kNormSums / kLanes;
    for (std::int64_t i = count; i < padded(count); ++i) row[i] = 0.0f;
    F sums[kVectors];
    for (F& sum : sums) sum = L::set(0.0f);
    for (std::int64_t i = 0; i < padded(count); i += numerics::kNormSums)
      for (int v = 0; v < kVectors; ++v) {
        const F x = L::load(row + i + v * kLanes);
        sums[v] = L::fma(x, x, sums[v]);
      }
    alignas(64) float lanes[numerics::kNormSums];
    for (int v = 0; v < kVectors; ++v) L::store(lanes + v * kLanes, sums[v]);
    const float total = numerics::add_by_halves<numerics::kNormSums>(lanes);
    scale_row(row, numerics::norm_factor(total, count, eps), count);
  }

  static void gate_row(float* gate, const float* up, std::int64_t count, int activation) {
    switch (activation) {
      case numerics::kGateGelu:
        return gate_with<numerics::kGateGelu>(gate, up, count);
      case numerics::kGateGeluTanh:
        return gate_with<numerics::kGateGeluTanh>(gate, up, count);
      case numerics::kGateRelu:
        return gate_with<numerics::kGateRelu>(gate, up, count);
      default:
        return gate_with<numerics::kGateSilu>(gate, up, count);
    }
  }

  static void cap_row(float* row, std::int64_t count, float multiplier, float soft_cap) {
    for (std::int64_t i = 0; i < padded(count); i += kLanes)
      L::store(row + i, numerics::attention_score<L>(L::load(row + i), multiplier, soft_cap));
  }

  static void rotate_row(float* row, const float* cos, const float* sin, std::int64_t rotary, bool interleaved) {
    const std::int64_t half = rotary / 2;
    if (interleaved) {
      for (std::int64_t i = 0; i < half; ++i) rotate_pair(row, cos, sin, 2 * i, 2 * i + 1);
      return;
    }
    std::int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F a = L::load(row + i), b = L::load(row + half + i);
      L::store(row + i, numerics::rotated_first<L>(a, b, L::load(cos + i), L::load(sin + i)));
      L::store(row + half + i, numerics::rotated_second<L>(a, b, L::load(cos + half + i), L::load(sin + half + i)));
    }
    for (; i < half; ++i) rotate_pair(row, cos, sin, i, half + i);
  }

  static void quantize_row(const float* row, std::int64_t count, std::int8_t* codes, float* scale) {
    auto largest = L::set(std::int32_t{0});
    const auto mask = L::set(std::int32_t{0x7fffffff});
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) largest = L::max(largest, L::bit_and(L::bits(L::load(row + i)), mask));
    std::uint32_t bits = static_cast<std::uint32_t>(L::largest(largest));
    for (; i < count; ++i) {
      const std::uint32_t other = numerics::float_bits(row[i]) & 0x7fffffffu;
      if (other > bits) bits = other;
    }
    *scale = numerics::cache_scale(numerics::bits_float(bits));
    const float factor = numerics::cache_factor(*scale);
    i = 0;
    if (factor != 0.0f)
      for (; i + kLanes <= count; i += kLanes)
        L::store_codes(codes + i, L::to_int(L::mul(L::load(row + i), L::set(factor))));
    for (; i < count; ++i) codes[i] = static_cast<std::int8_t>(numerics::cache_code(row[i], factor));
  }

  static void merge_row(float* largest, float* sum, float* out, const float* new_largest, const float* new_sum,
                        const float* new_out, std::int64_t head_size) {
    if (*new_sum == 0.0f) return;
    const std::int64_t size = (head_size + kHeadPadding - 1) / kHeadPadding * kHeadPadding;
    if (*sum == 0.0f) {
      *largest = *new_largest;
      *sum = *new_sum;
      memcpy(out, new_out, static_cast<std::size_t>(size) * sizeof *out);
      return;
    }
    const auto merge = numerics::merge_factors(*largest, *new_largest);
    *largest = merge.largest;
    *sum = numerics::merged<numerics::ScalarLanes>(*sum, *new_sum, merge);
    for (std::int64_t i = 0; i < size; i += kLanes)
      L::store(out + i, numerics::merged<L>(L::load(out + i), L::load(new_out + i), merge));
  }

  QCORE_NUMERIC F load_half(const std::uint16_t* x) { return L::load_half(x); }
  QCORE_NUMERIC F load_bfloat(const std::uint16_t* x) { return L::load_bfloat(x); }
  QCORE_NUMERIC void store_half(std::uint16_t* y, F x) { L::store_half(y, x); }
  QCORE_NUMERIC void store_bfloat(std::uint16_t* y, F x) { L::store_bfloat(y, x); }

  // The last few elements go through a buffer: nothing beyond the end is touched.
  template <class Load>
  QCORE_NUMERIC void widen(const std::uint16_t* x, std::int64_t count, float* row, const Load& load) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) L::store(row + i, load(x + i));
    if (i == count) return;
    alignas(64) std::uint16_t last[kLanes] = {};
    alignas(64) float values[kLanes];
    memcpy(last, x + i, static_cast<std::size_t>(count - i) * sizeof *x);
    L::store(values, load(last));
    memcpy(row + i, values, static_cast<std::size_t>(count - i) * sizeof *row);
  }

 private:
  template <class Store>
  QCORE_NUMERIC void narrow(const float* row, std::int64_t count, std::uint16_t* y, const Store& store) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(y + i, L::load(row + i));
    if (i == count) return;
    alignas(64) float values[kLanes] = {};
    alignas(64) std::uint16_t last[kLanes];
    memcpy(values, row + i, static_cast<std::size_t>(count - i) * sizeof *row);
    store(last, L::load(values));
    memcpy(y + i, last, static_cast<std::size_t>(count - i) * sizeof *y);
  }

  template <int kActivation>
  QCORE_NUMERIC void gate_with(float* gate, const float* up, std::int64_t count) {
    for (std::int64_t i = 0; i < padded(count); i += kLanes)
      L::store(gate + i, L::mul(numerics::gate<L, kActivation>(L::load(gate + i)), L::load(up + i)));
  }

  QCORE_NUMERIC void rotate_pair(float* row, const float* cos, const float* sin, std::int64_t a, std::int64_t b) {
    const float x = row[a], y = row[b];
    row[a] = numerics::rotated_first<numerics::ScalarLanes>(x, y, cos[a], sin[a]);
    row[b] = numerics::rotated_second<numerics::ScalarLanes>(x, y, cos[b], sin[b]);
  }
};

}  // namespace
}  // namespace qcore
