#pragma once

#include "gru/cpu/gru_lanes.h"

// The work of GruKernels for vectors V and dot products Dot, generic over instruction sets. A part is the sum of
// products of planes of weights and inputs whose place values are equal: total = sum of part[i] * 256^i. SignedInputs:
// Dot multiplies bytes of inputs less 128.
namespace qcore {
namespace {

template <class V, class Dot, bool SignedInputs = false>
struct GruTiles {
  using I = typename V::Int;
  using W = typename V::Wide;
  static constexpr int kLanes = V::kLanes, kSlices = static_cast<int>(kGruGroup) / kLanes;
  static constexpr int kMaxRows = 8, kMaxParts = 3;

  QCORE_NUMERIC std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  // Sums of products, [vector][gate][part][lane]; a vector is kLanes channels of a row.
  struct Sums {
    alignas(64) std::int32_t parts[kMaxRows][kGruGates][kMaxParts][kLanes];
  };

  // Rows at a time by NW planes of weights and NX of inputs, so that sums stay in registers; a power of two.
  static constexpr int rows_at_once(int nw, int nx) {
    int rows = kMaxRows;
    while (rows > 1 && rows * kGruGates * (nw + nx - 1) > Dot::kMaxSums) rows /= 2;
    return rows;
  }

  // kSplit: interleaved partial sums where a few rows are too few chains of dependent instructions.
  template <int NW, int NX, int kRows, int kSplit>
  static void multiply_rows(const std::int8_t* w, std::int64_t quads, const GruPlanes& u, std::int64_t first_row,
                            std::int64_t first_vector, Sums& sums) {
    constexpr int kParts = NW + NX - 1;
    constexpr std::int64_t kPlaneBytes = kGruGroup * 4, kQuadBytes = kPlaneBytes * kGruGates * NW;
    I acc[kSplit][kRows][kGruGates][kParts];
    unroll<kSplit>([&](auto s) QCORE_UNROLLED {
      unroll<kRows>([&](auto r) QCORE_UNROLLED {
        unroll<kGruGates>([&](auto g) QCORE_UNROLLED {
          unroll<kParts>([&](auto p) QCORE_UNROLLED { acc[s.value][r.value][g.value][p.value] = V::set1(0); });
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
          V::store(sums.parts[first_vector + r.value][g.value][p.value], sum);
        });
      });
    });
  }

  template <int NW, int NX>
  static void multiply(const std::int8_t* w, std::int64_t quads, const GruPlanes& u, std::int64_t first_row,
                       std::int64_t rows, std::int64_t vector, Sums& sums) {
    constexpr int kAtOnce = rows_at_once(NW, NX), kSums = kGruGates * (NW + NX - 1);
    constexpr int kSplit1 = 4 * kSums <= Dot::kMaxSums ? 4 : 2 * kSums <= Dot::kMaxSums ? 2 : 1;
    constexpr int kSplit2 = kSplit1 >= 2 ? kSplit1 / 2 : 1;
    const std::int64_t end = first_row + rows;
    std::int64_t row = first_row;
    if constexpr (kAtOnce >= 8)
      for (; row + 8 <= end; row += 8, vector += 8) multiply_rows<NW, NX, 8, 1>(w, quads, u, row, vector, sums);
    if constexpr (kAtOnce >= 4)
      for (; row + 4 <= end; row += 4, vector += 4) multiply_rows<NW, NX, 4, 1>(w, quads, u, row, vector, sums);
    if constexpr (kAtOnce >= 2)
      for (; row + 2 <= end; row += 2, vector += 2) multiply_rows<NW, NX, 2, kSplit2>(w, quads, u, row, vector, sums);
    for (; row < end; ++row, ++vector) multiply_rows<NW, NX, 1, kSplit1>(w, quads, u, row, vector, sums);
  }

  // Up to kMaxRows rows of a slice (kLanes channels of a group), into as many vectors of `sums` from `vector` on.
  static void multiply(const GruProduct& product, std::int64_t slice, const GruPlanes& u, std::int64_t first_row,
                       std::int64_t rows, std::int64_t vector, Sums& sums) {
    const std::int8_t* w = product.weights + slice / kSlices * product.group_bytes + slice % kSlices * kLanes * 4;
    if (product.weight_planes == 1 && product.input_planes == 1)
      multiply<1, 1>(w, product.quads, u, first_row, rows, vector, sums);
    else if (product.weight_planes == 1)
      multiply<1, 2>(w, product.quads, u, first_row, rows, vector, sums);
    else if (product.input_planes == 1)
      multiply<2, 1>(w, product.quads, u, first_row, rows, vector, sums);
    else
      multiply<2, 2>(w, product.quads, u, first_row, rows, vector, sums);
  }

  // Where arrays of [groups][3][16] have a slice's first gate.
  QCORE_NUMERIC std::int64_t gate_offset(std::int64_t slice) {
    return slice / kSlices * kGruGates * kGruGroup + slice % kSlices * kLanes;
  }

  // Codes less their zero point of one row's products. `input_sum` is that of its inputs, 0 where weights have one
  // plane.
  template <ShiftRounding kRounding>
  QCORE_NUMERIC void rescale(const GruProduct& product, std::int64_t slice,
                             const std::int32_t (&parts)[kGruGates][kMaxParts][kLanes], std::int64_t input_sum,
                             I (&codes)[kGruGates]) {
    using Lanes = GruLanes<V, kRounding, true>;
    const int count = product.weight_planes + product.input_planes - 1;
    const std::int64_t constant = input_sum * 128;  // of the offset of the lower plane of weights
    const std::int64_t* offsets = SignedInputs ? product.signed_offsets : product.offsets;
    const std::int32_t* narrow_offsets = SignedInputs ? product.narrow_signed_offsets : product.narrow_offsets;
    unroll<kGruGates>([&](auto gate) QCORE_UNROLLED {
      const std::int64_t at = gate_offset(slice) + gate.value * kGruGroup;
      const std::int32_t (&part)[kMaxParts][kLanes] = parts[gate.value];
      const I right = V::load(&product.right[at]);
      if (product.narrow) {
        I total = V::add(V::load(part[0]), V::load(&narrow_offsets[at]));
        if (count > 1) total = V::add(total, V::shift_left(V::load(part[1]), 8));
        if (count > 2) total = V::add(total, V::shift_left(V::load(part[2]), 16));
        total = V::add(total, V::set1(static_cast<std::int32_t>(static_cast<std::uint32_t>(constant))));
        if (product.shifts_left) total = V::shift_left(total, V::load(&product.left[at]));
        codes[gate.value] = Lanes::clamped(Lanes::shifted(total, right), product.range);
      } else {
        W total = V::add(V::widen(V::load(part[0])), V::load_wide(&offsets[at]));
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
  static void multiply_inputs(const GruLayer& layer, const GruInputTile& tile) {
    const I bias = V::set1(gru_wx_bias(layer));
    Sums sums;
    for (std::int64_t slice = tile.first_group * kSlices; slice < tile.end_group * kSlices; ++slice)
      for (std::int64_t first = 0; first < tile.rows; first += kMaxRows) {
        const std::int64_t rows = lesser(kMaxRows, tile.rows - first);
        multiply(layer.input, slice, tile.x, first, rows, 0, sums);
        for (std::int64_t row = 0; row < rows; ++row) {
          I codes[kGruGates];
          rescale<kRounding>(layer.input, slice, sums.parts[row], tile.sums ? tile.sums[first + row] : 0, codes);
          std::int16_t* wx = tile.wx + (first + row) * layer.groups * kGruGates * kGruGroup + gate_offset(slice);
          for (int gate = 0; gate < kGruGates; ++gate) V::store_words(wx + gate * kGruGroup, V::sub(codes[gate], bias));
        }
      }
  }

  QCORE_NUMERIC I load_state(const GruPlanes& h, int planes, std::int64_t row, std::int64_t channel,
                             std::int32_t bias) {
    const std::uint8_t* at = h.row(row) + channel;
    I u = V::load_bytes(at);
    if (planes == 2) u = V::add(V::shift_left(u, 8), V::load_bytes(at + h.plane_stride));
    return V::sub(u, V::set1(bias));
  }
  QCORE_NUMERIC void store_state(const GruPlanes& h, int planes, std::int64_t row, std::int64_t channel, I centered,
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
  QCORE_NUMERIC void store_elements(const GruElements& to, std::int64_t at, I centered, int count,
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

  // Inputs and outputs of the cell: vectors of kLanes channels of a row each.
  struct Batch {
    int vectors = 0;
    std::int64_t row[kMaxRows], channel[kMaxRows];
    alignas(64) std::int32_t wx[kMaxRows][kGruGates][kLanes], rh[kMaxRows][kGruGates][kLanes], h[kMaxRows][kLanes];
    alignas(64) std::int32_t z[kMaxRows][kLanes], r[kMaxRows][kLanes], g[kMaxRows][kLanes], rb[kMaxRows][kLanes],
        next_h[kMaxRows][kLanes];
  };

  // table[index] for each index, in place. Loads one by one: a gather takes Zen 4 three times as long.
  template <class Entry>
  static void look_up(const GruTable& table, std::int32_t (*values)[kLanes], int vectors) {
    const auto* entries = static_cast<const Entry*>(table.entries);
    for (int v = 0; v < vectors; ++v)
      unroll<kLanes>([&](auto lane) QCORE_UNROLLED {
        auto index = static_cast<std::uint32_t>(values[v][lane.value]);
        asm("" : "+r"(index));  // or g++ makes the gather
        values[v][lane.value] = entries[index];
      });
  }
  static void look_up(const GruTable& table, std::int32_t (*values)[kLanes], int vectors) {
    if (table.bytes)
      table.is_signed ? look_up<std::int8_t>(table, values, vectors) : look_up<std::uint8_t>(table, values, vectors);
    else
      table.is_signed ? look_up<std::int16_t>(table, values, vectors) : look_up<std::uint16_t>(table, values, vectors);
  }

  // The cell's stages one after the other for all vectors: each is short enough that the processor has several vectors'
  // instructions in flight.
  template <class L, class Stages>
  struct VectorCell {
    QCORE_NUMERIC numerics::GruInputs<L> inputs(const Batch& b, int v) {
      return {{V::load(b.wx[v][0]), V::load(b.wx[v][1]), V::load(b.wx[v][2])},
              {V::load(b.rh[v][0]), V::load(b.rh[v][1]), V::load(b.rh[v][2])},
              V::load(b.h[v])};
    }
    QCORE_NUMERIC numerics::GruBiases<L> biases(const GruLayer& layer, std::int64_t channel) {
      const auto bias = [&](int i) { return Stages::kStaged ? V::load(&layer.biases[i][channel]) : V::set1(0); };
      return {bias(0), bias(1), bias(2), bias(3)};
    }

    static void run(const GruLayer& layer, Batch& b) {
      const numerics::GruCell& c = layer.cell;
      numerics::GruOutputs<L> out;
      for (int v = 0; v < b.vectors; ++v) {
        Stages::gates(inputs(b, v), biases(layer, b.channel[v]), c, out);
        V::store(b.z[v], numerics::gru_table_index<L>(out.z_pre, c.z_pre));
        V::store(b.r[v], numerics::gru_table_index<L>(out.r_pre, c.r_pre));
      }
      look_up(layer.tables[0], b.z, b.vectors);
      look_up(layer.tables[1], b.r, b.vectors);
      for (int v = 0; v < b.vectors; ++v) {
        out.r = V::load(b.r[v]);
        Stages::candidate(inputs(b, v), biases(layer, b.channel[v]), c, out);
        V::store(b.g[v], numerics::gru_table_index<L>(out.g_pre, c.g_pre));
        if constexpr (Stages::kStaged) V::store(b.rb[v], out.rb);
      }
      look_up(layer.tables[2], b.g, b.vectors);
      for (int v = 0; v < b.vectors; ++v) {
        out.z = V::load(b.z[v]);
        out.g = V::load(b.g[v]);
        Stages::state(inputs(b, v), c, out);
        V::store(b.next_h[v], out.h);
      }
    }
  };

  // Where a number of the cell may need more than 32 bits: one lane after the other, by the definition.
  template <class L, class Stages>
  struct ScalarCell {
    static void run(const GruLayer& layer, Batch& b) {
      const numerics::GruTables<L> tables{layer.scalar_tables[0], layer.scalar_tables[1], layer.scalar_tables[2]};
      for (int v = 0; v < b.vectors; ++v)
        for (int lane = 0; lane < kLanes && b.channel[v] + lane < layer.size; ++lane) {
          const auto &wx = b.wx[v], &rh = b.rh[v];
          numerics::GruBiases<L> biases{};
          const auto bias = [&](int i) { return layer.scalar_biases[i][b.channel[v] + lane]; };
          if constexpr (Stages::kStaged) biases = {bias(0), bias(1), bias(2), bias(3)};
          const auto out = numerics::gru_cell<L, Stages>(
              {{wx[0][lane], wx[1][lane], wx[2][lane]}, {rh[0][lane], rh[1][lane], rh[2][lane]}, b.h[v][lane]}, biases,
              layer.scalar_cell, tables);
          b.z[v][lane] = static_cast<std::int32_t>(out.z);
          b.r[v][lane] = static_cast<std::int32_t>(out.r);
          b.g[v][lane] = static_cast<std::int32_t>(out.g);
          b.rb[v][lane] = static_cast<std::int32_t>(out.rb);
          b.next_h[v][lane] = static_cast<std::int32_t>(out.h);
        }
    }
  };

  // One step of a problem's rows.
  template <ShiftRounding kRounding, class Cell>
  class Step {
   public:
    Step(const GruLayer& layer, const GruStepTile& tile)
        : layer_(layer), tile_(tile), h_bias_(layer.state.input_bias + layer.h.zero) {}

    // Batches of several rows of a slice, or of several slices of a few rows.
    void run() {
      const std::int64_t end = lesser(tile_.end_group * kSlices, (layer_.size + kLanes - 1) / kLanes);
      const std::int64_t rows_at_once = lesser(kMaxRows, tile_.rows);
      const std::int64_t slices = kMaxRows / rows_at_once;
      for (std::int64_t slice = tile_.first_group * kSlices; slice < end; slice += slices)
        for (std::int64_t first = 0; first < tile_.rows; first += rows_at_once) {
          const std::int64_t rows = lesser(rows_at_once, tile_.rows - first);
          batch_.vectors = 0;
          for (std::int64_t i = slice; i < lesser(end, slice + slices); ++i) add(i, first, rows);
          Cell::run(layer_, batch_);
          for (int v = 0; v < batch_.vectors; ++v) store(v);
        }
    }

   private:
    void add(std::int64_t slice, std::int64_t first_row, std::int64_t rows) {
      multiply(layer_.state, slice, tile_.h, first_row, rows, batch_.vectors, sums_);
      const I wx_bias = V::set1(gru_wx_bias(layer_));
      for (std::int64_t row = first_row; row < first_row + rows; ++row) {
        const int v = batch_.vectors++;
        batch_.row[v] = row;
        batch_.channel[v] = slice * kLanes;
        I rh[kGruGates];
        rescale<kRounding>(layer_.state, slice, sums_.parts[v], tile_.sums ? tile_.sums[row] : 0, rh);
        const std::int16_t* wx = tile_.wx + row * layer_.groups * kGruGates * kGruGroup + gate_offset(slice);
        unroll<kGruGates>([&](auto gate) QCORE_UNROLLED {
          V::store(batch_.rh[v][gate.value], rh[gate.value]);
          V::store(batch_.wx[v][gate.value], V::add(V::load_words(wx + gate.value * kGruGroup), wx_bias));
        });
        V::store(batch_.h[v], load_state(tile_.h, layer_.state.input_planes, row, slice * kLanes, h_bias_));
      }
    }

    void store(int v) {
      const std::int64_t row = batch_.row[v], channel = batch_.channel[v];
      const int count = static_cast<int>(lesser(kLanes, layer_.size - channel));
      const GruPlace& place = tile_.places[row];
      const bool active = place.active;
      const I h = V::load(active ? batch_.next_h[v] : batch_.h[v]);
      store_state(tile_.next_h, layer_.state.input_planes, row, channel, h, h_bias_);
      store_elements(tile_.y, place.y + channel * tile_.y.stride, active ? h : V::set1(0), count, layer_.h);
      if (!tile_.gates.data) return;
      const std::int32_t* rh = layer_.staged ? batch_.rb[v] : batch_.rh[v][2];
      store_gates(v, 0, batch_.z[v], 0, count, active);
      store_gates(v, 1, batch_.r[v], 0, count, active);
      store_gates(v, 2, batch_.g[v], 0, count, active);
      store_gates(v, 3, rh, layer_.rb_zero, count, active);
    }

    void store_gates(int v, int gate, const std::int32_t* values, std::int32_t zero, int count, bool active) {
      auto* to = static_cast<std::int32_t*>(tile_.gates.data) + tile_.places[batch_.row[v]].gates +
                 (gate * layer_.size + batch_.channel[v]) * tile_.gates.stride;
      for (int lane = 0; lane < count; ++lane) to[lane * tile_.gates.stride] = active ? values[lane] + zero : 0;
    }

    const GruLayer& layer_;
    const GruStepTile& tile_;
    const std::int32_t h_bias_;
    Sums sums_;
    Batch batch_;
  };

  template <ShiftRounding kRounding, template <class> class Stages>
  static void step_by_width(const GruLayer& layer, const GruStepTile& tile) {
    using Narrow = GruLanes<V, kRounding, false>;
    using Wide = GruLanes<V, kRounding, true>;
    using Scalar = numerics::GruScalar<kRounding>;
    if (layer.width == GruWidth::narrow)
      Step<kRounding, VectorCell<Narrow, Stages<Narrow>>>(layer, tile).run();
    else if (layer.width == GruWidth::wide_products)
      Step<kRounding, VectorCell<Wide, Stages<Wide>>>(layer, tile).run();
    else
      Step<kRounding, ScalarCell<Scalar, Stages<Scalar>>>(layer, tile).run();
  }

  template <ShiftRounding kRounding>
  static void step_by_pipeline(const GruLayer& layer, const GruStepTile& tile) {
    if (layer.staged)
      step_by_width<kRounding, numerics::GruStagedCell>(layer, tile);
    else
      step_by_width<kRounding, numerics::GruFusedCell>(layer, tile);
  }

  static void step(const GruLayer& layer, const GruStepTile& tile) {
    layer.half_even ? step_by_pipeline<ShiftRounding::half_even>(layer, tile)
                    : step_by_pipeline<ShiftRounding::half_away>(layer, tile);
  }

  static void inputs(const GruLayer& layer, const GruInputTile& tile) {
    layer.half_even ? multiply_inputs<ShiftRounding::half_even>(layer, tile)
                    : multiply_inputs<ShiftRounding::half_away>(layer, tile);
  }

  QCORE_NUMERIC typename V::Float load_floats(const GruElements& from, std::int64_t at) {
    if (from.element == CodeElement::f32) return V::load(static_cast<const float*>(from.data) + at);
    const void* halves = static_cast<const std::uint16_t*>(from.data) + at;
    return from.element == CodeElement::f16 ? V::load_half(halves) : V::load_bfloat(halves);
  }

  // kLanes elements at a stride of 1, less their zero point.
  QCORE_NUMERIC I load_elements(const GruElements& from, std::int64_t at, const CodeNumbers& format) {
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

  static void pack(const GruElements& from, std::int64_t count, const CodeNumbers& format, std::int32_t bias,
                   int planes, const GruPlanes& to) {
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

  static void unpack(const GruPlanes& from, std::int64_t count, const CodeNumbers& format, std::int32_t bias,
                     int planes, const GruElements& to) {
    for (std::int64_t k = 0; k < count; k += kLanes)
      store_elements(to, to.at + k * to.stride, load_state(from, planes, 0, k, bias),
                     static_cast<int>(lesser(kLanes, count - k)), format);
  }
};

}  // namespace
}  // namespace qcore
