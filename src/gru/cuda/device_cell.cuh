#pragma once

#include "gru/cuda/steps.cuh"
#include "numerics/recurrent/gru_cell.h"
#include "recurrent/cuda/device_cell.cuh"

namespace qcore {

// The GRU's cell for the kernels of recurrent/cuda.
struct GruDeviceCell {
  using Steps = GruSteps;
  using Kind = GruCellKind;
  using Kinds = CellKinds<Kind::any, Kind::staged, Kind::fused>;
  using NarrowKinds = CellKinds<Kind::staged, Kind::fused>;
  using PersistentKinds = Kinds;
  using SmallKinds = CellKinds<Kind::fused>;
  static constexpr int kGates = 3, kTables = 3;
  static constexpr const char *kStep = "gru_step", *kPersistent = "gru_persistent", *kRow = "gru_row",
                              *kSingle = "gru_single_step";

  // Biases have 32 bits in kernels without Kind::any.
  template <class Sum, class Shift = std::int32_t, class Bias = std::int64_t>
  struct Constants : CellConstants<kGates, Sum, Shift> {
    Bias biases[4];
  };

  struct Outputs {
    CellState state;
    std::int32_t gates[4];  // codes of z, r, g and rb
  };

  template <Kind kKind, class Sum, class Shift, class Bias>
  __device__ __forceinline__ static void load_constants(const Steps& a, std::int64_t j,
                                                        Constants<Sum, Shift, Bias>& constants) {
    load_product_constants(a.arrays.r, a.channels, j, constants);
    if constexpr (kKind != Kind::fused) {
      if (kKind == Kind::any && a.fused) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) constants.biases[i] = static_cast<Bias>(a.arrays.vectors[i][j]);
    }
  }

  template <class Sum>
  __device__ __forceinline__ static void load_state(const Steps&, const CellPlace&, std::int64_t,
                                                    CellInputs<kGates, Sum>&) {}

  // Returns h after the step, and the gates; the row's steps are over at its length.
  template <Kind kKind, class Sum>
  __device__ __forceinline__ static Outputs evaluate(const Steps& a, const CellPlace& at,
                                                     const Constants<Sum>& constants,
                                                     const CellInputs<kGates, Sum>& from) {
    using numerics::ShiftRounding;
    if (at.step >= at.length) return {from.state, {}};
    if constexpr (kKind == Kind::any)
      return a.half_even
                 ? compute<DeviceWideLanes<ShiftRounding::half_even>, kKind>(a, a.cell, a.arrays, constants, from)
                 : compute<DeviceWideLanes<ShiftRounding::half_away>, kKind>(a, a.cell, a.arrays, constants, from);
    else
      return compute<DeviceLanes<ShiftRounding::half_away>, kKind>(a, a.cell, a.arrays, constants, from);
  }

  __device__ __forceinline__ static void store(const Steps& a, const CellPlace& at, std::int64_t j,
                                               const Outputs& out) {
    store_state(a, at, j, out.state.h);
    store_gates(a, at, j, out);
  }

  __device__ __forceinline__ static void store_gates(const Steps& a, const CellPlace& at, std::int64_t j,
                                                     const Outputs& out) {
    if (!a.gates.data) return;
    const std::int64_t t = time_of(at.step, at.length, a.reverse);
    auto* gates = static_cast<std::int32_t*>(a.gates.data) + t * a.gates.strides[0] + at.b * a.gates.strides[1];
#pragma unroll
    for (int gate = 0; gate < 4; ++gate) gates[(gate * a.size + j) * a.gates.strides[2]] = out.gates[gate];
  }

  __device__ __forceinline__ static void store_end(const Steps&, const CellPlace&, std::int64_t, const CellState&) {}

  template <class Shift>
  __device__ __forceinline__ static numerics::GruCellOf<Shift> cell_of(const Steps& a) {
    const numerics::GruCell& c = a.cell;
    numerics::GruCellOf<Shift> made{};
    made.wx = c.wx, made.rh = c.rh, made.rb = c.rb, made.rrh = c.rrh, made.h = c.h;
    made.z_pre = c.z_pre, made.r_pre = c.r_pre, made.g_pre = c.g_pre;
    made.old_part = c.old_part, made.new_part = c.new_part;
    made.wx_to_z = Shift(c.wx_to_z), made.rh_to_z = Shift(c.rh_to_z), made.wx_to_r = Shift(c.wx_to_r);
    made.rh_to_r = Shift(c.rh_to_r), made.wx_to_g = Shift(c.wx_to_g);
    made.rh_to_rb = Shift(c.rh_to_rb), made.r_rb_to_rrh = Shift(c.r_rb_to_rrh), made.rrh_to_g = Shift(c.rrh_to_g);
    made.z_h_to_old = Shift(c.z_h_to_old), made.z_g_to_new = Shift(c.z_g_to_new);
    made.old_to_h = Shift(c.old_to_h), made.new_to_h = Shift(c.new_to_h);
    made.r_rh_to_g = Shift(c.r_rh_to_g), made.g_to_h = Shift(c.g_to_h), made.z_bits = Shift(c.z_bits);
    made.one = c.one;
    return made;
  }

  template <class L, Kind kKind, class Cell, class Tables, class Shift, class Bias, class Sum>
  __device__ __forceinline__ static Outputs compute(const Steps& a, const Cell& cell, const Tables& all,
                                                    const Constants<Sum, Shift, Bias>& constants,
                                                    const CellInputs<kGates, Sum>& from) {
    const bool fused = kKind == Kind::any ? a.fused : kKind == Kind::fused;
    numerics::GruInputs<L> in;
    make_products<L>(constants, from, cell.wx, cell.rh, in);
    in.h = from.state.h;
    const numerics::GruTables<L> tables{L::table(all, 0), L::table(all, 1), L::table(all, 2)};
    numerics::GruOutputs<L> out;
    if (fused) {
      out = numerics::gru_fused<L>(in, cell, tables);
      out.rb = in.rh[2];
    } else {
      const auto bias = [&](int i) { return static_cast<typename L::I>(constants.biases[i]); };
      out = numerics::gru_staged<L>(in, {bias(0), bias(1), bias(2), bias(3)}, cell, tables);
    }
    const auto narrow = [](typename L::I value) { return static_cast<std::int32_t>(value); };
    return {{narrow(out.h), 0}, {narrow(out.z), narrow(out.r), narrow(out.g), narrow(out.rb) + a.rb_zero}};
  }
};

}  // namespace qcore
