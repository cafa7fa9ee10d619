#pragma once

#include "recurrent/cuda/device_lanes.cuh"
#include "recurrent/cuda/device_run.cuh"

// Code that the cells of recurrent layers share: one channel of one row, from sums of products to the results.
//
// A cell is a type with
//   Steps, kGates             a RecurrentSteps with what is the cell's own; the gates of its products
//   Kind, Kinds               enumerates its arithmetics, and lists them; Kind::any covers every format, and the others
//                             round half away from zero in 32 bits, with products of 64, where recurrent/cpu/pack.h
//                             proves that this holds. A kernel holds the instructions of one kind. Steps has `kind`
//   NarrowKinds               lists all but Kind::any; PersistentKinds those that the persistent kernel has,
//                             SmallKinds those that leave registers to two planes of R and of h (row/row_kernel.cuh)
//   kStep, kPersistent, kRow, kSingle   names of its kernels
//   kTables                   how many tables it has
//   Constants<Sum, Shift, Bias>, Outputs   constants of a channel; what a step computes, with a CellState `state`
//   cell_of<Shift>(a)         the parameters of all channels, with shifts made from numbers
//   load_constants<kKind>(a, j, constants), load_state(a, at, j, inputs)
//   evaluate<kKind>(a, at, constants, inputs), store(a, at, j, outputs)
//   compute<Lanes, kKind>(a, cell, tables, constants, inputs)   of a step that the row has, in lanes whose shifts and
//                             tables they are
//   store_gates(a, at, j, outputs)   what store() stores in each step besides the state
//   store_end(a, at, j, state)       what it stores after the last step of a part besides h
namespace qcore {

template <auto... kKinds>
struct CellKinds {};

// The state that a step hands to the next one, less zero points; c is 0 in cells that have none.
struct CellState {
  std::int32_t h, c;
};

template <int kGates, class Sum>
struct CellInputs {
  Sum sums[kGates];  // R h
  std::uint16_t wx[kGates];
  CellState state;
};

// Where a row is at a step.
struct CellPlace {
  std::int64_t b, step, length;
};

// Constants of a channel.
template <int kGates, class Sum, class Shift = std::int32_t>
struct CellConstants {
  Sum offsets[kGates];
  Shift shifts[kGates];
};

template <int kGates, class Sum, class Shift>
__device__ __forceinline__ void load_product_constants(const DeviceProduct& product, std::int64_t channels,
                                                       std::int64_t j, CellConstants<kGates, Sum, Shift>& constants) {
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    constants.offsets[gate] = static_cast<Sum>(product.offsets[gate * channels + j]);
    constants.shifts[gate] = Shift(product.shifts[gate * channels + j]);
  }
}

// Makes codes of both products. Sums are int32 or int64; less than 2^29 in lanes of 32 bits, if int32.
template <class L, int kGates, class Sum, class Shift, class Inputs>
__device__ __forceinline__ void make_products(const CellConstants<kGates, Sum, Shift>& constants,
                                              const CellInputs<kGates, Sum>& from, const numerics::CodeRange& wx,
                                              const numerics::CodeRange& rh, Inputs& in) {
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    in.wx[gate] = from.wx[gate] + wx.lo;
    in.rh[gate] = L::rescaled(from.sums[gate], constants.offsets[gate], constants.shifts[gate], rh);
  }
}

template <int kGates>
__device__ __forceinline__ void load_wx(const RecurrentSteps& a, std::int64_t step, std::int64_t b, std::int64_t j,
                                        std::uint16_t (&wx)[kGates]) {
  const std::uint16_t* from = a.wx + ((step - a.first) * a.batch + b) * kGates * a.channels + j;
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) wx[gate] = from[gate * a.channels];
}

// Stores y, and h of the last step.
__device__ __forceinline__ void store_state(const RecurrentSteps& a, const CellPlace& at, std::int64_t j,
                                            std::int32_t h) {
  const std::int64_t t = time_of(at.step, at.length, a.reverse);
  store_centered(a.y.data, a.y.dtype, t * a.y.strides[0] + at.b * a.y.strides[1] + j * a.y.strides[2],
                 at.step < at.length ? h : 0, a.h);
  if (a.last.data && at.step == a.steps - 1)
    store_centered(a.last.data, a.last.dtype, at.b * a.last.strides[0] + j * a.last.strides[1], h, a.h);
}

// Loads a code from its planes of bytes, of which the first is signed.
template <int kPlanes>
__device__ __forceinline__ std::int32_t load_planes(const char* plane, std::int64_t plane_bytes) {
  const auto first = static_cast<std::int32_t>(static_cast<std::int8_t>(plane[0]));
  return kPlanes == 1 ? first : 256 * first + static_cast<std::uint8_t>(plane[plane_bytes]);
}

template <int kPlanes>
__device__ __forceinline__ void store_planes(char* plane, std::int64_t plane_bytes, std::int32_t code) {
  const auto bits = static_cast<std::uint32_t>(code);
  plane[0] = static_cast<char>(kPlanes == 1 ? bits : bits >> 8);
  if constexpr (kPlanes == 2) plane[plane_bytes] = static_cast<char>(bits);
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
