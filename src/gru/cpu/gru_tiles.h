#pragma once

#include "gru/cpu/vtable.h"
#include "recurrent/cpu/tiles.h"

// A step of the GRU's cell for vectors V and dot products Dot, generic over instruction sets.
namespace qcore {
namespace {

template <class V, class Dot, bool SignedInputs = false>
struct GruTiles : RecurrentTiles<V, Dot, kGruGates, SignedInputs> {
  using Base = RecurrentTiles<V, Dot, kGruGates, SignedInputs>;
  using Base::gate_offset;
  using Base::kLanes;
  using Base::kMaxRows;
  using Base::lesser;
  using Base::load_state;
  using Base::look_up;
  using Base::store_elements;
  using Base::store_state;
  using typename Base::I;
  using typename Base::Sums;

  // Inputs and outputs of the cell: vectors of kLanes channels of a row each.
  struct Batch {
    int vectors = 0;
    std::int64_t row[kMaxRows], channel[kMaxRows];
    alignas(64) std::int32_t wx[kMaxRows][kGruGates][kLanes], rh[kMaxRows][kGruGates][kLanes], h[kMaxRows][kLanes];
    alignas(64) std::int32_t z[kMaxRows][kLanes], r[kMaxRows][kLanes], g[kMaxRows][kLanes], rb[kMaxRows][kLanes],
        next_h[kMaxRows][kLanes];
  };

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
        V::store(b.z[v], numerics::table_index<L>(out.z_pre, c.z_pre));
        V::store(b.r[v], numerics::table_index<L>(out.r_pre, c.r_pre));
      }
      look_up(layer.tables[0], b.z, b.vectors);
      look_up(layer.tables[1], b.r, b.vectors);
      for (int v = 0; v < b.vectors; ++v) {
        out.r = V::load(b.r[v]);
        Stages::candidate(inputs(b, v), biases(layer, b.channel[v]), c, out);
        V::store(b.g[v], numerics::table_index<L>(out.g_pre, c.g_pre));
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
    Step(const GruLayer& layer, const StepTile& tile)
        : layer_(layer), tile_(tile), h_bias_(layer.state.input_bias + layer.h.zero) {}

    void run() { Base::run_batches(layer_, tile_, *this); }

    void add(std::int64_t slice, std::int64_t first_row, std::int64_t rows) {
      Base::multiply(layer_.state, slice, tile_.h, first_row, rows, batch_.vectors, sums_);
      const I bias = V::set1(wx_bias(layer_));
      for (std::int64_t row = first_row; row < first_row + rows; ++row) {
        const int v = batch_.vectors++;
        batch_.row[v] = row;
        batch_.channel[v] = slice * kLanes;
        I rh[kGruGates];
        Base::template rescale<kRounding>(layer_.state, slice, sums_.parts[v], tile_.sums ? tile_.sums[row] : 0, rh);
        const std::int16_t* wx = tile_.wx + row * layer_.groups * kGruGates * kChannelGroup + gate_offset(slice);
        unroll<kGruGates>([&](auto gate) QCORE_UNROLLED {
          V::store(batch_.rh[v][gate.value], rh[gate.value]);
          V::store(batch_.wx[v][gate.value], V::add(V::load_words(wx + gate.value * kChannelGroup), bias));
        });
        V::store(batch_.h[v], load_state(tile_.h, layer_.state.input_planes, row, slice * kLanes, h_bias_));
      }
    }

    void finish() {
      Cell::run(layer_, batch_);
      for (int v = 0; v < batch_.vectors; ++v) store(v);
      batch_.vectors = 0;
    }

   private:
    void store(int v) {
      const std::int64_t row = batch_.row[v], channel = batch_.channel[v];
      const int count = static_cast<int>(lesser(kLanes, layer_.size - channel));
      const StepPlace& place = tile_.places[row];
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
    const StepTile& tile_;
    const std::int32_t h_bias_;
    Sums sums_;
    Batch batch_;
  };

  template <ShiftRounding kRounding, template <class> class Stages>
  static void step_by_width(const GruLayer& layer, const StepTile& tile) {
    using Narrow = VectorLanes<V, kRounding, false>;
    using Wide = VectorLanes<V, kRounding, true>;
    using Scalar = numerics::IntegerLanes<kRounding>;
    if (layer.width == LaneWidth::narrow)
      Step<kRounding, VectorCell<Narrow, Stages<Narrow>>>(layer, tile).run();
    else if (layer.width == LaneWidth::wide_products)
      Step<kRounding, VectorCell<Wide, Stages<Wide>>>(layer, tile).run();
    else
      Step<kRounding, ScalarCell<Scalar, Stages<Scalar>>>(layer, tile).run();
  }

  template <ShiftRounding kRounding>
  static void step_by_pipeline(const GruLayer& layer, const StepTile& tile) {
    if (layer.staged)
      step_by_width<kRounding, numerics::GruStagedCell>(layer, tile);
    else
      step_by_width<kRounding, numerics::GruFusedCell>(layer, tile);
  }

  static void step(const RecurrentLayer& any, const StepTile& tile) {
    const auto& layer = static_cast<const GruLayer&>(any);
    layer.half_even ? step_by_pipeline<ShiftRounding::half_even>(layer, tile)
                    : step_by_pipeline<ShiftRounding::half_away>(layer, tile);
  }
};

}  // namespace
}  // namespace qcore
