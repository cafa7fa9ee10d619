#pragma once

#include "lstm/cpu/vtable.h"
#include "recurrent/cpu/tiles.h"

// A step of the LSTM's cell for vectors V and dot products Dot, generic over instruction sets.
namespace qcore {
namespace {

template <class V, class Dot, bool SignedInputs = false>
struct LstmTiles : RecurrentTiles<V, Dot, kLstmGates, SignedInputs> {
  using Base = RecurrentTiles<V, Dot, kLstmGates, SignedInputs>;
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
  using typename Base::Sums;
  using Waiting = typename Base::WaitingLookUps;

  // Inputs and outputs of the cell: vectors of kLanes channels of a row each.
  struct Batch {
    int vectors = 0;
    std::int64_t row[kMaxRows], channel[kMaxRows];
    const std::int32_t* c[kMaxRows];
    alignas(64) std::int32_t next_c[kMaxRows][kLanes];
    alignas(64) Codes gates[kLstmGates], c_tanh;
    alignas(64) std::int32_t o_argument[kMaxRows][kLanes];  // of cells with peepholes, until c' is known
    // Only the scalar cell uses these.
    alignas(64) std::int32_t wx[kMaxRows][kLstmGates][kLanes], rh[kMaxRows][kLstmGates][kLanes], m[kMaxRows][kLanes];
  };

  // The cell's stages, each for all vectors of a batch: short enough that the processor has several vectors'
  // instructions in flight. Between the stages are look-ups, some of which the products of the next batch do.
  template <class L, bool kPeepholes>
  struct VectorCell {
    // The arguments of the gates of a vector.
    QCORE_NUMERIC void begin(const LstmLayer& layer, const numerics::LstmCell& cell, const I (&wx)[kLstmGates],
                             const I (&rh)[kLstmGates], int v, Batch& b) {
      numerics::LstmInputs<L> in;
      numerics::LstmOutputs<L> out;
      repeat<kLstmGates>([&](int gate) QCORE_UNROLLED {
        in.wx[gate] = wx[gate];
        in.rh[gate] = rh[gate];
      });
      if constexpr (kPeepholes) {
        in.c = V::load(b.c[v]);
        for (int i = 0; i < 2; ++i) in.peepholes[i] = V::load(&layer.peepholes[i][b.channel[v]]);
      }
      numerics::lstm_arguments<L, kPeepholes>(in, cell, out);
      repeat<kFirstGates>([&](int gate)
                              QCORE_UNROLLED { Base::store_index(b.gates[gate][v], out.pre[gate], cell.pre[gate]); });
      if constexpr (kPeepholes) V::store(b.o_argument[v], out.pre[3]);
    }

    static void look_up_gates(const LstmLayer& layer, Batch& b, Waiting& waiting) {
      for (int gate = 0; gate < kFirstGates; ++gate) look_up(layer.tables[gate], b.gates[gate], b.vectors, waiting);
    }

    static void update(const LstmLayer& layer, Batch& b, Waiting& waiting) {
      const numerics::LstmCell cell = layer.cell;
      numerics::LstmInputs<L> in;
      numerics::LstmOutputs<L> out;
      for (int v = 0; v < b.vectors; ++v) {
        repeat<3>([&](int gate)
                      QCORE_UNROLLED { out.gates[gate] = Base::load_codes(b.gates[gate][v], layer.tables[gate]); });
        in.c = V::load(b.c[v]);
        numerics::lstm_cell_state(in, cell, out);
        V::store(b.next_c[v], out.c);
        Base::store_index(b.c_tanh[v], out.c, cell.c);
        if constexpr (kPeepholes) {
          out.pre[3] = V::load(b.o_argument[v]);
          in.peepholes[2] = V::load(&layer.peepholes[2][b.channel[v]]);
          numerics::lstm_output_argument(in, cell, out);
          Base::store_index(b.gates[3][v], out.pre[3], cell.pre[3]);
        }
      }
      if constexpr (kPeepholes) look_up(layer.tables[3], b.gates[3], b.vectors, waiting);
      look_up(layer.tables[kLstmGates], b.c_tanh, b.vectors, waiting);
    }

    QCORE_NUMERIC I m(const LstmLayer& layer, const Batch& b, int v) {
      numerics::LstmOutputs<L> out;
      out.gates[3] = Base::load_codes(b.gates[3][v], layer.tables[3]);
      out.c_tanh = Base::load_codes(b.c_tanh[v], layer.tables[kLstmGates]);
      numerics::lstm_output(layer.cell, out);
      return out.m;
    }

   private:
    static constexpr int kFirstGates = kPeepholes ? 3 : kLstmGates;  // those that are looked up before c is known
  };

  // Where a number of the cell may need more than 32 bits: one lane after the other, by the definition.
  template <class L>
  struct ScalarCell {
    QCORE_NUMERIC void begin(const LstmLayer&, const numerics::LstmCell&, const I (&wx)[kLstmGates],
                             const I (&rh)[kLstmGates], int v, Batch& b) {
      repeat<kLstmGates>([&](int gate) QCORE_UNROLLED {
        V::store(b.wx[v][gate], wx[gate]);
        V::store(b.rh[v][gate], rh[gate]);
      });
    }
    QCORE_NUMERIC I m(const LstmLayer&, const Batch& b, int v) { return V::load(b.m[v]); }

    static void look_up_gates(const LstmLayer&, Batch&, Waiting&) {}

    static void update(const LstmLayer& layer, Batch& b, Waiting&) {
      const auto& t = layer.scalar_tables;
      const numerics::LstmTables<L> tables{{t[0], t[1], t[2], t[3]}, t[4]};
      for (int v = 0; v < b.vectors; ++v)
        for (int lane = 0; lane < kLanes && b.channel[v] + lane < layer.size; ++lane) {
          numerics::LstmInputs<L> in{};
          for (int gate = 0; gate < kLstmGates; ++gate) {
            in.wx[gate] = b.wx[v][gate][lane];
            in.rh[gate] = b.rh[v][gate][lane];
          }
          in.c = b.c[v][lane];
          const bool peepholes = layer.scalar_cell.peepholes;
          for (int i = 0; peepholes && i < kLstmPeepholes; ++i)
            in.peepholes[i] = layer.peepholes[i][b.channel[v] + lane];
          const auto out = peepholes ? numerics::lstm_cell<L, true>(in, layer.scalar_cell, tables)
                                     : numerics::lstm_cell<L>(in, layer.scalar_cell, tables);
          b.next_c[v][lane] = static_cast<std::int32_t>(out.c);
          b.m[v][lane] = static_cast<std::int32_t>(out.m);
        }
    }
  };

  // One step of a problem's rows; with a projection its first half.
  template <ShiftRounding kRounding, class Cell>
  class Step {
   public:
    Step(const LstmLayer& layer, const StepTile& tile)
        : layer_(layer), tile_(tile), h_bias_(layer.state.input_bias + layer.h.zero) {}

    void run() {
      Base::run_batches(layer_.size, tile_, *this);
      finish(), finish();  // of the last two batches
    }

    void add(std::int64_t slice, std::int64_t first_row, std::int64_t rows) {
      Batch& batch = batches_[newest_];
      Base::multiply(layer_.state, slice, tile_.h, first_row, rows, batch.vectors, sums_, &waiting_);
      const I bias = V::set1(wx_bias(layer_));
      const numerics::LstmCell& cell = layer_.cell;
      for (std::int64_t row = first_row; row < first_row + rows; ++row) {
        const int v = batch.vectors++;
        batch.row[v] = row;
        batch.channel[v] = slice * kLanes;
        batch.c[v] = cell_at(row, slice * kLanes);
        I wx[kLstmGates], rh[kLstmGates];
        Base::template rescale<kRounding>(layer_.state, slice, sums_.parts[v], tile_.sums ? tile_.sums[row] : 0, rh);
        const std::int16_t* ahead = tile_.wx + row * layer_.groups * kLstmGates * kChannelGroup + gate_offset(slice);
        repeat<kLstmGates>(
            [&](int gate) QCORE_UNROLLED { wx[gate] = V::add(V::load_words(ahead + gate * kChannelGroup), bias); });
        Cell::begin(layer_, cell, wx, rh, v, batch);
      }
    }

    // Moves three batches on: arguments, c and m follow one another in batches of their own, because the look-ups
    // between them are done while the products of the next batch are computed.
    void finish() {
      waiting_.do_all();
      Batch& oldest = batches_[(newest_ + 1) % 3];
      for (int v = 0; v < oldest.vectors; ++v) layer_.has_second ? store_m(oldest, v) : store(oldest, v);
      oldest.vectors = 0;
      Cell::update(layer_, batches_[(newest_ + 2) % 3], waiting_);
      Cell::look_up_gates(layer_, batches_[newest_], waiting_);
      newest_ = (newest_ + 1) % 3;
    }

   private:
    std::int32_t* cell_at(std::int64_t row, std::int64_t channel) const {
      return tile_.cell + row * layer_.groups * kChannelGroup + channel;
    }

    void store_m(const Batch& batch, int v) {
      const std::int64_t row = batch.row[v], channel = batch.channel[v];
      const std::int32_t bias = layer_.second.input_bias + layer_.m_zero;
      store_state(tile_.second, layer_.second.input_planes, row, channel, Cell::m(layer_, batch, v), bias);
      if (tile_.places[row].active) V::store(cell_at(row, channel), V::load(batch.next_c[v]));
    }

    void store(const Batch& batch, int v) {
      const std::int64_t row = batch.row[v], channel = batch.channel[v];
      const int count = static_cast<int>(lesser(kLanes, layer_.size - channel));
      const StepPlace& place = tile_.places[row];
      const int planes = layer_.state.input_planes;
      I h;
      if (place.active) {
        h = Cell::m(layer_, batch, v);
        V::store(cell_at(row, channel), V::load(batch.next_c[v]));
      } else {
        h = load_state(tile_.h, planes, row, channel, h_bias_);
      }
      store_state(tile_.next_h, planes, row, channel, h, h_bias_);
      store_elements(tile_.y, place.y + channel * tile_.y.stride, place.active ? h : V::set1(0), count, layer_.h);
    }

    const LstmLayer& layer_;
    const StepTile& tile_;
    const std::int32_t h_bias_;
    Sums sums_;
    Batch batches_[3];
    int newest_ = 0;
    Waiting waiting_;
  };

  template <ShiftRounding kRounding>
  static void step_by_width(const LstmLayer& layer, const StepTile& tile) {
    if (layer.width == LaneWidth::scalar)
      Step<kRounding, ScalarCell<numerics::IntegerLanes<kRounding>>>(layer, tile).run();
    else if (layer.cell.peepholes)  // in lanes for wide products, which hold narrow ones, too
      Step<kRounding, VectorCell<VectorLanes<V, kRounding, true>, true>>(layer, tile).run();
    else if (layer.width == LaneWidth::narrow)
      Step<kRounding, VectorCell<VectorLanes<V, kRounding, false>, false>>(layer, tile).run();
    else
      Step<kRounding, VectorCell<VectorLanes<V, kRounding, true>, false>>(layer, tile).run();
  }

  // The second half of a step with a projection: h is its product with m.
  template <ShiftRounding kRounding>
  class Project {
    using Product = RecurrentTiles<V, Dot, 1, SignedInputs>;

   public:
    Project(const RecurrentLayer& layer, const StepTile& tile)
        : layer_(layer), tile_(tile), h_bias_(layer.state.input_bias + layer.h.zero) {}

    void run() { Product::run_batches(layer_.second_size, tile_, *this); }

    void add(std::int64_t slice, std::int64_t first_row, std::int64_t rows) {
      Product::multiply(layer_.second, slice, tile_.second, first_row, rows, 0, sums_);
      for (std::int64_t row = first_row; row < first_row + rows; ++row) {
        I h[1];
        Product::template rescale<kRounding>(layer_.second, slice, sums_.parts[row - first_row],
                                             tile_.sums ? tile_.sums[row] : 0, h);
        const StepPlace& place = tile_.places[row];
        const std::int64_t channel = slice * kLanes;
        const int planes = layer_.state.input_planes,
                  count = static_cast<int>(lesser(kLanes, layer_.second_size - channel));
        if (!place.active) h[0] = load_state(tile_.h, planes, row, channel, h_bias_);
        store_state(tile_.next_h, planes, row, channel, h[0], h_bias_);
        store_elements(tile_.y, place.y + channel * tile_.y.stride, place.active ? h[0] : V::set1(0), count, layer_.h);
      }
    }

    void finish() {}

   private:
    const RecurrentLayer& layer_;
    const StepTile& tile_;
    const std::int32_t h_bias_;
    typename Product::Sums sums_;
  };

  static void finish_step(const RecurrentLayer& layer, const StepTile& tile) {
    layer.half_even ? Project<ShiftRounding::half_even>(layer, tile).run()
                    : Project<ShiftRounding::half_away>(layer, tile).run();
  }

  static void step(const RecurrentLayer& any, const StepTile& tile) {
    const auto& layer = static_cast<const LstmLayer&>(any);
    layer.half_even ? step_by_width<ShiftRounding::half_even>(layer, tile)
                    : step_by_width<ShiftRounding::half_away>(layer, tile);
  }
};

}  // namespace
}  // namespace qcore
