#pragma once

#include "gemm/cpu/tile.h"
#include "simd/unroll.h"

// Encoded weights become plain ones for the tiles, a few panels at a time, in the first-level cache: codes of 8 bits
// and fp32 scales and offsets. For the vector set V; formats/encoded_storage.h is the definition.
namespace qcore {
namespace {

template <class V>
struct Expand {
  using Int = typename V::Int;
  static constexpr std::int64_t kBytes = sizeof(Int), kGroup = PackedLayout::kGroupSteps,
                                kRows = PackedLayout::kPanelRows;

  // One vector of each of a group's planes.
  template <int Bits>
  struct GroupPlanes {
    Int four[4], two[2], one[1];
    QCORE_INLINE explicit GroupPlanes(const std::uint8_t* group) {
      constexpr std::int64_t kStep = PackedLayout::kStepBytes;
      if constexpr (Bits & 4) repeat<4>([&](int i) QCORE_UNROLLED { four[i] = V::load(group + i * kStep); });
      constexpr std::int64_t kTwo = Bits & 4 ? 4 * kStep : 0, kOne = kTwo + (Bits & 2 ? 2 * kStep : 0);
      if constexpr (Bits & 2) repeat<2>([&](int i) QCORE_UNROLLED { two[i] = V::load(group + kTwo + i * kStep); });
      if constexpr (Bits & 1) one[0] = V::load(group + kOne);
    }
  };

  // Bits [from, from + width) of each byte, moved to begin at bit `to`.
  QCORE_NUMERIC Int field(Int bytes, int from, int to, int width) {
    const std::uint32_t mask = ((1u << width) - 1) << to;
    const Int moved = from > to ? V::shift_right_16(bytes, from > to ? from - to : 0)
                                : V::shift_left_16(bytes, to > from ? to - from : 0);
    return V::bit_and(moved, V::set1(static_cast<int>(mask * 0x01010101u)));
  }

  // The stored codes u of step `at` of a group.
  template <int Bits>
  QCORE_NUMERIC Int code(const GroupPlanes<Bits>& planes, int at) {
    constexpr int kLowTwo = Bits & 4, kLowOne = Bits & 6;  // where planes of 2 bits and of 1 begin in a number
    Int u = V::set1(0);
    if constexpr (Bits & 4) u = V::bit_or(u, field(planes.four[at / 2], 4 * (at % 2), 0, 4));
    if constexpr (Bits & 2) u = V::bit_or(u, field(planes.two[at / 4], 2 * (at % 4), kLowTwo, 2));
    if constexpr (Bits & 1) u = V::bit_or(u, field(planes.one[0], at, kLowOne, 1));
    return u;
  }

  template <int Bits, bool LookedUp>
  QCORE_NUMERIC void expand_panel(const ExpandedCodes& a, const std::uint8_t* from, std::uint8_t* to) {
    // Unsigned: with 128 in every byte the product leaves the range of int.
    const std::uint32_t shifts = static_cast<std::uint8_t>(128 - a.zero) * 0x01010101u;
    const Int table = V::load_table(a.table), shift = V::set1(static_cast<int>(shifts));
    for (std::int64_t group = 0; group < a.groups; ++group) {
      for (std::int64_t part = 0; part < PackedLayout::kStepBytes; part += kBytes) {
        const GroupPlanes<Bits> planes(from + part);
        if (part == 0)
          repeat<Bits>([&](int i) QCORE_UNROLLED {
            __builtin_prefetch(from + a.prefetch_distance + i * PackedLayout::kStepBytes, 0, 2);
          });
        repeat<static_cast<int>(kGroup)>([&](int i) QCORE_UNROLLED {
          const Int u = code<Bits>(planes, i);
          V::store(to + i * PackedLayout::kStepBytes + part, LookedUp ? V::look_up(table, u) : V::add_bytes(u, shift));
        });
      }
      from += Bits * PackedLayout::kStepBytes;
      to += kGroup * PackedLayout::kStepBytes;
    }
  }

  template <int Bits>
  static void expand_panels(const ExpandedCodes& a) {
    for (int panel = 0; panel < a.panels; ++panel) {
      const std::uint8_t* from = a.from + panel * a.from_panel;
      std::uint8_t* to = a.to + panel * a.to_panel;
      if (Bits <= 4 && a.looked_up)
        expand_panel<Bits, true>(a, from, to);
      else
        expand_panel<Bits, false>(a, from, to);
    }
  }

  static void codes(const ExpandedCodes& a) {
    switch (a.bits) {
      case 2:
        return expand_panels<2>(a);
      case 3:
        return expand_panels<3>(a);
      case 4:
        return expand_panels<4>(a);
      case 5:
        return expand_panels<5>(a);
      default:
        return expand_panels<6>(a);
    }
  }

  // ---- parameters, a vector of rows at a time

  using Float = typename V::Float;
  static constexpr int kVectors = static_cast<int>(kRows) / V::kLanes;

  // Numbers of 4 or 6 bits of vector `at` of a group: a byte for each row.
  template <int Bits>
  QCORE_NUMERIC typename V::RowBytes number(const std::uint8_t* group, int at) {
    const auto low = V::row_field(V::load_rows(group + at / 2 * kRows), at % 2 * 4, 15);
    if constexpr (Bits == 4) return low;
    return V::row_or(low, V::row_field(V::load_rows(group + (4 + at / 4) * kRows), at % 4 * 2 - 4, 48));
  }

  // Computes factor * (number - zero), where the factor is a super-parameter, or scale * (zero - number) of zero
  // points.
  template <int Bits, bool ZeroPoints>
  QCORE_NUMERIC void integers(const ExpandedParameters& a, int panel, const std::uint8_t* data, float* to) {
    const std::uint16_t* super = a.super + panel * a.super_panel;
    const float* scales = a.scales + (to - a.to);
    const Float zero = V::set1(a.zero), sign = V::set1(a.negated ? -1.0f : 1.0f);
    Float factors[kVectors] = {};
    std::int64_t next_super = a.first_block, first = a.first_block / kGroup * kGroup;
    for (data += first / kGroup * (Bits * kRows); first < a.end_block; first += kGroup, data += Bits * kRows) {
      __builtin_prefetch(data + a.prefetch_distance, 0, 2);
      if constexpr (Bits > 4) __builtin_prefetch(data + a.prefetch_distance + PackedLayout::kStepBytes, 0, 2);
      repeat<static_cast<int>(kGroup)>([&](int i) QCORE_UNROLLED {
        const std::int64_t p = first + i;
        if (p < a.first_block || p >= a.end_block) return;
        if (!ZeroPoints && p == next_super) {
          const std::int64_t at = p / a.super_block;
          __builtin_prefetch(super + at * kRows + a.prefetch_supers, 0, 2);
          repeat<kVectors>([&](int v) QCORE_UNROLLED {
            factors[v] = V::mul(sign, V::load_half(super + at * kRows + v * V::kLanes));
          });
          next_super = (at + 1) * a.super_block;
        }
        typename V::RowBytes rows;
        if constexpr (Bits == 8)
          rows = V::load_rows(data + i * kRows);
        else
          rows = number<Bits>(data, i);
        repeat<kVectors>([&](int v) QCORE_UNROLLED {
          const std::int64_t place = (p - a.first_block) * kRows + v * V::kLanes;
          const Float integer = V::to_float(V::widen_rows(rows, v));
          if constexpr (ZeroPoints)
            V::store(to + place, V::mul(V::load(scales + place), V::sub(zero, integer)));
          else
            V::store(to + place, V::mul(factors[v], V::sub(integer, zero)));
        });
      });
    }
  }

  // Floats of 8 bits, as numerics/small_floats.h.
  QCORE_NUMERIC Float e8m0(const std::uint8_t* from) {
    return V::as_float(V::max(V::shift_left_32(V::load_bytes(from), 23), V::set1(1 << 22)));
  }
  QCORE_NUMERIC Float e4m3(const std::uint8_t* from) {
    const Int x = V::load_bytes(from);
    const Int magnitude = V::shift_left_32(V::bit_and(x, V::set1(0x7f)), 20);
    const Int sign = V::shift_left_32(V::bit_and(x, V::set1(0x80)), 24);
    const Float scaled = V::mul(V::as_float(magnitude), V::set1(numerics::bits_float((254u - 7u) << 23)));
    return V::as_float(V::bit_or(sign, V::as_int(scaled)));
  }

  // Stores value(i) for every number, which takes so many bytes.
  template <class Value>
  QCORE_NUMERIC void floats(const ExpandedParameters& a, const std::uint8_t* data, int item_bytes, float* to,
                            const Value& value) {
    const std::int64_t begin = a.first_block * kRows;
    for (std::int64_t i = begin; i < a.end_block * kRows; i += V::kLanes) {
      __builtin_prefetch(data + i * item_bytes + a.prefetch_distance, 0, 2);
      V::store(to + (i - begin), value(i));
    }
  }

  static void parameters(const ExpandedParameters& a) {
    for (int panel = 0; panel < a.panels; ++panel) {
      const std::uint8_t* data = a.from + panel * a.from_panel;
      float* to = a.to + panel * (a.end_block - a.first_block) * kRows;
      switch (a.type) {
        case ExpandedParameters::kF32:
          floats(a, data, 4, to,
                 [&](std::int64_t i) QCORE_UNROLLED { return V::load(reinterpret_cast<const float*>(data) + i); });
          break;
        case ExpandedParameters::kF16:
          floats(a, data, 2, to, [&](std::int64_t i) QCORE_UNROLLED { return V::load_half(data + 2 * i); });
          break;
        case ExpandedParameters::kBf16:
          floats(a, data, 2, to, [&](std::int64_t i) QCORE_UNROLLED { return V::load_bfloat(data + 2 * i); });
          break;
        case ExpandedParameters::kE8m0:
          floats(a, data, 1, to,
                 [&](std::int64_t i) QCORE_UNROLLED { return V::mul(e8m0(data + i), V::set1(a.factor)); });
          break;
        case ExpandedParameters::kE4m3:
          floats(a, data, 1, to,
                 [&](std::int64_t i) QCORE_UNROLLED { return V::mul(e4m3(data + i), V::set1(a.factor)); });
          break;
        case ExpandedParameters::kU4:
          integers<4, false>(a, panel, data, to);
          break;
        case ExpandedParameters::kU6:
          integers<6, false>(a, panel, data, to);
          break;
        case ExpandedParameters::kU8:
          integers<8, false>(a, panel, data, to);
          break;
        case ExpandedParameters::kZ4:
          integers<4, true>(a, panel, data, to);
          break;
        default:
          integers<8, true>(a, panel, data, to);
      }
    }
  }
};

// ---- parameters that a tile computes on the way, whose vectors have the 16 rows of a panel

// Computes those of a group of blocks: integers of `Bits` bits times their super-parameter.
template <class V, int Bits>
struct IntegerGroup {
  using Float = typename V::Float;
  static constexpr std::int64_t kRows = PackedLayout::kPanelRows, kGroup = PackedLayout::kGroupSteps;

  // Writes [8][16] for the blocks from p on, and asks for the numbers of the panel so many further.
  QCORE_NUMERIC void expand(const TileNumbers& n, std::int64_t panel, std::int64_t ahead, std::int64_t p,
                            int super_shift, float* to) {
    const std::uint16_t* super = n.super + panel * n.super_panel + (p >> super_shift) * kRows;
    const std::uint8_t* group = n.data + panel * n.panel_bytes + p / kGroup * (Bits * kRows);
    const Float factor = V::load_half(super), low = V::nibbles(n.low), high = V::nibbles(n.high);
    __builtin_prefetch(super + ahead * n.super_panel, 0, 2);
    repeat<(Bits + 3) / 4>([&](int line) QCORE_UNROLLED {
      __builtin_prefetch(group + ahead * n.panel_bytes + line * PackedLayout::kStepBytes, 0, 2);
    });
    if constexpr (Bits == 8) {
      repeat<static_cast<int>(kGroup)>([&](int i) QCORE_UNROLLED {
        const Float number = V::to_float(V::load_bytes(group + i * kRows));
        V::store(to + i * kRows, V::mul(factor, V::sub(number, V::set1(n.zero))));
      });
      return;
    }
    repeat<2>([&](int half) QCORE_UNROLLED {
      typename V::Int two;
      if constexpr (Bits == 6) two = V::load_bytes(group + (4 + half) * kRows);
      repeat<2>([&](int pair) QCORE_UNROLLED {
        const int at = 4 * half + 2 * pair;
        const auto four = V::load_bytes(group + at / 2 * kRows);
        repeat<2>([&](int i) QCORE_UNROLLED {
          Float number = V::template code_at<4>(four, 4 * i, low);
          if constexpr (Bits == 6) number = V::add(number, V::template code_at<4>(two, 4 * pair + 2 * i, high));
          V::store(to + (at + i) * kRows, V::mul(factor, number));
        });
      });
    });
  }
};

// Scales and offsets of a tile's panels, group by group, which wait in the first-level cache.
template <class V, int ScaleBits, int OffsetBits>
struct IntegerParameters {
  static constexpr std::int64_t kRows = PackedLayout::kPanelRows, kGroup = PackedLayout::kGroupSteps;

  template <int Panels>
  struct Group {
    static constexpr bool kStored = false, kOffsets = OffsetBits != 0;

    QCORE_INLINE explicit Group(const BlockTileArguments&) {}

    // Out of the way of the products' registers.
    __attribute__((noinline)) void expand(const BlockTileArguments& t, std::int64_t p) {
      const TileIntegers& from = *t.integers;
      for (int panel = 0; panel < Panels; ++panel) {
        IntegerGroup<V, ScaleBits>::expand(from.scales, t.first_panel + panel, Panels, p, from.super_shift,
                                           scales[panel][0]);
        if constexpr (kOffsets)
          IntegerGroup<V, OffsetBits>::expand(from.offsets, t.first_panel + panel, Panels, p, from.super_shift,
                                              offsets[panel][0]);
      }
    }
    QCORE_INLINE void begin_block(const BlockTileArguments& t, std::int64_t p) {
      if (p % kGroup == 0 || p == t.first_block) expand(t, p / kGroup * kGroup);
    }
    QCORE_INLINE typename V::Float scale(int panel, std::int64_t p) const { return V::load(scales[panel][p % kGroup]); }
    QCORE_INLINE typename V::Float offset(int panel, std::int64_t p) const {
      return V::load(offsets[panel][p % kGroup]);
    }

    alignas(64) float scales[Panels][kGroup][kRows];
    alignas(64) float offsets[kOffsets ? Panels : 1][kGroup][kRows];
  };
};

// Parameters as floats.
struct StoredParameters {
  template <int Panels>
  struct Group {
    static constexpr bool kStored = true;
    QCORE_INLINE explicit Group(const BlockTileArguments&) {}
  };
};

}  // namespace
}  // namespace qcore
