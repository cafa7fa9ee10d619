#pragma once

#include "gemm/cpu/float_weights.h"
#include "gemm/cpu/tile.h"
#include "gemm/cpu/tile_table.h"

// A tile of the product with float activations for processors without a fused multiply-add. Products are exact in
// double; a sum is rounded to double, then to float. That is the same as rounding once
//   - if the sum is exact in double, which the lowest bits of some k and the magnitudes of a block may prove for all of
//     their sums;
//   - or if it does not lie in the middle between two floats. Whether any does is looked up after some sums; then they
//     are added again by V::fma().
namespace qcore {
namespace {

// A block of a row of x has these numbers in the places of its parameters. Its k are parted into four of equal steps,
// because the lowest bit of fewer numbers is higher.
struct DoubleRows {
  static constexpr int kParts = 4;
  static constexpr PackedRows::Parameter kHigh = PackedRows::kScale;  // the sum of magnitudes is less than 2^high

  // The numbers of a part are multiples of 2^low.
  QCORE_NUMERIC PackedRows::Parameter low(std::int64_t part) { return static_cast<PackedRows::Parameter>(1 + part); }
  QCORE_NUMERIC std::int64_t part_steps(std::int64_t steps) { return (steps + kParts - 1) / kParts; }
};

// The lowest and the highest bit of numbers.
constexpr int kNoBit = 300, kNotFinite = -2 * kNoBit;

// Returns the largest exponent of 2 of which a number is a multiple.
QCORE_NUMERIC int lowest_bit(float value) {
  const std::uint32_t bits = numerics::float_bits(value) & 0x7fffffffu;
  if (bits == 0) return kNoBit;
  if (bits >= numerics::kInfinityBits) return kNotFinite;
  const int exponent = static_cast<int>(bits >> 23);
  const std::uint32_t fraction = (bits & 0x7fffffu) | (exponent ? 0x800000u : 0u);
  return (exponent ? exponent : 1) - 150 + __builtin_ctz(fraction);
}

// Returns an exponent of 2 that is greater than the magnitude of a finite number.
QCORE_NUMERIC int bits_above(float value) {
  const std::uint32_t bits = numerics::float_bits(value) & 0x7fffffffu;
  return bits == 0 ? -kNoBit : bits < 0x800000u ? -126 : static_cast<int>(bits >> 23) - 126;
}

// Likewise of a double that is not negative. A sum of many of them is wrong by less than the bit that is added.
QCORE_NUMERIC int exponent_above(double value) {
  std::uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits == 0 ? -kNoBit : static_cast<int>(bits >> 52) - 1022;
}

template <class Vectors, int Rows, int Bits, bool Decoded>
struct DoubleBlock {
  using V = Vectors;
  using Float = typename V::Float;
  using Doubles = typename V::Doubles2;
  using Weights = FloatWeights<V, Bits>;
  static constexpr int kVectors = Weights::kVectorsPerPanel, kPairs = 2 * kVectors, kStepK = Weights::kStepK;
  static constexpr std::int64_t kStepBytes = kStepK * static_cast<std::int64_t>(sizeof(double));
  static constexpr std::int64_t kColumns = PackedLayout::kPanelRows;
  static constexpr std::int64_t kRunSteps = 64 / kStepK;     // that are decoded at once
  static constexpr std::int64_t kCheckedSteps = 8 / kStepK;  // after which is looked whether a sum was in the middle

  QCORE_INLINE explicit DoubleBlock(const BlockTileArguments& arguments)
      : t(arguments), decoded(static_cast<const double*>(arguments.decoded)) {}

  QCORE_INLINE void add(Float (&y)[Rows][kVectors], TileRows<Rows> rows, const std::uint8_t* w, std::int64_t p,
                        std::int64_t steps) {
    Sum sums[Rows]{};
    const WeightBits weights = bits_of_weights(p);
    int lowest[Rows];  // unit so far
    for (int& unit : lowest) unit = 2 * kNoBit;
    const std::int64_t part_steps = DoubleRows::part_steps(steps);
    double run[Decoded ? 1 : kRunSteps * kStepK * kColumns];
    for (std::int64_t step = 0, count; step < steps; step += count) {
      const std::int64_t part = step / part_steps,
                         end = (part + 1) * part_steps < steps ? (part + 1) * part_steps : steps;
      count = end - step < kRunSteps ? end - step : kRunSteps;
      const double* values = decoded;
      if constexpr (Decoded) {
        decoded += count * kStepK * kColumns;
      } else {
        decode(t, 0, p, w, count, run);
        w += count * PackedLayout::kStepBytes;
        values = run;
      }
      for (int r = 0; r < Rows; ++r) {
        const Way way = way_of(rows, r, p, part, weights);
        lowest[r] = way.unit < lowest[r] ? way.unit : lowest[r];
        add_run(way, lowest[r], rows.row[r] + rows.at + step * kStepBytes, values, count, sums[r]);
      }
    }
    for (int r = 0; r < Rows; ++r)
      repeat<kVectors>([&](int v) QCORE_UNROLLED {
        y[r][v] = V::add(y[r][v], V::to_floats(sums[r].pair[2 * v], sums[r].pair[2 * v + 1]));
      });
  }

  QCORE_INLINE void next_tap() {}

  // Writes the weights of some steps of a block, [k][16 columns].
  QCORE_NUMERIC void decode(const BlockTileArguments& t, int panel, std::int64_t p, const std::uint8_t* w,
                            std::int64_t steps, double* out) {
    const typename V::Float nibbles = V::nibbles(t.nibbles);
    typename Weights::Block block[kVectors];
    repeat<kVectors>([&](int v) QCORE_UNROLLED { block[v] = Weights::block_of(t, panel * kVectors + v, p); });
    const bool offsets = t.offsets.data != nullptr;
    for (std::int64_t step = 0; step < steps; ++step, w += PackedLayout::kStepBytes, out += kStepK * kColumns)
      repeat<kVectors>([&](int v) QCORE_UNROLLED {
        const typename V::Int stored = V::load(w + v * (4 * V::kLanes));
        repeat<kStepK>([&](int k) QCORE_UNROLLED {
          const Float code = V::template code_at<Bits>(stored, k % 4 * 8 + k / 4 * 4, nibbles);
          // Without an offset a product: a zero of the other sign adds nothing to a sum that begins with +0.
          const Float weight = offsets ? V::fma(block[v].scale, code, block[v].offset) : V::mul(block[v].scale, code);
          const Doubles low = V::to_doubles_low(weight), high = V::to_doubles_high(weight);
          memcpy(out + k * kColumns + v * V::kLanes, &low, sizeof low);
          memcpy(out + k * kColumns + v * V::kLanes + 2, &high, sizeof high);
        });
      });
  }

 private:
  // Sums of a row, of floats in doubles.
  struct Sum {
    Doubles pair[kPairs];
  };

  struct WeightBits {
    int low, high;
  };

  // Returns the lowest bit of a block's weights, and the exponent of a power of 2 above them.
  QCORE_INLINE WeightBits bits_of_weights(std::int64_t p) const {
    constexpr int kCodeBits = 7;  // |code| <= 2^7
    WeightBits found{kNoBit, -kNoBit};
    const std::int64_t at = parameters_at(t, 0, p);
    const auto add = [&](const TileParameters& from, int more) {
      float values[kColumns];
      repeat<kVectors>([&](int v) QCORE_UNROLLED {
        V::store(values + v * V::kLanes, load_parameters<V>(from, at + v * V::kLanes));
      });
      for (const float value : values) {
        const int low = lowest_bit(value), high = bits_above(value) + more;
        found.low = low < found.low ? low : found.low;
        found.high = high > found.high ? high : found.high;
      }
    };
    add(t.scales, kCodeBits);
    if (!t.offsets.data) return found;
    add(t.offsets, 0);
    found.high += 2;  // both together, and their rounding
    return found;
  }

  // Says how products of a part of a block are added, which are multiples of 2^unit: all sums are less than 2^(high +
  // 1), roundings included. A unit of 2^-149 and more makes sums exact that are subnormal in float.
  struct Way {
    static constexpr int kLeastUnit = -149, kDoubleBits = 53;
    int unit, high;

    QCORE_INLINE bool fused() const { return unit < kLeastUnit; }
    // Returns whether sums are exact in double that are multiples of 2^lowest.
    QCORE_INLINE bool exact(int lowest) const { return lowest >= kLeastUnit && high + 1 - lowest <= kDoubleBits; }
  };

  QCORE_INLINE Way way_of(const TileRows<Rows>& rows, int r, std::int64_t p, std::int64_t part,
                          const WeightBits& weights) const {
    return {rows.template parameter<std::int32_t>(r, DoubleRows::low(part), t.blocks, p) + weights.low,
            rows.template parameter<std::int32_t>(r, DoubleRows::kHigh, t.blocks, p) + weights.high};
  }

  // `lowest` is the least unit of this part and those before, of which all sums are multiples.
  QCORE_NUMERIC void add_run(const Way& way, int lowest, const char* x, const double* w, std::int64_t steps,
                             Sum& sums) {
    if (way.exact(lowest) || (way.exact(way.unit) && are_multiples(sums, way.unit))) {
      add_products<false>(x, w, steps * kStepK, sums);
      return;
    }
    for (std::int64_t step = 0; step < steps; step += kCheckedSteps) {
      const std::int64_t count = (steps - step < kCheckedSteps ? steps - step : kCheckedSteps) * kStepK;
      if (way.fused() || add_products<true>(x, w, count, sums)) add_fused(x, w, count, sums);
      x += count * static_cast<std::int64_t>(sizeof(double));
      w += count * kColumns;
    }
  }

  // Returns whether sums of earlier parts are multiples of 2^unit: behind 1.5 * 2^(52 + unit) there are no lower bits.
  QCORE_NUMERIC bool are_multiples(const Sum& sums, int unit) {
    const std::uint64_t bits = (static_cast<std::uint64_t>(unit + 52 + 1023) << 52) | (std::uint64_t{1} << 51);
    double large;
    memcpy(&large, &bits, sizeof large);
    const Doubles larges = {large, large};
    typename V::Longs same = {-1, -1};
    repeat<kPairs>(
        [&](int i) QCORE_UNROLLED { same &= (typename V::Longs)((sums.pair[i] + larges) - larges == sums.pair[i]); });
    return (same[0] & same[1]) != 0;
  }

  // Rows lie at any address.
  QCORE_NUMERIC double value_at(const char* x, std::int64_t k) {
    double value;
    memcpy(&value, x + k * static_cast<std::int64_t>(sizeof value), sizeof value);
    return value;
  }

  // Returns whether a sum may have been rounded twice; the sums are then as before.
  template <bool Checked>
  static bool add_products(const char* x, const double* w, std::int64_t count, Sum& sums) {
    Doubles sum[kPairs];
    repeat<kPairs>([&](int i) QCORE_UNROLLED { sum[i] = sums.pair[i]; });
    typename V::Int middle = V::set1(0);
    for (std::int64_t k = 0; k < count; ++k, w += kColumns) {
      const double value = value_at(x, k);
      const Doubles a = {value, value};
      repeat<kVectors>([&](int v) QCORE_UNROLLED {
        Doubles weights[2];
        memcpy(weights, w + v * V::kLanes, sizeof weights);
        const Doubles low = a * weights[0] + sum[2 * v], high = a * weights[1] + sum[2 * v + 1];
        if constexpr (Checked) middle = V::bit_or(middle, V::middle_of_floats(low, high));
        sum[2 * v] = V::round_to_floats(low);
        sum[2 * v + 1] = V::round_to_floats(high);
      });
    }
    if (Checked && V::any(middle)) return true;
    repeat<kPairs>([&](int i) QCORE_UNROLLED { sums.pair[i] = sum[i]; });
    return false;
  }

  __attribute__((noinline, cold)) static void add_fused(const char* x, const double* w, std::int64_t count, Sum& sums) {
    for (int v = 0; v < kVectors; ++v) {
      Float sum = V::to_floats(sums.pair[2 * v], sums.pair[2 * v + 1]);
      for (std::int64_t k = 0; k < count; ++k) {
        Doubles weights[2];
        memcpy(weights, w + k * kColumns + v * V::kLanes, sizeof weights);
        sum = V::fma(V::set1(static_cast<float>(value_at(x, k))), V::to_floats(weights[0], weights[1]), sum);
      }
      sums.pair[2 * v] = V::to_doubles_low(sum);
      sums.pair[2 * v + 1] = V::to_doubles_high(sum);
    }
  }

  const BlockTileArguments& t;
  const double* decoded;
};

template <class V, int Rows, int Bits>
struct DoubleTile {
  static void run(const BlockTileArguments& t) {
    if (t.decoded)
      add_blocks<DoubleBlock<V, Rows, Bits, true>, Rows>(t);
    else
      add_blocks<DoubleBlock<V, Rows, Bits, false>, Rows>(t);
  }
};

template <class V, int Bits>
QCORE_NUMERIC void decode_double_blocks(const BlockTileArguments& t, double* out) {
  using Block = DoubleBlock<V, 1, Bits, false>;
  for (int panel = 0; panel < t.panels; ++panel) {
    const std::uint8_t* w = t.codes + panel * t.panel_bytes;
    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      const std::int64_t steps = p + 1 < t.blocks ? t.block_steps : t.last_block_steps;
      Block::decode(t, panel, p, w, steps, out);
      w += steps * PackedLayout::kStepBytes;
      out += steps * Block::kStepK * Block::kColumns;
    }
  }
}

template <class V>
[[maybe_unused]] static void decode_doubles(const BlockTileArguments& t, void* to) {
  auto* const out = static_cast<double*>(to);
  if (t.layout->bits == 8)
    decode_double_blocks<V, 8>(t, out);
  else
    decode_double_blocks<V, 4>(t, out);
}

// Places rows as doubles, and the range of each block's bits in the places of a start and a sum.
[[maybe_unused]] static void pack_double_rows(const float* values, std::int64_t stride, std::int64_t count,
                                              const PackedLayout& layout, int, const PackedRows& rows) {
  const std::int64_t blocks = layout.blocks(), block_k = layout.block_first_step(1) * layout.step_k();
  for (std::int64_t row = 0; row < count; ++row) {
    char* const data = rows.data + row * rows.row_bytes;
    auto* const parameters = reinterpret_cast<std::int32_t*>(data);
    for (std::int64_t p = 0; p < blocks; ++p) {
      const float* const x = values + row * stride + layout.block_begin(p);
      const std::int64_t length = layout.block_length(p), padded = layout.block_steps(p) * layout.step_k();
      const std::int64_t part_k = DoubleRows::part_steps(layout.block_steps(p)) * layout.step_k();
      double magnitude = 0;
      for (std::int64_t part = 0; part < DoubleRows::kParts; ++part) {
        int low = kNoBit;
        const std::int64_t end = (part + 1) * part_k < padded ? (part + 1) * part_k : padded;
        for (std::int64_t k = part * part_k; k < end; ++k) {
          const float value = k < length ? x[k] : 0.0f;
          const double wide = value;
          magnitude += wide < 0 ? -wide : wide;
          low = lowest_bit(value) < low ? lowest_bit(value) : low;
          memcpy(data + rows.codes + (p * block_k + k) * static_cast<std::int64_t>(sizeof wide), &wide, sizeof wide);
        }
        parameters[DoubleRows::low(part) * blocks + p] = low;
      }
      parameters[DoubleRows::kHigh * blocks + p] = exponent_above(magnitude);
    }
  }
}

template <class Vectors>
struct DoubleTiles : PlainTiles {
  using V = Vectors;
  static constexpr bool kLooksUpNibbles = V::kLooksUpNibbles;
  template <int Rows, int>
  using W8 = DoubleTile<V, Rows, 8>;
  template <int Rows, int>
  using W4 = DoubleTile<V, Rows, 4>;
  static constexpr int kBytesPerCode = sizeof(double);
  static constexpr decltype(BlockKernels::pack) pack = pack_double_rows;
  static constexpr decltype(BlockKernels::decode) decode = decode_doubles<V>;
};

}  // namespace
}  // namespace qcore
