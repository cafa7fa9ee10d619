#pragma once

#include "gru/gru_lanes.h"

// The work of GruKernels for vectors V and dot products Dot, generic over instruction sets. A part is the sum of
// products of planes of weights and inputs whose place values are equal: total = sum of part[i] * 256^i.
namespace qcore {
namespace {

template <class V, class Dot>
struct GruTiles {
  using I = typename V::Int;
  using W = typename V::Wide;
  static constexpr int kLanes = V::kLanes, kSlices = static_cast<int>(kGruGroup) / kLanes;
  static constexpr int kMostRows = 8, kMostParts = 3;

  // Of one slice of a group (kLanes channels): [row][gate][part][lane].
  struct Sums {
    alignas(64) std::int32_t parts[kMostRows][kGruGates][kMostParts][kLanes];
  };

  // Rows at a time by NW planes of weights and NX of inputs, so that sums stay in registers; a power of two.
  static constexpr int rows_at_once(int nw, int nx) {
    int rows = kMostRows;
    while (rows > 1 && rows * kGruGates * (nw + nx - 1) > Dot::kMaxSums) rows /= 2;
    return rows;
  }

  // kSplit: interleaved partial sums where a few rows are too few chains of dependent instructions.
  template <int NW, int NX, int kRows, int kSplit>
  static void multiply_rows(const std::int8_t* w, std::int64_t quads, const GruPlanes& u, std::int64_t first_row,
                            Sums& sums) {
    constexpr int kParts = NW + NX - 1;
    constexpr std::int64_t kPlaneBytes = kGruGroup * 4, kQuadBytes = kPlaneBytes * kGruGates * NW;
    I acc[kSplit][kRows][kGruGates][kParts];
    unroll<kSplit>([&](auto s) QCORE_UNROLLED {
      unroll<kRows>([&](auto r) QCORE_UNROLLED {
        unroll<kGruGates>([&](auto g) QCORE_UNROLLED {
          unroll<kParts>([&](auto p) QCORE_UNROLLED { acc[s.value][r.value][g.value][p.value] = V::all(0); });
        });
      });
    });
    const std::uint8_t* inputs = u.row(first_row);
    for (std::int64_t quad = 0; quad < quads; quad += kSplit, w += kSplit * kQuadBytes, inputs += 4 * kSplit)
      unroll<kSplit>([&](auto s) QCORE_UNROLLED {
        typename Dot::Weights weights[kGruGates][NW];
        unroll<kGruGates>([&](auto g) QCORE_UNROLLED {
          unroll<NW>([&](auto i) QCORE_UNROLLED {
            weights[g.value][i.value] = Dot::load(w + s.value * kQuadBytes + (g.value * NW + i.value) * kPlaneBytes);
          });
        });
        unroll<kRows>([&](auto r) QCORE_UNROLLED {
          unroll<NX>([&](auto j) QCORE_UNROLLED {
            const auto four = Dot::spread(inputs + r.value * u.row_stride + j.value * u.plane_stride + 4 * s.value);
            unroll<kGruGates>([&](auto g) QCORE_UNROLLED {
              unroll<NW>([&](auto i) QCORE_UNROLLED {
                // Plane 0 is the upper one.
                constexpr int kPart = (NW - 1 - i.value) + (NX - 1 - j.value);
                Dot::multiply(acc[s.value][r.value][g.value][kPart], four, weights[g.value][i.value]);
              });
            });
          });
        });
      });
    unroll<kRows>([&](auto r) QCORE_UNROLLED {
      unroll<kGruGates>([&](auto g) QCORE_UNROLLED {
        unroll<kParts>([&](auto p) QCORE_UNROLLED {
          I sum = acc[0][r.value][g.value][p.value];
          unroll<kSplit - 1>([&](auto s)
                                 QCORE_UNROLLED { sum = V::add(sum, acc[s.value + 1][r.value][g.value][p.value]); });
          V::store(sums.parts[first_row % kMostRows + r.value][g.value][p.value], sum);
        });
      });
    });
  }

  // Up to kMostRows rows, beginning at a multiple of it.
  template <int NW, int NX>
  static void multiply(const std::int8_t* w, std::int64_t quads, const GruPlanes& u, std::int64_t first_row,
                       std::int64_t rows, Sums& sums) {
    constexpr int kAtOnce = rows_at_once(NW, NX);
    constexpr int kSplit1 = kGruGates * (NW + NX - 1) * 4 <= Dot::kMaxSums   ? 4
                            : kGruGates * (NW + NX - 1) * 2 <= Dot::kMaxSums ? 2
                                                                             : 1;
    constexpr int kSplit2 = kSplit1 >= 2 ? kSplit1 / 2 : 1;
    std::int64_t row = 0;
    if constexpr (kAtOnce >= 8)
      for (; row + 8 <= rows; row += 8) multiply_rows<NW, NX, 8, 1>(w, quads, u, first_row + row, sums);
    if constexpr (kAtOnce >= 4)
      for (; row + 4 <= rows; row += 4) multiply_rows<NW, NX, 4, 1>(w, quads, u, first_row + row, sums);
    if constexpr (kAtOnce >= 2)
      for (; row + 2 <= rows; row += 2) multiply_rows<NW, NX, 2, kSplit2>(w, quads, u, first_row + row, sums);
    for (; row < rows; ++row) multiply_rows<NW, NX, 1, kSplit1>(w, quads, u, first_row + row, sums);
  }

  static void multiply(const GruProduct& product, std::int64_t group, int slice, const GruPlanes& u,
                       std::int64_t first_row, std::int64_t rows, Sums& sums) {
    const std::int8_t* w = product.group(group) + slice * kLanes * 4;
    if (product.weight_planes == 1 && product.input_planes == 1)
      multiply<1, 1>(w, product.quads, u, first_row, rows, sums);
    else if (product.weight_planes == 1)
      multiply<1, 2>(w, product.quads, u, first_row, rows, sums);
    else if (product.input_planes == 1)
      multiply<2, 1>(w, product.quads, u, first_row, rows, sums);
    else
      multiply<2, 2>(w, product.quads, u, first_row, rows, sums);
  }

  // Codes less their zero point of one row's products. `input_sum` is that of its inputs, 0 where weights have one
  // plane.
  template <ShiftRounding kRounding>
  QCORE_NUMERIC void rescale(const GruProduct& product, std::int64_t group, int slice,
                             const std::int32_t (&parts)[kGruGates][kMostParts][kLanes], std::int64_t input_sum,
                             I (&codes)[kGruGates]) {
    using Lanes = GruLanes<V, kRounding, true>;
    const int count = product.weight_planes + product.input_planes - 1;
    const std::int64_t constant = input_sum * 128;  // of the offset of the lower plane of weights
    unroll<kGruGates>([&](auto gate) QCORE_UNROLLED {
      const std::int64_t at = (group * kGruGates + gate.value) * kGruGroup + slice * kLanes;
      const std::int32_t (&part)[kMostParts][kLanes] = parts[gate.value];
      const I right = V::load(&product.right[at]);
      if (product.narrow) {
        I total = V::add(V::load(part[0]), V::load(&product.narrow_offsets[at]));
        if (count > 1) total = V::add(total, V::shift_left(V::load(part[1]), 8));
        if (count > 2) total = V::add(total, V::shift_left(V::load(part[2]), 16));
        total = V::add(total, V::all(static_cast<std::int32_t>(static_cast<std::uint32_t>(constant))));
        if (product.shifts_left) total = V::shift_left(total, V::load(&product.left[at]));
        codes[gate.value] = Lanes::clamped(Lanes::shifted(total, right), product.range);
      } else {
        W total = V::add(V::widen(V::load(part[0])), V::load_wide(&product.offsets[at]));
        if (count > 1) total = V::add(total, V::shift_left(V::widen(V::load(part[1])), V::all_wide(8)));
        if (count > 2) total = V::add(total, V::shift_left(V::widen(V::load(part[2])), V::all_wide(16)));
        total = V::add(total, V::all_wide(constant));
        if (product.shifts_left) total = V::shift_left(total, V::widen(V::load(&product.left[at])));
        codes[gate.value] =
            V::narrow(V::limited(Lanes::shifted(total, V::widen(right)), product.range.lo, product.range.hi));
      }
    });
  }

  template <ShiftRounding kRounding>
  static void multiply_inputs(const GruPacked& gru, const GruInputTile& tile) {
    const I bias = V::all(gru_wx_bias(gru));
    Sums sums;
    for (std::int64_t group = tile.first_group; group < tile.end_group; ++group)
      for (int slice = 0; slice < kSlices; ++slice)
        for (std::int64_t first = 0; first < tile.rows; first += kMostRows) {
          const std::int64_t rows = std::min<std::int64_t>(kMostRows, tile.rows - first);
          multiply(gru.input, group, slice, tile.x, first, rows, sums);
          for (std::int64_t row = 0; row < rows; ++row) {
            I codes[kGruGates];
            rescale<kRounding>(gru.input, group, slice, sums.parts[row], tile.sums ? tile.sums[first + row] : 0, codes);
            std::int16_t* wx = tile.wx + ((first + row) * gru.groups + group) * kGruGates * kGruGroup + slice * kLanes;
            for (int gate = 0; gate < kGruGates; ++gate)
              V::store_words(wx + gate * kGruGroup, V::sub(codes[gate], bias));
          }
        }
  }

  QCORE_NUMERIC I load_state(const GruPlanes& h, int planes, std::int64_t row, std::int64_t channel,
                             std::int32_t bias) {
    const std::uint8_t* at = h.row(row) + channel;
    I u = V::load_bytes(at);
    if (planes == 2) u = V::add(V::shift_left(u, 8), V::load_bytes(at + h.plane_stride));
    return V::sub(u, V::all(bias));
  }
  QCORE_NUMERIC void store_state(const GruPlanes& h, int planes, std::int64_t row, std::int64_t channel, I centred,
                                 std::int32_t bias) {
    std::uint8_t* at = h.row(row) + channel;
    const I u = V::add(centred, V::all(bias));
    if (planes == 2) {
      V::store_bytes(at, V::shift_right(u, 8));
      V::store_bytes(at + h.plane_stride, u);
    } else {
      V::store_bytes(at, u);
    }
  }

  // The first `count` lanes; more lanes' memory is not touched.
  QCORE_NUMERIC void store_elements(const GruElements& to, std::int64_t at, I centred, int count,
                                    const CodeFormat& format) {
    if (to.stride == 1 && count == kLanes && to.dtype == DType::f32)
      return V::store(static_cast<float*>(to.data) + at, V::mul(V::to_float(centred), V::all(format.unit)));
    if (to.stride == 1 && count == kLanes && to.dtype == DType::i8)
      return V::store_bytes(static_cast<std::uint8_t*>(to.data) + at, V::add(centred, V::all(format.zero)));
    if (to.stride == 1 && count == kLanes && to.dtype == DType::i16)
      return V::store_words(static_cast<std::int16_t*>(to.data) + at, V::add(centred, V::all(format.zero)));
    alignas(64) std::int32_t lanes[kLanes];
    V::store(lanes, centred);
    for (int lane = 0; lane < count; ++lane)
      store_centred(to.data, to.dtype, at + lane * to.stride, lanes[lane], format);
  }
  QCORE_NUMERIC void store_integers(const GruElements& to, std::int64_t at, I values, int count) {
    alignas(64) std::int32_t lanes[kLanes];
    V::store(lanes, values);
    for (int lane = 0; lane < count; ++lane) static_cast<std::int32_t*>(to.data)[at + lane * to.stride] = lanes[lane];
  }

  // What the cell gives, where its lanes are vectors.
  struct CellResult {
    I z, r, g, rh_with_bias, h;  // rh_with_bias: a code, not less its zero point
  };

  template <ShiftRounding kRounding, bool kWide, bool kStaged>
  struct VectorCell {
    using L = GruLanes<V, kRounding, kWide>;
    const GruStorage& gru;
    const GruPacked& packed;
    numerics::GruTables<L> tables;

    VectorCell(const GruStorage& storage, const GruPacked& pack)
        : gru(storage), packed(pack), tables{table(pack.tables[0]), table(pack.tables[1]), table(pack.tables[2])} {}

    QCORE_NUMERIC typename L::Table table(const GruPackedTable& from) {
      return {from.bytes.data(), from.entry_bytes - 1, from.mask, from.sign};
    }

    QCORE_INLINE CellResult operator()(std::int64_t channel, const I (&wx)[3], const I (&rh)[3], I h) const {
      const numerics::GruInputs<L> in{{wx[0], wx[1], wx[2]}, {rh[0], rh[1], rh[2]}, h};
      if constexpr (kStaged) {
        const auto bias = [&](int i) { return V::load(&packed.biases[i][channel]); };
        const auto out = numerics::gru_staged<L>(in, {bias(0), bias(1), bias(2), bias(3)}, packed.cell, tables);
        return {out.z, out.r, out.g, V::add(out.rb, V::all(gru.parameters.formats.rb.zero_point)), out.h};
      } else {
        const auto out = numerics::gru_fused<L>(in, packed.cell, tables);
        return {out.z, out.r, out.g, V::add(rh[2], V::all(gru.parameters.formats.rh.zero_point)), out.h};
      }
    }
  };

  // Where a number of the cell may need more than 32 bits: one lane after the other, by the definition.
  template <ShiftRounding kRounding, bool kStaged>
  struct ScalarCell {
    using L = numerics::GruScalar<kRounding>;
    const GruStorage& gru;

    ScalarCell(const GruStorage& storage, const GruPacked&) : gru(storage) {}

    CellResult operator()(std::int64_t channel, const I (&wx)[3], const I (&rh)[3], I h) const {
      alignas(64) std::int32_t in[7][kLanes], result[5][kLanes] = {};
      for (int gate = 0; gate < 3; ++gate) {
        V::store(in[gate], wx[gate]);
        V::store(in[3 + gate], rh[gate]);
      }
      V::store(in[6], h);
      const GruParameters& p = gru.parameters;
      const numerics::GruTables<L> tables{gru.tables[0].data(), gru.tables[1].data(), gru.tables[2].data()};
      for (int lane = 0; lane < kLanes && channel + lane < p.hidden_size; ++lane) {
        const numerics::GruInputs<L> one{
            {in[0][lane], in[1][lane], in[2][lane]}, {in[3][lane], in[4][lane], in[5][lane]}, in[6][lane]};
        numerics::GruOutputs<L> out;
        if constexpr (kStaged) {
          const auto bias = [&](int i) { return gru.biases[i][channel + lane]; };
          out = numerics::gru_staged<L>(one, {bias(0), bias(1), bias(2), bias(3)}, gru.cell, tables);
        } else {
          out = numerics::gru_fused<L>(one, gru.cell, tables);
        }
        result[0][lane] = static_cast<std::int32_t>(out.z);
        result[1][lane] = static_cast<std::int32_t>(out.r);
        result[2][lane] = static_cast<std::int32_t>(out.g);
        result[3][lane] = kStaged ? static_cast<std::int32_t>(out.rb) + p.formats.rb.zero_point
                                  : in[5][lane] + p.formats.rh.zero_point;
        result[4][lane] = static_cast<std::int32_t>(out.h);
      }
      return {V::load(result[0]), V::load(result[1]), V::load(result[2]), V::load(result[3]), V::load(result[4])};
    }
  };

  template <ShiftRounding kRounding, class Cell>
  static void step_with(const GruStorage& gru, const GruPacked& packed, const GruStepTile& tile) {
    const Cell cell(gru, packed);
    const CodeFormat h_format(gru.parameters.formats.h);
    const int planes = packed.state.input_planes;
    const std::int32_t h_bias = packed.state.input_bias + h_format.zero;
    const std::int64_t size = gru.parameters.hidden_size;
    const I wx_bias = V::all(gru_wx_bias(packed));
    Sums sums;
    for (std::int64_t group = tile.first_group; group < tile.end_group; ++group)
      for (int slice = 0; slice < kSlices; ++slice) {
        const std::int64_t channel = group * kGruGroup + slice * kLanes;
        if (channel >= size) break;
        const int count = static_cast<int>(std::min<std::int64_t>(kLanes, size - channel));
        for (std::int64_t first = 0; first < tile.rows; first += kMostRows) {
          const std::int64_t rows = std::min<std::int64_t>(kMostRows, tile.rows - first);
          multiply(packed.state, group, slice, tile.h, first, rows, sums);
          for (std::int64_t row = first; row < first + rows; ++row) {
            const std::int16_t* stored =
                tile.wx + (row * packed.groups + group) * kGruGates * kGruGroup + slice * kLanes;
            I wx[kGruGates], rh[kGruGates];
            for (int gate = 0; gate < kGruGates; ++gate)
              wx[gate] = V::add(V::load_words(stored + gate * kGruGroup), wx_bias);
            rescale<kRounding>(packed.state, group, slice, sums.parts[row - first], tile.sums ? tile.sums[row] : 0, rh);
            const I h = load_state(tile.h, planes, row, channel, h_bias);
            CellResult result = cell(channel, wx, rh, h);
            const bool active = !tile.active || tile.active[row];
            store_state(tile.next_h, planes, row, channel, active ? result.h : h, h_bias);
            if (!active) result = {V::all(0), V::all(0), V::all(0), V::all(0), V::all(0)};
            store_elements(tile.y, tile.y_offsets[row] + channel * tile.y.stride, result.h, count, h_format);
            if (tile.gates.data) {
              const I gates[] = {result.z, result.r, result.g, result.rh_with_bias};
              for (int gate = 0; gate < 4; ++gate)
                store_integers(tile.gates, tile.gates_offsets[row] + (gate * size + channel) * tile.gates.stride,
                               gates[gate], count);
            }
          }
        }
      }
  }

  template <ShiftRounding kRounding, bool kStaged>
  static void step_by_width(const GruStorage& gru, const GruPacked& packed, const GruStepTile& tile) {
    if (packed.width == GruWidth::narrow)
      step_with<kRounding, VectorCell<kRounding, false, kStaged>>(gru, packed, tile);
    else if (packed.width == GruWidth::wide_products)
      step_with<kRounding, VectorCell<kRounding, true, kStaged>>(gru, packed, tile);
    else
      step_with<kRounding, ScalarCell<kRounding, kStaged>>(gru, packed, tile);
  }

  template <ShiftRounding kRounding>
  static void step_by_pipeline(const GruStorage& gru, const GruPacked& packed, const GruStepTile& tile) {
    if (gru.parameters.pipeline == GruPipeline::staged)
      step_by_width<kRounding, true>(gru, packed, tile);
    else
      step_by_width<kRounding, false>(gru, packed, tile);
  }

  static void step(const GruStorage& gru, const GruPacked& packed, const GruStepTile& tile) {
    if (gru.parameters.rounding == qcore::ShiftRounding::half_away)
      step_by_pipeline<ShiftRounding::half_away>(gru, packed, tile);
    else
      step_by_pipeline<ShiftRounding::half_even>(gru, packed, tile);
  }

  static void inputs(const GruStorage& gru, const GruPacked& packed, const GruInputTile& tile) {
    if (gru.parameters.rounding == qcore::ShiftRounding::half_away)
      multiply_inputs<ShiftRounding::half_away>(packed, tile);
    else
      multiply_inputs<ShiftRounding::half_even>(packed, tile);
  }

  QCORE_NUMERIC typename V::Float load_floats(const GruElements& from, std::int64_t at) {
    if (from.dtype == DType::f32) return V::load(static_cast<const float*>(from.data) + at);
    const void* halves = static_cast<const std::uint16_t*>(from.data) + at;
    return from.dtype == DType::f16 ? V::load_half(halves) : V::load_bfloat(halves);
  }

  // kLanes elements at a stride of 1, less their zero point.
  QCORE_NUMERIC I load_elements(const GruElements& from, std::int64_t at, const CodeFormat& format) {
    if (from.dtype == DType::i8) {
      const I u = V::load_bytes(static_cast<const std::uint8_t*>(from.data) + at);
      return V::sub(V::sub(V::exclusive(u, V::all(128)), V::all(128)), V::all(format.zero));
    }
    if (from.dtype == DType::i16)
      return V::sub(V::load_words(static_cast<const std::int16_t*>(from.data) + at), V::all(format.zero));
    const auto scaled = V::mul(load_floats(from, at), V::all(format.per_unit));
    const float lo = static_cast<float>(format.range.lo), hi = static_cast<float>(format.range.hi);
    return V::to_int(V::at_most(V::at_least(scaled, V::all(lo)), V::all(hi)));
  }

  static void pack(const GruElements& from, std::int64_t count, const CodeFormat& format, std::int32_t bias, int planes,
                   const GruPlanes& to) {
    std::int64_t k = 0;
    if (from.stride == 1)
      for (; k + kLanes <= count; k += kLanes)
        store_state(to, planes, 0, k, load_elements(from, from.at + k, format), bias);
    for (; k < count; ++k) {
      const std::int32_t u = load_centred(from.data, from.dtype, from.at + k * from.stride, format) + bias;
      to.data[k] = static_cast<std::uint8_t>(planes == 2 ? u >> 8 : u);
      if (planes == 2) to.data[to.plane_stride + k] = static_cast<std::uint8_t>(u);
    }
    for (int plane = 0; plane < planes; ++plane)
      memset(to.data + plane * to.plane_stride + count, 0, (64 - count % 64) % 64);
  }

  static void unpack(const GruPlanes& from, std::int64_t count, const CodeFormat& format, std::int32_t bias, int planes,
                     const GruElements& to) {
    for (std::int64_t k = 0; k < count; k += kLanes)
      store_elements(to, to.at + k * to.stride, load_state(from, planes, 0, k, bias),
                     static_cast<int>(std::min<std::int64_t>(kLanes, count - k)), format);
  }
};

}  // namespace
}  // namespace qcore
