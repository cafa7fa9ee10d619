#pragma once

#include <cstring>

#include "lut/cpu/vtable.h"

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

// The way past the caches is asked for at run time: as a template's parameter it would double the code of all tables.
template <class L, LutElement kElement>
QCORE_NUMERIC void store_lanes(typename ElementOf<kElement>::Type* y, typename L::F x, bool past_cache) {
  if constexpr (kElement == LutElement::f32) {
    past_cache ? L::stream(y, x) : L::store(y, x);
  } else if constexpr (kElement == LutElement::f16) {
    past_cache ? L::stream_half(y, x) : L::store_half(y, x);
  } else {
    past_cache ? L::stream_bfloat(y, x) : L::store_bfloat(y, x);
  }
}

template <bool kOf>
struct Constant {
  static constexpr bool kValue = kOf;
};

// In five steps over blocks, each of a vector beside the next one of the vector before: a step is short enough for a
// processor to overlap several vectors, which it can't with all steps in a row. There are two loops, because constants
// of all steps would not fit the registers. load(i) gives the lanes from element i on, and is called twice; store(i, y)
// takes their results. `count` is a multiple of kWidth. Without kLimited no result is beyond the limit anyway.
template <class L, LutReduction kReduction, bool kLimited, class Table, class Load, class Store>
QCORE_INLINE void look_up_blocks(std::int64_t count, const Table& table, const Load& load, const Store& store) {
  constexpr int kBlock = 1024, kWidth = L::kWidth;
  constexpr bool kSplits = kReduction == LutReduction::exp;  // its first step of each loop, which is long, is two
  alignas(64) float rest[kBlock];                            // what is left behind the entry
  alignas(64) std::int32_t index[kBlock];                    // of the entry
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const int size = count - begin < kBlock ? static_cast<int>(count - begin) : kBlock;
    std::uint32_t nans = 0;
    const int last = size - kWidth;
    const auto argument = [&](int at) {
      const auto x = load(begin + at);
      nans |= L::any_nan(x);
      return numerics::lut_argument<kReduction, L>(x);
    };
    const auto find = [&](typename L::F x) { return numerics::lut_find<kReduction, L>(x, table); };
    const auto narrow = [&](numerics::LutFound<L> found) {
      found.i = table.interval_from(found.inside, found.i);
      return found;
    };
    const auto place = [&](const numerics::LutFound<L>& found, int at) {
      typename L::I q;
      typename L::F a;
      numerics::lut_place<kReduction, L>(found, table, q, a);
      L::store(rest + at, a);
      L::store(index + at, q);
    };
    // The last steps repeat those of the last vector.
    const auto within = [&](int at) { return at < last ? at : last; };
    if constexpr (kSplits) {
      auto narrowed = narrow(find(argument(0)));
      auto found = find(argument(within(kWidth)));
      auto next = argument(within(2 * kWidth));
      for (int at = 0; at < size; at += kWidth) {
        const auto later = find(next);
        next = argument(within(at + 3 * kWidth));
        place(narrowed, at);
        narrowed = narrow(found);
        found = later;
      }
    } else {
      // The first `place` writes nothing that stays.
      auto found = find(argument(0)), narrowed = found;
      for (int at = kWidth; at <= size; at += kWidth) {
        const auto next = find(argument(at < size ? at : last));
        place(narrowed, at > kWidth ? at - 2 * kWidth : 0);
        narrowed = narrow(found);
        found = next;
      }
      place(narrowed, last);
    }

    const auto interpolate = [&](auto may_be_nan) {
      constexpr bool kNaNs = decltype(may_be_nan)::kValue;
      const auto& entries = table.entries();
      const auto pack = [&](int at) {
        return entries.template pack<kReduction == LutReduction::exp>(L::load(index + at));
      };
      const auto finish = [&](const auto& entry, int at) {
        store(begin + at, numerics::lut_interpolate<kReduction, L, kNaNs, kLimited>(
                              load(begin + at), L::load(index + at), L::load(rest + at), entries, entry));
      };
      auto entry = entries.find(pack(0));
      auto packed = pack(within(kWidth));
      for (int at = 0; at < last; at += kWidth) {
        const auto later = entries.find(kSplits ? packed : pack(at + kWidth));
        if constexpr (kSplits) packed = pack(within(at + 2 * kWidth));
        finish(entry, at);
        entry = later;
      }
      finish(entry, last);
    };
    nans ? interpolate(Constant<true>{}) : interpolate(Constant<false>{});
  }
}

template <class L, LutReduction kReduction, LutElement kElement, class Table>
void look_up_vectors(const typename ElementOf<kElement>::Type* x, typename ElementOf<kElement>::Type* y,
                     std::int64_t count, bool past_cache, const Table& table) {
  look_up_blocks<L, kReduction, true>(
      count, table, [&](std::int64_t i) { return load_lanes<L, kElement>(x + i); },
      [&](std::int64_t i, typename L::F lanes) { store_lanes<L, kElement>(y + i, lanes, past_cache); });
}

// The first or last few elements go through a buffer: nothing beyond the end is touched.
template <class L, LutReduction kReduction, LutElement kElement, class Table>
void look_up_some(const typename ElementOf<kElement>::Type* x, typename ElementOf<kElement>::Type* y,
                  std::int64_t count, const Table& table) {
  alignas(64) typename ElementOf<kElement>::Type buffer[L::kWidth] = {};
  memcpy(buffer, x, static_cast<std::size_t>(count) * sizeof *x);
  look_up_vectors<L, kReduction, kElement>(buffer, buffer, L::kWidth, false, table);
  memcpy(y, buffer, static_cast<std::size_t>(count) * sizeof *y);
}

constexpr std::int64_t kLine = 64;

// Elements up to the next cache line.
template <class Element>
QCORE_NUMERIC std::int64_t before_line(const Element* y, std::int64_t count) {
  const auto beyond = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y) % kLine);
  const std::int64_t elements = (kLine - beyond) % kLine / static_cast<std::int64_t>(sizeof *y);
  return elements < count ? elements : count;
}

template <class L, LutReduction kReduction, LutElement kElement, class Table>
void look_up_elements(const LutRun& run, const Table& table) {
  auto* x = static_cast<const typename ElementOf<kElement>::Type*>(run.x);
  auto* y = static_cast<typename ElementOf<kElement>::Type*>(run.y);
  std::int64_t count = run.count;
  if (run.past_cache)
    for (std::int64_t head = before_line(y, count); head > 0;) {
      const std::int64_t n = head < L::kWidth ? head : L::kWidth;
      look_up_some<L, kReduction, kElement>(x, y, n, table);
      x += n, y += n, count -= n, head -= n;
    }
  const std::int64_t whole = count / L::kWidth * L::kWidth;
  look_up_vectors<L, kReduction, kElement>(x, y, whole, run.past_cache, table);
  if (run.past_cache) L::fence();
  if (whole < count) look_up_some<L, kReduction, kElement>(x + whole, y + whole, count - whole, table);
}

template <class L, LutReduction kReduction, class Table>
void map_elements(const LutRun& run, const Table& table) {
  switch (run.element) {
    case LutElement::f16:
      return look_up_elements<L, kReduction, LutElement::f16>(run, table);
    case LutElement::bf16:
      return look_up_elements<L, kReduction, LutElement::bf16>(run, table);
    default:
      return look_up_elements<L, kReduction, LutElement::f32>(run, table);
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

// Between an element type and fp32, the last few through a buffer.
template <class L, LutElement kX, LutElement kY>
void convert_elements(const void* from, void* to, std::int64_t count) {
  auto* x = static_cast<const typename ElementOf<kX>::Type*>(from);
  auto* y = static_cast<typename ElementOf<kY>::Type*>(to);
  const std::int64_t whole = count / L::kWidth * L::kWidth;
  for (std::int64_t i = 0; i < whole; i += L::kWidth) store_lanes<L, kY>(y + i, load_lanes<L, kX>(x + i), false);
  if (whole == count) return;
  alignas(64) typename ElementOf<kX>::Type last_x[L::kWidth] = {};
  alignas(64) typename ElementOf<kY>::Type last_y[L::kWidth];
  memcpy(last_x, x + whole, static_cast<std::size_t>(count - whole) * sizeof *x);
  store_lanes<L, kY>(last_y, load_lanes<L, kX>(last_x), false);
  memcpy(y + whole, last_y, static_cast<std::size_t>(count - whole) * sizeof *y);
}

template <class L>
void load_row(const void* x, LutElement element, std::int64_t count, float* row) {
  switch (element) {
    case LutElement::f16:
      return convert_elements<L, LutElement::f16, LutElement::f32>(x, row, count);
    case LutElement::bf16:
      return convert_elements<L, LutElement::bf16, LutElement::f32>(x, row, count);
    default:
      memcpy(row, x, static_cast<std::size_t>(count) * sizeof *row);
  }
}

template <class L>
void store_row(const float* row, std::int64_t count, LutElement element, void* y) {
  switch (element) {
    case LutElement::f16:
      return convert_elements<L, LutElement::f32, LutElement::f16>(row, y, count);
    case LutElement::bf16:
      return convert_elements<L, LutElement::f32, LutElement::bf16>(row, y, count);
    default:
      memcpy(y, row, static_cast<std::size_t>(count) * sizeof *row);
  }
}

}  // namespace
}  // namespace qcore
