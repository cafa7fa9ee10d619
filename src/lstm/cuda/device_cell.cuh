#pragma once

#include "lstm/cuda/steps.cuh"
#include "numerics/recurrent/lstm_cell.h"
#include "recurrent/cuda/device_cell.cuh"

namespace qcore {

// The LSTM's cell for the kernels of recurrent/cuda. Its state c stays with the thread that has the channel and row: in
// a.cells between launches.
struct LstmDeviceCell {
  using Steps = LstmSteps;
  using Kind = LstmCellKind;
  using Kinds = CellKinds<Kind::any, Kind::narrow>;
  using NarrowKinds = CellKinds<Kind::narrow>;
  using PersistentKinds = NarrowKinds;
  static constexpr int kGates = numerics::kLstmGates, kTables = kGates + 1;
  static constexpr const char *kStep = "lstm_step", *kPersistent = "lstm_persistent", *kRow = "lstm_row",
                              *kSingle = "lstm_single_step";

  template <class Sum, class Shift = std::int32_t, class Bias = std::int64_t>
  using Constants = CellConstants<kGates, Sum, Shift>;

  struct Outputs {
    CellState state;
  };

  template <Kind kKind, class Sum, class Shift>
  __device__ __forceinline__ static void load_constants(const Steps& a, std::int64_t j,
                                                        Constants<Sum, Shift>& constants) {
    load_product_constants(a.arrays.r, a.channels, j, constants);
  }

  template <class Sum>
  __device__ __forceinline__ static void load_state(const Steps& a, const CellPlace& at, std::int64_t j,
                                                    CellInputs<kGates, Sum>& in) {
    in.state.c = load_cell(a, at, j);
  }

  __device__ __forceinline__ static std::int32_t load_cell(const Steps& a, const CellPlace& at, std::int64_t j) {
    if (at.step > 0) return a.cells[at.b * a.channels + j];
    if (!a.c0.data) return 0;
    return load_centered(a.c0.data, a.c0.dtype, at.b * a.c0.strides[0] + j * a.c0.strides[1], a.c);
  }

  // Returns the states after the step; the row's steps are over at its length.
  template <Kind kKind, class Sum>
  __device__ __forceinline__ static Outputs evaluate(const Steps& a, const CellPlace& at,
                                                     const Constants<Sum>& constants,
                                                     const CellInputs<kGates, Sum>& from) {
    using numerics::ShiftRounding;
    if (at.step >= at.length) return {from.state};
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
    store_cell(a, at, j, out.state.c);
  }

  __device__ __forceinline__ static void store_cell(const Steps& a, const CellPlace& at, std::int64_t j,
                                                    std::int32_t c) {
    if (at.step < a.steps - 1)
      a.cells[at.b * a.channels + j] = c;
    else if (a.last_cell.data)
      store_centered(a.last_cell.data, a.last_cell.dtype, at.b * a.last_cell.strides[0] + j * a.last_cell.strides[1], c,
                     a.c);
  }

  __device__ __forceinline__ static void store_gates(const Steps&, const CellPlace&, std::int64_t, const Outputs&) {}

  __device__ __forceinline__ static void store_end(const Steps& a, const CellPlace& at, std::int64_t j,
                                                   const CellState& state) {
    store_cell(a, at, j, state.c);
  }

  template <class Shift>
  __device__ __forceinline__ static numerics::LstmCellOf<Shift> cell_of(const Steps& a) {
    const numerics::LstmCell& c = a.cell;
    numerics::LstmCellOf<Shift> made{};
    made.wx = c.wx, made.rh = c.rh, made.c = c.c, made.m = c.m;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      made.pre[gate] = c.pre[gate];
      made.wx_to_pre[gate] = Shift(c.wx_to_pre[gate]), made.rh_to_pre[gate] = Shift(c.rh_to_pre[gate]);
    }
    made.f_c_left = c.f_c_left, made.i_g_left = c.i_g_left;
    made.sum_to_c = Shift(c.sum_to_c), made.o_c_tanh_to_m = Shift(c.o_c_tanh_to_m);
    return made;
  }

  template <class L, Kind, class Cell, class Tables, class Shift, class Sum>
  __device__ __forceinline__ static Outputs compute(const Steps&, const Cell& cell, const Tables& all,
                                                    const Constants<Sum, Shift>& constants,
                                                    const CellInputs<kGates, Sum>& from) {
    numerics::LstmInputs<L> in;
    make_products<L>(constants, from, cell.wx, cell.rh, in);
    in.c = from.state.c;
    const numerics::LstmTables<L> tables{{L::table(all, 0), L::table(all, 1), L::table(all, 2), L::table(all, 3)},
                                         L::table(all, 4)};
    const auto out = numerics::lstm_cell<L>(in, cell, tables);
    return {{static_cast<std::int32_t>(out.m), static_cast<std::int32_t>(out.c)}};
  }
};

}  // namespace qcore
