#pragma once

#include "gru/cuda/device_lanes.cuh"
#include "gru/cuda/device_run.cuh"

// The cell of one channel and row, from sums of products to what the caller gets.
namespace qcore {

template <class Sum>
struct CellInputs {
  Sum sums[3];  // R h
  std::uint16_t wx[3];
  std::int32_t h;  // less its zero point, as everything but wx
};

struct CellOutputs {
  std::int32_t h;
  std::int32_t gates[4];  // codes of z, r, g and rb
};

// Where a row is at a step.
struct CellPlace {
  std::int64_t b, step, length;
};

// Constants of a channel.
template <class Sum>
struct CellConstants {
  Sum offsets[3];
  std::int32_t shifts[3];
  std::int64_t biases[4];
};

template <class Sum>
__device__ __forceinline__ void load_constants(const GruSteps& a, bool fused, std::int64_t j,
                                               CellConstants<Sum>& constants) {
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    constants.offsets[gate] = static_cast<Sum>(a.arrays.rh_offsets[gate * a.channels + j]);
    constants.shifts[gate] = a.arrays.rh_shifts[gate * a.channels + j];
  }
  if (fused) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) constants.biases[i] = a.arrays.biases[i][j];
}

// Sums are int32 or int64; less than 2^29 in lanes of 32 bits, if int32.
template <class L, class Sum>
__device__ __forceinline__ CellOutputs cell_outputs(const GruSteps& a, bool fused, const CellConstants<Sum>& constants,
                                                    const CellInputs<Sum>& from) {
  numerics::GruInputs<L> in;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    in.wx[gate] = from.wx[gate] + a.cell.wx.lo;
    in.rh[gate] = L::rescaled(from.sums[gate], constants.offsets[gate], constants.shifts[gate], a.cell.rh);
  }
  in.h = from.h;
  const numerics::GruTables<L> tables{L::table(a.arrays, 0), L::table(a.arrays, 1), L::table(a.arrays, 2)};
  numerics::GruOutputs<L> out;
  if (fused) {
    out = numerics::gru_fused<L>(in, a.cell, tables);
    out.rb = in.rh[2];
  } else {
    const auto bias = [&](int i) { return static_cast<typename L::I>(constants.biases[i]); };
    out = numerics::gru_staged<L>(in, {bias(0), bias(1), bias(2), bias(3)}, a.cell, tables);
  }
  const auto narrow = [](typename L::I value) { return static_cast<std::int32_t>(value); };
  return {narrow(out.h), {narrow(out.z), narrow(out.r), narrow(out.g), narrow(out.rb) + a.rb_zero}};
}

__device__ __forceinline__ void load_wx(const GruSteps& a, std::int64_t step, std::int64_t b, std::int64_t j,
                                        std::uint16_t (&wx)[3]) {
  const std::uint16_t* from = a.wx + ((step - a.first) * a.batch + b) * 3 * a.channels + j;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) wx[gate] = from[gate * a.channels];
}

// h after the step, and the gates; the row's steps are over at its length. A kernel holds the instructions of one kind
// of cell.
template <GruCellKind kKind, class Sum>
__device__ __forceinline__ CellOutputs evaluate_cell(const GruSteps& a, const CellPlace& at,
                                                     const CellConstants<Sum>& constants, const CellInputs<Sum>& from) {
  using numerics::ShiftRounding;
  if (at.step >= at.length) return {from.h, {}};
  if constexpr (kKind == GruCellKind::any)
    return a.half_even ? cell_outputs<GruWideLanes<ShiftRounding::half_even>>(a, a.fused, constants, from)
                       : cell_outputs<GruWideLanes<ShiftRounding::half_away>>(a, a.fused, constants, from);
  else
    return cell_outputs<GruDeviceLanes<ShiftRounding::half_away>>(a, kKind == GruCellKind::fused, constants, from);
}

__device__ __forceinline__ void store_cell(const GruSteps& a, const CellPlace& at, std::int64_t j,
                                           const CellOutputs& out) {
  const std::int64_t t = time_of(at.step, at.length, a.reverse);
  store_centered(a.y.data, a.y.dtype, t * a.y.strides[0] + at.b * a.y.strides[1] + j * a.y.strides[2],
                 at.step < at.length ? out.h : 0, a.h);
  if (a.last.data && at.step == a.steps - 1)
    store_centered(a.last.data, a.last.dtype, at.b * a.last.strides[0] + j * a.last.strides[1], out.h, a.h);
  if (!a.gates.data) return;
  auto* gates = static_cast<std::int32_t*>(a.gates.data) + t * a.gates.strides[0] + at.b * a.gates.strides[1];
#pragma unroll
  for (int gate = 0; gate < 4; ++gate) gates[(gate * a.size + j) * a.gates.strides[2]] = out.gates[gate];
}

// Loads a code from its planes of bytes, of which the first is signed.
template <int kPlanes>
__device__ __forceinline__ std::int32_t load_planes(const char* plane, std::int64_t plane_bytes) {
  const auto first = static_cast<std::int32_t>(static_cast<std::int8_t>(plane[0]));
  return kPlanes == 1 ? first : 256 * first + static_cast<std::uint8_t>(plane[plane_bytes]);
}

// The byte of a plane of four neighboring lanes' codes, as a word that all of them get. All lanes must call.
template <int kPlanes>
__device__ __forceinline__ std::uint32_t gather_plane(std::int32_t code, int plane) {
  const auto bits = static_cast<std::uint32_t>(code);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  std::uint32_t word = (kPlanes == 2 && plane == 0 ? bits >> 8 & 0xffu : bits & 0xffu) << (8 * (lane % 4));
  word |= __shfl_xor_sync(kAllLanes, word, 1);
  return word | __shfl_xor_sync(kAllLanes, word, 2);
}

}  // namespace qcore
