#pragma once

#include "recurrent/cpu/vector_lanes.h"

// Computes products, states and accesses to callers' arrays for cells of kGates gates. Vectors V and dot products Dot
// belong to an instruction set. A part is the sum of products of planes of weights and inputs whose place values are
// equal: total = sum of part[i] * 256^i. SignedInputs: Dot multiplies bytes of inputs less 128.
namespace qcore {
namespace {

template <class V, class Dot, int kGates, bool SignedInputs = false>
struct RecurrentTiles {
  using I = typename V::Int;
  using W = typename V::Wide;
  static constexpr int kLanes = V::kLanes, kSlices = static_cast<int>(kChannelGroup) / kLanes;
  static constexpr int kMaxRows = 8, kMaxParts = 3;

  QCORE_NUMERIC std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  // Sums of products, [vector][gate][part][lane]; a vector is kLanes channels of a row.
  struct Sums {
    alignas(64) std::int32_t parts[kMaxRows][kGates][kMaxParts][kLanes];
  };

  // Codes of a function, and before their look-up the indices of their arguments, less 32768.
  using Codes = std::int16_t[kMaxRows][kLanes];

  // Look-ups in tables of 16 bits that wait for the loops of products, whose dot products leave the units for loads and
  // stores idle: a few after every four features.
  class WaitingLookUps {
   public:
    void add(const CellTable& table, Codes& codes, int vectors) {
      if (vectors == 0) return;
      ranges_[count_++] = {static_cast<const std::uint16_t*>(table.entries), codes[0], codes[0] + vectors * kLanes};
    }
    QCORE_INLINE bool any() const { return first_ < count_; }
    QCORE_INLINE void do_some() {
      Range& range = ranges_[first_];
      look_up<kAtOnce>(range.entries, range.at);
      range.at += kAtOnce;
      if (range.at == range.end) ++first_;
    }
    void do_all() {
      while (any()) do_some();
      first_ = count_ = 0;
    }

   private:
    static constexpr int kAtOnce = kLanes < 8 ? kLanes : 8;
    struct Range {
      const std::uint16_t* entries;
      std::int16_t *at, *end;
    };
    Range ranges_[8];
    int first_ = 0, count_ = 0;
  };

  // Rows at a time by NW planes of weights and NX of inputs, so that sums stay in registers; a power of two.
  static constexpr int rows_at_once(int nw, int nx) {
    int rows = kMaxRows;
    while (rows > 1 && rows * kGates * (nw + nx - 1) > Dot::kMaxSums) rows /= 2;
    return rows;
  }

  // kSplit: interleaved partial sums where a few rows are too few chains of dependent instructions. Out of line, so
  // that sums and weights have all registers.
  template <int NW, int NX, int kRows, int kSplit>
  __attribute__((noinline)) static void multiply_rows(const std::int8_t* w, std::int64_t quads, const BytePlanes& u,
                                                      std::int64_t first_row, std::int64_t first_vector, Sums& sums,
                                                      WaitingLookUps* waiting) {
    constexpr int kParts = NW + NX - 1;
    constexpr std::int64_t kPlaneBytes = kChannelGroup * 4, kQuadBytes = kPlaneBytes * kGates * NW;
    I acc[kSplit][kRows][kGates][kParts];
    repeat<kSplit>([&](int s) QCORE_UNROLLED {
      repeat<kRows>([&](int r) QCORE_UNROLLED {
        repeat<kGates>(
            [&](int g) QCORE_UNROLLED { repeat<kParts>([&](int p) QCORE_UNROLLED { acc[s][r][g][p] = V::set1(0); }); });
      });
    });
    const std::uint8_t* inputs = u.row(first_row);
    for (std::int64_t quad = 0; quad < quads; quad += kSplit, w += kSplit * kQuadBytes, inputs += 4 * kSplit) {
      if (waiting && waiting->any()) waiting->do_some();
      repeat<kSplit>([&](int s) QCORE_UNROLLED {
        typename Dot::Weights weights[kGates][NW];
        repeat<kGates>([&](int g) QCORE_UNROLLED {
          repeat<NW>([&](int i) QCORE_UNROLLED {
            weights[g][i] = Dot::load(w + s * kQuadBytes + (g * NW + i) * kPlaneBytes);
          });
        });
        repeat<kRows>([&](int r) QCORE_UNROLLED {
          repeat<NX>([&](int j) QCORE_UNROLLED {
            const auto four = Dot::spread(inputs + r * u.row_stride + j * u.plane_stride + 4 * s);
            repeat<kGates>([&](int g) QCORE_UNROLLED {
              repeat<NW>([&](int i) QCORE_UNROLLED {
                const int part = (NW - 1 - i) + (NX - 1 - j);  // plane 0 is the upper one
                Dot::multiply(acc[s][r][g][part], four, weights[g][i]);
              });
            });
          });
        });
      });
    }
    repeat<kRows>([&](int r) QCORE_UNROLLED {
      repeat<kGates>([&](int g) QCORE_UNROLLED {
        repeat<kParts>([&](int p) QCORE_UNROLLED {
          I sum = acc[0][r][g][p];
          repeat<kSplit - 1>([&](int s) QCORE_UNROLLED { sum = V::add(sum, acc[s + 1][r][g][p]); });
          V::store(sums.parts[first_vector + r][g][p], sum);
        });
      });
    });
  }

  template <int NW, int NX>
  static void multiply(const std::int8_t* w, std::int64_t quads, const BytePlanes& u, std::int64_t first_row,
                       std::int64_t rows, std::int64_t vector, Sums& sums, WaitingLookUps* waiting) {
    constexpr int kAtOnce = rows_at_once(NW, NX), kSums = kGates * (NW + NX - 1);
    constexpr int kSplit1 = 4 * kSums <= Dot::kMaxSums ? 4 : 2 * kSums <= Dot::kMaxSums ? 2 : 1;
    constexpr int kSplit2 = kSplit1 >= 2 ? kSplit1 / 2 : 1;
    const std::int64_t end = first_row + rows;
    std::int64_t row = first_row;
    if constexpr (kAtOnce >= 8)
      for (; row + 8 <= end; row += 8, vector += 8)
        multiply_rows<NW, NX, 8, 1>(w, quads, u, row, vector, sums, waiting);
    if constexpr (kAtOnce >= 4)
      for (; row + 4 <= end; row += 4, vector += 4)
        multiply_rows<NW, NX, 4, 1>(w, quads, u, row, vector, sums, waiting);
    if constexpr (kAtOnce >= 2)
      for (; row + 2 <= end; row += 2, vector += 2)
        multiply_rows<NW, NX, 2, kSplit2>(w, quads, u, row, vector, sums, waiting);
    for (; row < end; ++row, ++vector) multiply_rows<NW, NX, 1, kSplit1>(w, quads, u, row, vector, sums, waiting);
  }

  // Up to kMaxRows rows of a slice (kLanes channels of a group), into as many vectors of `sums` from `vector` on.
  static void multiply(const CodeProduct& product, std::int64_t slice, const BytePlanes& u, std::int64_t first_row,
                       std::int64_t rows, std::int64_t vector, Sums& sums, WaitingLookUps* waiting = nullptr) {
    const std::int8_t* w = product.weights + slice / kSlices * product.group_bytes + slice % kSlices * kLanes * 4;
    if (product.weight_planes == 1 && product.input_planes == 1)
      multiply<1, 1>(w, product.quads, u, first_row, rows, vector, sums, waiting);
    else if (product.weight_planes == 1)
      multiply<1, 2>(w, product.quads, u, first_row, rows, vector, sums, waiting);
    else if (product.input_planes == 1)
      multiply<2, 1>(w, product.quads, u, first_row, rows, vector, sums, waiting);
    else
      multiply<2, 2>(w, product.quads, u, first_row, rows, vector, sums, waiting);
  }

  // Where arrays of [groups][gates][16] have a slice's first gate.
  QCORE_NUMERIC std::int64_t gate_offset(std::int64_t slice) {
    return slice / kSlices * kGates * kChannelGroup + slice % kSlices * kLanes;
  }

  // Rounds and clamps; `whole` counts for ties where the total has lost a fraction.
  template <ShiftRounding kRounding, bool kFraction>
  QCORE_NUMERIC I rounded(const CodeProduct& product, std::int64_t at, I total, I whole) {
    using Lanes = VectorLanes<V, kRounding, true>;
    total = Lanes::template shifted<kFraction>(total, V::load(&product.right[at]), V::load(&product.halves[at]), whole);
    return Lanes::clamped(total, product.range);
  }

  // Codes less their zero point of one row's products. `input_sum` is that of its inputs, 0 where weights have one
  // plane.
  template <ShiftRounding kRounding>
  QCORE_NUMERIC void rescale(const CodeProduct& product, std::int64_t slice,
                             const std::int32_t (&parts)[kGates][kMaxParts][kLanes], std::int64_t input_sum,
                             I (&codes)[kGates]) {
    const std::int32_t* narrow_offsets = SignedInputs ? product.narrow_signed_offsets : product.narrow_offsets;
    if (product.rounds && product.narrow && product.weight_planes + product.input_planes == 2) {
      repeat<kGates>([&](int gate) QCORE_UNROLLED {
        const std::int64_t at = gate_offset(slice) + gate * kChannelGroup;
        const I total = V::add(V::load(parts[gate][0]), V::load(&narrow_offsets[at]));
        codes[gate] = rounded<kRounding, false>(product, at, total, total);
      });
      return;
    }
    const std::int64_t constant = input_sum * 128;  // of the offset of the lower plane of weights
    if (product.dropped_bits) {
      const I upper = V::set1(static_cast<std::int32_t>(static_cast<std::uint32_t>(constant >> product.dropped_bits)));
      const std::int32_t* low_offsets = SignedInputs ? product.low_signed_offsets : product.low_offsets;
      const I lower = V::set1(static_cast<std::int32_t>(constant & 255));
      repeat<kGates>([&](int gate) QCORE_UNROLLED {
        // The total is 256 * (upper + part[1] + 256 * part[2]) + low.
        const std::int64_t at = gate_offset(slice) + gate * kChannelGroup;
        const auto& part = parts[gate];
        const I low = V::add(V::add(V::load(part[0]), V::load(&low_offsets[at])), lower);
        const I high = V::add(V::load(part[1]), V::shift_left(V::load(part[2]), 8));
        const I total = V::add(V::add(V::shift_right(low, 8), V::load(&narrow_offsets[at])), V::add(upper, high));
        const I whole = V::sign(V::sub(V::bit_and(low, V::set1(255)), V::set1(1)));
        codes[gate] = rounded<kRounding, true>(product, at, total, whole);
      });
      return;
    }
    I of_parts[kGates];  // so that `codes` may stay in registers
    rescale_parts<kRounding>(product, slice, parts, constant, of_parts);
    repeat<kGates>([&](int gate) QCORE_UNROLLED { codes[gate] = of_parts[gate]; });
  }

  // The same for all other products, which are rare. Out of line, because it is long code.
  template <ShiftRounding kRounding>
  __attribute__((noinline)) static void rescale_parts(const CodeProduct& product, std::int64_t slice,
                                                      const std::int32_t (&parts)[kGates][kMaxParts][kLanes],
                                                      std::int64_t constant, I (&codes)[kGates]) {
    using Lanes = VectorLanes<V, kRounding, true>;
    const int count = product.weight_planes + product.input_planes - 1;
    const std::int32_t* narrow_offsets = SignedInputs ? product.narrow_signed_offsets : product.narrow_offsets;
    const I upper = V::set1(static_cast<std::int32_t>(static_cast<std::uint32_t>(constant)));
    const std::int64_t* offsets = SignedInputs ? product.signed_offsets : product.offsets;
    repeat<kGates>([&](int gate) QCORE_UNROLLED {
      const std::int64_t at = gate_offset(slice) + gate * kChannelGroup;
      const std::int32_t (&part)[kMaxParts][kLanes] = parts[gate];
      const I right = V::load(&product.right[at]);
      if (product.narrow) {
        I total = V::add(V::load(part[0]), V::load(&narrow_offsets[at]));
        if (count > 1) total = V::add(total, V::shift_left(V::load(part[1]), 8));
        if (count > 2) total = V::add(total, V::shift_left(V::load(part[2]), 16));
        total = V::add(total, upper);
        if (product.shifts_left) total = V::shift_left(total, V::load(&product.left[at]));
        codes[gate] = Lanes::clamped(Lanes::shifted(total, right), product.range);
      } else {
        W total = V::add(V::widen(V::load(part[0])), V::load_wide(&offsets[at]));
        if (count > 1) total = V::add(total, V::shift_left(V::widen(V::load(part[1])), V::all_wide(8)));
        if (count > 2) total = V::add(total, V::shift_left(V::widen(V::load(part[2])), V::all_wide(16)));
        total = V::add(total, V::all_wide(constant));
        if (product.shifts_left) total = V::shift_left(total, V::widen(V::load(&product.left[at])));
        codes[gate] = V::narrow(V::limited(Lanes::shifted(total, V::widen(right)), product.range.lo, product.range.hi));
      }
    });
  }

  template <ShiftRounding kRounding>
  static void multiply_inputs(const RecurrentLayer& layer, const InputTile& tile) {
    const I bias = V::set1(wx_bias(layer));
    Sums sums;
    for (std::int64_t slice = tile.first_group * kSlices; slice < tile.end_group * kSlices; ++slice)
      for (std::int64_t first = 0; first < tile.rows; first += kMaxRows) {
        const std::int64_t rows = lesser(kMaxRows, tile.rows - first);
        multiply(layer.input, slice, tile.x, first, rows, 0, sums);
        for (std::int64_t row = 0; row < rows; ++row) {
          I codes[kGates];
          rescale<kRounding>(layer.input, slice, sums.parts[row], tile.sums ? tile.sums[first + row] : 0, codes);
          std::int16_t* wx = tile.wx + (first + row) * layer.groups * kGates * kChannelGroup + gate_offset(slice);
          for (int gate = 0; gate < kGates; ++gate)
            V::store_words(wx + gate * kChannelGroup, V::sub(codes[gate], bias));
        }
      }
  }

  QCORE_NUMERIC I load_state(const BytePlanes& h, int planes, std::int64_t row, std::int64_t channel,
                             std::int32_t bias) {
    const std::uint8_t* at = h.row(row) + channel;
    I u = V::load_bytes(at);
    if (planes == 2) u = V::add(V::shift_left(u, 8), V::load_bytes(at + h.plane_stride));
    return V::sub(u, V::set1(bias));
  }
  QCORE_NUMERIC void store_state(const BytePlanes& h, int planes, std::int64_t row, std::int64_t channel, I centered,
                                 std::int32_t bias) {
    std::uint8_t* at = h.row(row) + channel;
    const I u = V::add(centered, V::set1(bias));
    if (planes == 2) {
      V::store_bytes(at, V::shift_right(u, 8));
      V::store_bytes(at + h.plane_stride, u);
    } else {
      V::store_bytes(at, u);
    }
  }

  // The first `count` lanes; more lanes' memory is not touched.
  QCORE_NUMERIC void store_elements(const ElementAxis& to, std::int64_t at, I centered, int count,
                                    const CodeNumbers& format) {
    if (to.stride == 1 && count == kLanes && to.element == CodeElement::f32)
      return V::store(static_cast<float*>(to.data) + at, V::mul(V::to_float(centered), V::set1(format.unit)));
    if (to.stride == 1 && count == kLanes && to.element == CodeElement::i8)
      return V::store_bytes(static_cast<std::uint8_t*>(to.data) + at, V::add(centered, V::set1(format.zero)));
    if (to.stride == 1 && count == kLanes && to.element == CodeElement::i16)
      return V::store_words(static_cast<std::int16_t*>(to.data) + at, V::add(centered, V::set1(format.zero)));
    alignas(64) std::int32_t lanes[kLanes];
    V::store(lanes, centered);
    for (int lane = 0; lane < count; ++lane)
      store_centered(to.data, to.element, at + lane * to.stride, lanes[lane], format);
  }

  QCORE_NUMERIC void store_index(std::int16_t* at, I argument, const numerics::CodeRange& range) {
    V::store_words(at, V::sub(argument, V::set1(range.lo + 32768)));
  }
  QCORE_NUMERIC I load_codes(const std::int16_t* at, const CellTable& table) {
    const I codes = V::load_words(at);
    return table.is_signed ? codes : V::bit_and(codes, V::set1(0xffff));
  }

  // entries[index] for kCount indices, in place. Loads one by one: a gather takes Zen 4 three times as long.
  template <int kCount, class Entry>
  QCORE_NUMERIC void look_up(const Entry* entries, std::int16_t* codes) {
    repeat<kCount>([&](int i) QCORE_UNROLLED {
      std::intptr_t index = codes[i];
      asm("" : "+r"(index));  // or g++ makes the gather
      codes[i] = static_cast<std::int16_t>(entries[index + 32768]);
    });
  }
  template <class Entry>
  static void look_up(const CellTable& table, Codes& codes, int vectors) {
    for (int v = 0; v < vectors; ++v) look_up<kLanes>(static_cast<const Entry*>(table.entries), codes[v]);
  }
  static void look_up(const CellTable& table, Codes& codes, int vectors) {
    if constexpr (V::kLooksUpLevels)
      if (table.levels) return V::look_up(*table.levels, codes, vectors);
    if (table.bytes)
      table.is_signed ? look_up<std::int8_t>(table, codes, vectors) : look_up<std::uint8_t>(table, codes, vectors);
    else
      look_up<std::uint16_t>(table, codes, vectors);
  }
  // The same, at once or later.
  static void look_up(const CellTable& table, Codes& codes, int vectors, WaitingLookUps& waiting) {
    table.bytes ? look_up(table, codes, vectors) : waiting.add(table, codes, vectors);
  }

  static void inputs(const RecurrentLayer& layer, const InputTile& tile) {
    layer.half_even ? multiply_inputs<ShiftRounding::half_even>(layer, tile)
                    : multiply_inputs<ShiftRounding::half_away>(layer, tile);
  }

  // Takes a step's work to `work` in batches of at most kMaxRows vectors, of several rows of a slice or of several
  // slices of a few rows: work.add(slice, first row, rows) for the parts of a batch, then work.finish(). `channels` are
  // those of all groups.
  template <class Work>
  static void run_batches(std::int64_t channels, const StepTile& tile, Work& work) {
    const std::int64_t end = lesser(tile.end_group * kSlices, (channels + kLanes - 1) / kLanes);
    const std::int64_t rows_at_once = lesser(kMaxRows, tile.rows);
    const std::int64_t slices = kMaxRows / rows_at_once;
    for (std::int64_t slice = tile.first_group * kSlices; slice < end; slice += slices)
      for (std::int64_t first = 0; first < tile.rows; first += rows_at_once) {
        const std::int64_t rows = lesser(rows_at_once, tile.rows - first);
        for (std::int64_t i = slice; i < lesser(end, slice + slices); ++i) work.add(i, first, rows);
        work.finish();
      }
  }

  QCORE_NUMERIC typename V::Float load_floats(const ElementAxis& from, std::int64_t at) {
    if (from.element == CodeElement::f32) return V::load(static_cast<const float*>(from.data) + at);
    const void* halves = static_cast<const std::uint16_t*>(from.data) + at;
    return from.element == CodeElement::f16 ? V::load_half(halves) : V::load_bfloat(halves);
  }

  // kLanes elements at a stride of 1, less their zero point.
  QCORE_NUMERIC I load_elements(const ElementAxis& from, std::int64_t at, const CodeNumbers& format) {
    if (from.element == CodeElement::i8) {
      const I u = V::load_bytes(static_cast<const std::uint8_t*>(from.data) + at);
      return V::sub(V::sub(V::exclusive(u, V::set1(128)), V::set1(128)), V::set1(format.zero));
    }
    if (from.element == CodeElement::i16)
      return V::sub(V::load_words(static_cast<const std::int16_t*>(from.data) + at), V::set1(format.zero));
    const auto scaled = V::mul(load_floats(from, at), V::set1(format.per_unit));
    const float lo = static_cast<float>(format.range.lo), hi = static_cast<float>(format.range.hi);
    return V::to_int(V::at_most(V::at_least(scaled, V::set1(lo)), V::set1(hi)));
  }

  static void pack(const ElementAxis& from, std::int64_t count, const CodeNumbers& format, std::int32_t bias,
                   int planes, const BytePlanes& to) {
    std::int64_t k = 0;
    if (from.stride == 1)
      for (; k + kLanes <= count; k += kLanes)
        store_state(to, planes, 0, k, load_elements(from, from.at + k, format), bias);
    for (; k < count; ++k) {
      const std::int32_t u = load_centered(from.data, from.element, from.at + k * from.stride, format) + bias;
      to.data[k] = static_cast<std::uint8_t>(planes == 2 ? u >> 8 : u);
      if (planes == 2) to.data[to.plane_stride + k] = static_cast<std::uint8_t>(u);
    }
    for (int plane = 0; plane < planes; ++plane)
      memset(to.data + plane * to.plane_stride + count, 0, (64 - count % 64) % 64);
  }

  static void unpack(const BytePlanes& from, std::int64_t count, const CodeNumbers& format, std::int32_t bias,
                     int planes, const ElementAxis& to) {
    for (std::int64_t k = 0; k < count; k += kLanes)
      store_elements(to, to.at + k * to.stride, load_state(from, planes, 0, k, bias),
                     static_cast<int>(lesser(kLanes, count - k)), format);
  }
};

}  // namespace
}  // namespace qcore
