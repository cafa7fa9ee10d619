#pragma once

#include <cstring>

#include "lut/lut_kernels.h"

// The loops over memory, for any lanes (lanes_avx2.h, lanes_avx512.h). In an unnamed namespace, since they are compiled
// for one instruction set.
namespace qcore {
namespace {

using numerics::LutReduction;

template <LutElement kElement>
struct ElementOf {
  using Type = std::uint16_t;
};
template <>
struct ElementOf<LutElement::f32> {
  using Type = float;
};

template <class L, LutElement kElement>
QCORE_NUMERIC typename L::F load_lanes(const typename ElementOf<kElement>::Type* x) {
  if constexpr (kElement == LutElement::f32) {
    return L::load(x);
  } else if constexpr (kElement == LutElement::f16) {
    return L::load_half(x);
  } else {
    return L::load_bfloat(x);
  }
}

template <class L, LutElement kElement, bool kPastCache>
QCORE_NUMERIC void store_lanes(typename ElementOf<kElement>::Type* y, typename L::F x) {
  if constexpr (kElement == LutElement::f32) {
    kPastCache ? L::stream(y, x) : L::store(y, x);
  } else if constexpr (kElement == LutElement::f16) {
    kPastCache ? L::stream_half(y, x) : L::store_half(y, x);
  } else {
    kPastCache ? L::stream_bfloat(y, x) : L::store_bfloat(y, x);
  }
}

// `function` of lanes, over contiguous memory. The last lanes go through a buffer: nothing beyond the end is touched.
template <class L, LutElement kX, LutElement kY, class Function>
QCORE_NUMERIC void map_lanes(const void* from, void* to, std::int64_t count, bool past_cache, const Function& function) {
  auto* x = static_cast<const typename ElementOf<kX>::Type*>(from);
  auto* y = static_cast<typename ElementOf<kY>::Type*>(to);
  alignas(64) typename ElementOf<kX>::Type last_x[L::kWidth] = {};
  alignas(64) typename ElementOf<kY>::Type last_y[L::kWidth];
  const auto some = [&](std::int64_t n) {
    memcpy(last_x, x, static_cast<std::size_t>(n) * sizeof *x);
    store_lanes<L, kY, false>(last_y, function(load_lanes<L, kX>(last_x)));
    memcpy(y, last_y, static_cast<std::size_t>(n) * sizeof *y);
    x += n, y += n, count -= n;
  };
  if (past_cache) {
    constexpr std::int64_t kLine = 64;
    const std::int64_t head = (kLine - static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y) % kLine)) % kLine /
                              static_cast<std::int64_t>(sizeof *y);
    for (std::int64_t left = head < count ? head : count; left > 0;) {
      const std::int64_t n = left < L::kWidth ? left : L::kWidth;
      some(n);
      left -= n;
    }
    for (; count >= L::kWidth; count -= L::kWidth, x += L::kWidth, y += L::kWidth)
      store_lanes<L, kY, true>(y, function(load_lanes<L, kX>(x)));
    _mm_sfence();
  } else {
    for (; count >= L::kWidth; count -= L::kWidth, x += L::kWidth, y += L::kWidth)
      store_lanes<L, kY, false>(y, function(load_lanes<L, kX>(x)));
  }
  if (count > 0) some(count);
}

template <class L, LutReduction kReduction, class Table>
void map_elements(const LutRun& run, const Table& table) {
  const auto function = [&](typename L::F x) __attribute__((always_inline)) {
    return numerics::lut_eval<kReduction, L>(x, table);
  };
  switch (run.element) {
    case LutElement::f16:
      return map_lanes<L, LutElement::f16, LutElement::f16>(run.x, run.y, run.count, run.past_cache, function);
    case LutElement::bf16:
      return map_lanes<L, LutElement::bf16, LutElement::bf16>(run.x, run.y, run.count, run.past_cache, function);
    default:
      return map_lanes<L, LutElement::f32, LutElement::f32>(run.x, run.y, run.count, run.past_cache, function);
  }
}

template <class L, class Table>
void map_reduced(LutReduction reduction, const LutRun& run, const Table& table) {
  switch (reduction) {
    case LutReduction::exp:
      return map_elements<L, LutReduction::exp>(run, table);
    case LutReduction::log:
      return map_elements<L, LutReduction::log>(run, table);
    case LutReduction::reciprocal:
      return map_elements<L, LutReduction::reciprocal>(run, table);
    case LutReduction::sqrt:
      return map_elements<L, LutReduction::sqrt>(run, table);
    case LutReduction::rsqrt:
      return map_elements<L, LutReduction::rsqrt>(run, table);
    case LutReduction::periodic:
      return map_elements<L, LutReduction::periodic>(run, table);
    default:
      return map_elements<L, LutReduction::none>(run, table);
  }
}

template <class L>
void load_elements(const void* x, LutElement element, std::int64_t count, float* row) {
  const auto same = [](typename L::F value) __attribute__((always_inline)) { return value; };
  switch (element) {
    case LutElement::f16:
      return map_lanes<L, LutElement::f16, LutElement::f32>(x, row, count, false, same);
    case LutElement::bf16:
      return map_lanes<L, LutElement::bf16, LutElement::f32>(x, row, count, false, same);
    default:
      memcpy(row, x, static_cast<std::size_t>(count) * sizeof *row);
  }
}

template <class L>
void store_elements(const float* row, std::int64_t count, LutElement element, void* y) {
  const auto same = [](typename L::F value) __attribute__((always_inline)) { return value; };
  switch (element) {
    case LutElement::f16:
      return map_lanes<L, LutElement::f32, LutElement::f16>(row, y, count, false, same);
    case LutElement::bf16:
      return map_lanes<L, LutElement::f32, LutElement::bf16>(row, y, count, false, same);
    default:
      memcpy(y, row, static_cast<std::size_t>(count) * sizeof *row);
  }
}

}  // namespace
}  // namespace qcore
