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
  using typename Base::Codes;
  using typename Base::I;

  // A part of a step. A cell that resets the state has two, because g needs r * h of all channels.
  enum class Part : std::uint8_t { whole, gates, new_state };

  // Inputs and outputs of the cell: vectors of kLanes channels of a row each.
  struct Batch {
    int vectors = 0;
    std::int64_t row[kMaxRows], channel[kMaxRows];
    alignas(64) std::int32_t wx[kMaxRows][kGruGates][kLanes], rh[kMaxRows][kGruGates][kLanes], h[kMaxRows][kLanes];
    alignas(64) Codes z, r, g;
    alignas(64) std::int32_t rb[kMaxRows][kLanes], rrh[kMaxRows][kLanes], next_h[kMaxRows][kLanes];
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

    static void gates(const GruLayer& layer, Batch& b) {
      const numerics::GruCell& c = layer.cell;
      numerics::GruOutputs<L> out;
      for (int v = 0; v < b.vectors; ++v) {
        Stages::gates(inputs(b, v), biases(layer, b.channel[v]), c, out);
        Base::store_index(b.z[v], out.z_pre, c.z_pre);
        Base::store_index(b.r[v], out.r_pre, c.r_pre);
      }
      look_up(layer.tables[0], b.z, b.vectors);
      look_up(layer.tables[1], b.r, b.vectors);
      if constexpr (Stages::kResetsState)
        for (int v = 0; v < b.vectors; ++v)
          V::store(b.rrh[v],
                   numerics::gru_reset_state<L>(Base::load_codes(b.r[v], layer.tables[1]), V::load(b.h[v]), c));
    }

    static void new_state(const GruLayer& layer, Batch& b) {
      const numerics::GruCell& c = layer.cell;
      numerics::GruOutputs<L> out;
      for (int v = 0; v < b.vectors; ++v) {
        out.r = Base::load_codes(b.r[v], layer.tables[1]);
        Stages::candidate(inputs(b, v), biases(layer, b.channel[v]), c, out);
        Base::store_index(b.g[v], out.g_pre, c.g_pre);
        if constexpr (Stages::kStaged) V::store(b.rb[v], out.rb);
      }
      look_up(layer.tables[2], b.g, b.vectors);
      for (int v = 0; v < b.vectors; ++v) {
        out.z = Base::load_codes(b.z[v], layer.tables[0]);
        out.g = Base::load_codes(b.g[v], layer.tables[2]);
        Stages::state(inputs(b, v), c, out);
        V::store(b.next_h[v], out.h);
      }
    }
  };

  // Where a number of the cell may need more than 32 bits: one lane after the other, by the definition, at once.
  template <class L, class Stages>
  struct ScalarCell {
    static void gates(const GruLayer&, Batch&) {}
    static void new_state(const GruLayer& layer, Batch& b) {
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
          b.z[v][lane] = static_cast<std::int16_t>(out.z);
          b.r[v][lane] = static_cast<std::int16_t>(out.r);
          b.g[v][lane] = static_cast<std::int16_t>(out.g);
          b.rb[v][lane] = static_cast<std::int32_t>(out.rb);
          b.next_h[v][lane] = static_cast<std::int32_t>(out.h);
        }
    }
  };

  // Products, rescaling and stores of a part of one step of a problem's rows. They are most of the code, and here once
  // for all cells.
  template <ShiftRounding kRounding, Part kPart>
  class Step {
    // A cell that resets the state multiplies for one gate after the other, which takes code for one gate only.
    static constexpr int kProducts = kPart == Part::whole ? kGruGates : 1;
    using Product = RecurrentTiles<V, Dot, kProducts, SignedInputs>;

   public:
    Step(const GruLayer& layer, const StepTile& tile)
        : layer_(layer), tile_(tile), h_bias_(layer.state.input_bias + layer.h.zero) {}

    void add(std::int64_t slice, std::int64_t first_row, std::int64_t rows) {
      const BytePlanes& states = kPart == Part::new_state ? tile_.second : tile_.h;
      if constexpr (kPart == Part::new_state) {
        add_products(2, layer_.second, states, slice, first_row, rows);
      } else {
        add_products(0, layer_.state, states, slice, first_row, rows);
        if constexpr (kPart == Part::gates) add_products(1, layer_.reset_gate, states, slice, first_row, rows);
      }
      for (std::int64_t row = first_row; row < first_row + rows; ++row) {
        const int v = batch_.vectors++;
        batch_.row[v] = row;
        batch_.channel[v] = slice * kLanes;
        V::store(batch_.h[v], load_state(tile_.h, layer_.state.input_planes, row, slice * kLanes, h_bias_));
        if constexpr (kPart == Part::new_state) memcpy(batch_.z[v], update_at(row, slice * kLanes), sizeof batch_.z[v]);
      }
    }

   protected:
    void finish_batch() {
      for (int v = 0; v < batch_.vectors; ++v) kPart == Part::gates ? store_reset(v) : store(v);
      batch_.vectors = 0;
    }

    const GruLayer& layer_;
    const StepTile& tile_;
    Batch batch_;

   private:
    // Computes W x and R h of the gates from first_gate on for the vectors that a batch gets next.
    void add_products(int first_gate, const CodeProduct& product, const BytePlanes& states, std::int64_t slice,
                      std::int64_t first_row, std::int64_t rows) {
      Product::multiply(product, slice, states, first_row, rows, batch_.vectors, sums_);
      const I bias = V::set1(wx_bias(layer_));
      for (std::int64_t row = first_row; row < first_row + rows; ++row) {
        const std::int64_t v = batch_.vectors + row - first_row;
        I rh[kProducts];
        Product::template rescale<kRounding>(product, slice, sums_.parts[v], tile_.sums ? tile_.sums[row] : 0, rh);
        const std::int16_t* wx = tile_.wx + row * layer_.groups * kGruGates * kChannelGroup + gate_offset(slice);
        repeat<kProducts>([&](int i) QCORE_UNROLLED {
          const int gate = first_gate + i;
          V::store(batch_.rh[v][gate], rh[i]);
          V::store(batch_.wx[v][gate], V::add(V::load_words(wx + gate * kChannelGroup), bias));
        });
      }
    }

    std::int32_t* update_at(std::int64_t row, std::int64_t channel) const {
      return tile_.update + row * layer_.groups * kChannelGroup + channel;
    }

    // Stores what the second part needs.
    void store_reset(int v) {
      const std::int64_t row = batch_.row[v], channel = batch_.channel[v];
      const std::int32_t bias = layer_.second.input_bias + layer_.reset_zero;
      memcpy(update_at(row, channel), batch_.z[v], sizeof batch_.z[v]);
      store_state(tile_.second, layer_.second.input_planes, row, channel, V::load(batch_.rrh[v]), bias);
      if (tile_.gates.data) store_first_gates(v);
    }

    void store_first_gates(int v) {
      const int count = static_cast<int>(lesser(kLanes, layer_.size - batch_.channel[v]));
      const bool active = tile_.places[batch_.row[v]].active;
      store_gate(v, 0, batch_.z, count, active);
      store_gate(v, 1, batch_.r, count, active);
    }

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
      if (kPart == Part::whole) store_first_gates(v);
      store_gate(v, 2, batch_.g, count, active);
      store_codes(v, 3, [&](int lane) { return rh[lane] + layer_.rb_zero; }, count, active);
    }

    void store_gate(int v, int gate, const Codes& codes, int count, bool active) {
      const bool is_signed = layer_.tables[gate].is_signed;
      const auto code = [&](int lane) -> std::int32_t {
        return is_signed ? codes[v][lane] : static_cast<std::uint16_t>(codes[v][lane]);
      };
      store_codes(v, gate, code, count, active);
    }

    template <class Code>
    void store_codes(int v, int tensor, const Code& code, int count, bool active) {
      auto* to = static_cast<std::int32_t*>(tile_.gates.data) + tile_.places[batch_.row[v]].gates +
                 (tensor * layer_.size + batch_.channel[v]) * tile_.gates.stride;
      for (int lane = 0; lane < count; ++lane) to[lane * tile_.gates.stride] = active ? code(lane) : 0;
    }

    const std::int32_t h_bias_;
    typename Product::Sums sums_;
  };

  // A part of one step with the stages of a cell.
  template <ShiftRounding kRounding, class Cell, Part kPart>
  class CellStep : public Step<kRounding, kPart> {
   public:
    using Step<kRounding, kPart>::Step;

    void run() { Base::run_batches(this->layer_.size, this->tile_, *this); }

    void finish() {
      if constexpr (kPart != Part::new_state) Cell::gates(this->layer_, this->batch_);
      if constexpr (kPart != Part::gates) Cell::new_state(this->layer_, this->batch_);
      this->finish_batch();
    }
  };

  template <ShiftRounding kRounding, template <class> class Stages>
  static void step_by_width(const GruLayer& layer, const StepTile& tile) {
    using Narrow = VectorLanes<V, kRounding, false>;
    using Wide = VectorLanes<V, kRounding, true>;
    using Scalar = numerics::IntegerLanes<kRounding>;
    if (layer.width == LaneWidth::narrow)
      CellStep<kRounding, VectorCell<Narrow, Stages<Narrow>>, Part::whole>(layer, tile).run();
    else if (layer.width == LaneWidth::wide_products)
      CellStep<kRounding, VectorCell<Wide, Stages<Wide>>, Part::whole>(layer, tile).run();
    else
      CellStep<kRounding, ScalarCell<Scalar, Stages<Scalar>>, Part::whole>(layer, tile).run();
  }

  template <ShiftRounding kRounding>
  static void step_by_pipeline(const GruLayer& layer, const StepTile& tile) {
    if (layer.staged)
      step_by_width<kRounding, numerics::GruStagedCell>(layer, tile);
    else
      step_by_width<kRounding, numerics::GruFusedCell>(layer, tile);
  }

  // Parts of cells that reset the state are computed in lanes for wide products, which hold narrow ones, too; layers
  // that need more than these have no vector kernels.
  template <Part kPart, ShiftRounding kRounding>
  static void step_part(const GruLayer& layer, const StepTile& tile) {
    using L = VectorLanes<V, kRounding, true>;
    // Gates of the fused pipeline are those of the staged one with biases of 0, which it has here.
    if (kPart == Part::gates || layer.staged)
      CellStep<kRounding, VectorCell<L, numerics::GruStagedResetCell<L>>, kPart>(layer, tile).run();
    else if constexpr (kPart != Part::gates)
      CellStep<kRounding, VectorCell<L, numerics::GruFusedResetCell<L>>, kPart>(layer, tile).run();
  }

  template <Part kPart>
  static void step_part(const GruLayer& layer, const StepTile& tile) {
    layer.half_even ? step_part<kPart, ShiftRounding::half_even>(layer, tile)
                    : step_part<kPart, ShiftRounding::half_away>(layer, tile);
  }

  static void step(const RecurrentLayer& any, const StepTile& tile) {
    const auto& layer = static_cast<const GruLayer&>(any);
    if (layer.has_second) return step_part<Part::gates>(layer, tile);
    layer.half_even ? step_by_pipeline<ShiftRounding::half_even>(layer, tile)
                    : step_by_pipeline<ShiftRounding::half_away>(layer, tile);
  }

  static void finish_step(const RecurrentLayer& any, const StepTile& tile) {
    step_part<Part::new_state>(static_cast<const GruLayer&>(any), tile);
  }
};

}  // namespace
}  // namespace qcore
