#pragma once

#include "recurrent/cuda/byte_product.cuh"
#include "recurrent/cuda/device_cell.cuh"
#include "recurrent/cuda/row/row_lanes.cuh"
#include "recurrent/cuda/state_product.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/cuda/ptx_memory.cuh"
#include "runtime/memory.h"

// All steps of one row of the batch in one thread block, which keeps R in registers. A step is a chain of dependent
// instructions (product, cell, state, barrier), and this kernel leaves nothing else in it: warps that multiply have a
// lane for each channel, whose sums arrive in its own registers, while other warps store results and fetch W x.
namespace qcore {

// How many sets of 16 channels a warp multiplies by. Two make use of all lanes; with more than one plane of bytes their
// part of R and their sums would not fit in registers.
template <int kWeightPlanes, int kStatePlanes>
constexpr int kRowSets = kWeightPlanes + kStatePlanes == 2 ? 2 : 1;

// Whether the cell's numbers have 32 bits, products included.
template <int kWeightPlanes, int kStatePlanes>
constexpr bool kRowNarrow = kWeightPlanes + kStatePlanes == 2;

// Warps that multiply by 128 channels, and those that store and fetch.
template <int kWeightPlanes, int kStatePlanes>
constexpr int kMostProductWarps = kRowChannels / kTileRows / kRowSets<kWeightPlanes, kStatePlanes>;
constexpr int kHelperWarps = kRowChannels / kWarpSize, kHelpers = kHelperWarps * kWarpSize;

// A lane's channel. The columns of a product are all the same row, so that each lane of four has the sums of all 16
// channels that the four share, and picks its own.
template <int kSets>
struct RowChannel {
  int set, half, tile;

  __device__ __forceinline__ RowChannel(int warp, int lane)
      : set(kSets == 2 ? lane % 4 / 2 : 0), half(lane % 2), tile(warp * kSets + set) {}
  __device__ __forceinline__ int channel(int lane) const { return tile * kTileRows + 8 * half + lane / 4; }
  __device__ __forceinline__ static bool first_of_channel(int lane) { return kSets == 2 || lane % 4 < 2; }
};

// The part of R of a warp as it lies in registers, of all k.
template <int kGates, int kWeightPlanes, int kSets>
struct RowOperand {
  uint4 words[kSets][kGates][kWeightPlanes][kRowSteps][2];

  __device__ __forceinline__ void load(const uint4* weights, int first_tile, int tiles, int steps) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int set = 0; set < kSets; ++set)
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate)
#pragma unroll
        for (int plane = 0; plane < kWeightPlanes; ++plane)
#pragma unroll
          for (int step = 0; step < kRowSteps; ++step)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int tile = first_tile + set;
              const int at = (((tile * kGates + gate) * kWeightPlanes + plane) * steps + step) * 2 + half;
              const bool exists = tile < tiles && step < steps;
              words[set][gate][plane][step][half] = exists ? weights[at * kWarpSize + lane] : uint4{0, 0, 0, 0};
            }
  }

  // R h of the lane's channel.
  template <int kStatePlanes, class Sum>
  __device__ __forceinline__ void multiply(ptx::SharedAddress state, const RowChannel<kSets>& of,
                                           Sum (&sums)[kGates]) const {
    using Product = ByteProduct<kWeightPlanes, kStatePlanes, 1, 1>;
    Product products[kSets][kGates];
#pragma unroll
    for (int set = 0; set < kSets; ++set)
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) products[set][gate].clear();
    std::uint32_t b[kRowSteps][kStatePlanes][4];
#pragma unroll
    for (int step = 0; step < kRowSteps; ++step)
#pragma unroll
      for (int plane = 0; plane < kStatePlanes; ++plane) {
        const uint4 codes = ptx::load_shared_words(state + plane * kRowChannels + step * kStepK);
        b[step][plane][0] = codes.x, b[step][plane][1] = codes.y;
        b[step][plane][2] = codes.z, b[step][plane][3] = codes.w;
      }
#pragma unroll
    for (int step = 0; step < kRowSteps; ++step)
#pragma unroll
      for (int plane = 0; plane < kWeightPlanes; ++plane)
#pragma unroll
        for (int set = 0; set < kSets; ++set)
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate)
            products[set][gate].add_words(words[set][gate][plane][step], plane, b[step]);
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      Product own;
#pragma unroll
      for (int order = 0; order < Product::kOrders; ++order) {
        std::int32_t picked[kSets];
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          const std::int32_t (&all)[4] = products[set][gate].sums[0][0][order];
          picked[set] = of.half ? all[2] : all[0];
        }
        own.sums[0][0][order][0] = of.set ? picked[kSets - 1] : picked[0];
      }
      sums[gate] = static_cast<Sum>(own.total(0, 0, 0));
    }
  }
};

// Shared memory: two states, W x of the next steps, tables.
template <class Cell, class Steps, int kWeightPlanes, int kStatePlanes, auto kKind>
__global__ void __launch_bounds__((kMostProductWarps<kWeightPlanes, kStatePlanes> * kWarpSize + kHelpers), 1)
    recurrent_row_kernel(const __grid_constant__ Steps a, const __grid_constant__ RowPlan plan) {
  constexpr int kGates = Cell::kGates, kSets = kRowSets<kWeightPlanes, kStatePlanes>;
  constexpr int kStateBytes = kStatePlanes * kRowChannels, kSlotBytes = kGates * kRowChannels * 2;
  using Sum = StateSum<kWeightPlanes, kStatePlanes, false>;
  using Lanes = std::conditional_t<kRowNarrow<kWeightPlanes, kStatePlanes>, NarrowLanes, RowLanes>;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % kWarpSize, warp = thread / kWarpSize;
  const bool multiplies = warp < plan.product_warps;
  const int helper = thread - plan.product_warps * kWarpSize;  // of threads that do not multiply
  const std::int64_t b = blockIdx.x, global_plane = a.rows * a.state_bytes;
  const int size = static_cast<int>(a.size), channels = static_cast<int>(a.channels);
  const int steps = static_cast<int>(a.state_bytes / kStepK);

  char* const states = dynamic_shared();
  char* const ring = states + 2 * kStateBytes;
  RowTables tables;
#pragma unroll
  for (int i = 0; i < Cell::kTables; ++i) {
    const RecurrentDeviceTable& from = a.arrays.lines[i];
    auto* const copy = reinterpret_cast<TableLine*>(states + plan.tables[i]);
    for (int k = thread; k < from.count; k += threads) copy[k] = from.lines[k];
    tables.tables[i] = {ptx::shared_address(copy), from.shift};
  }
  const RowChannel<kSets> own(warp, lane);
  RowOperand<kGates, kWeightPlanes, kSets> operand;
  operand.load(static_cast<const uint4*>(a.arrays.r.weights), warp * kSets, multiplies ? channels / kTileRows : 0,
               steps);
  // Lanes without a channel compute the last one's, and store nothing.
  const int channel = own.channel(lane), j = channel < channels ? channel : channels - 1;
  const bool valid = multiplies && channel < size && own.first_of_channel(lane);
  typename Cell::template Constants<Sum, typename Lanes::Shift, std::int32_t> constants{};
  if (multiplies) Cell::template load_constants<kKind>(a, j, constants);
  const auto cell = Cell::template cell_of<typename Lanes::Shift>(a);

  ptx::wait_for_earlier_kernels();
  const std::int64_t length = row_length(a.lengths, a.length_stride, b, a.steps), left = length - a.first;
  const int count = static_cast<int>(a.count), active = left < 0 ? 0 : left < count ? static_cast<int>(left) : count;
  char* const global_state = a.state + b * a.state_bytes;
  for (int i = thread; i < 2 * kStateBytes / 16; i += threads) {
    const int plane = i / (kRowChannels / 16), at = i % (kRowChannels / 16) * 16;
    *reinterpret_cast<uint4*>(states + 16 * i) =
        plane < kStatePlanes && at < steps * kStepK
            ? *reinterpret_cast<const uint4*>(global_state + plane * global_plane + at)
            : uint4{0, 0, 0, 0};
  }
  CellInputs<kGates, Sum> in{};
  if (valid) {
    in.state.h = load_planes<kStatePlanes>(global_state + j, global_plane) - a.h.zero;
    Cell::load_state(a, {b, a.first, length}, j, in);
  }
  const std::uint16_t* wx = a.wx + b * kGates * channels;  // of the next step to fetch
  const auto fetch = [&](int step) {
    for (int chunk = helper; chunk < kGates * channels / 8 && step < active; chunk += kHelpers)
      ptx::copy_async(ring + step % kRowAhead * kSlotBytes + 16 * chunk, wx + 8 * chunk, true);
    wx += a.batch * kGates * channels;
    ptx::copy_commit();
  };
  if (!multiplies)
    for (int step = 0; step < kRowAhead - 1; ++step) fetch(step);

  // Every step reads and writes at these addresses, so they are computed once.
  const ptx::SharedAddress operands = ptx::shared_address(states + 16 * (lane % 4));
  const ptx::SharedAddress own_state = ptx::shared_address(states + j), own_wx = ptx::shared_address(ring + 2 * j);
  for (int step = 0; step < active; ++step) {
    if (!multiplies) ptx::copy_wait<kRowAhead - 2>();
    __syncthreads();
    if (multiplies) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate)
        in.wx[gate] = ptx::load_shared_half(own_wx + step % kRowAhead * kSlotBytes + gate * channels * 2);
      operand.template multiply<kStatePlanes>(operands + step % 2 * kStateBytes, own, in.sums);
      const typename Cell::Outputs out = Cell::template compute<Lanes, kKind>(a, cell, tables, constants, in);
      in.state = out.state;
      if (valid) {
        const auto code = static_cast<std::uint32_t>(out.state.h + a.h.zero);
        const ptx::SharedAddress to = own_state + (step + 1) % 2 * kStateBytes;
        ptx::store_shared_byte(to, kStatePlanes == 1 ? code : code >> 8);
        if (kStatePlanes == 2) ptx::store_shared_byte(to + kRowChannels, code);
        Cell::store_gates(a, {b, a.first + step, length}, j, out);
      }
    } else {
      fetch(step + kRowAhead - 1);
      const char* const state = states + step % 2 * kStateBytes;
      for (int i = helper; step > 0 && i < size; i += kHelpers)
        store_state(a, {b, a.first + step - 1, length}, i,
                    load_planes<kStatePlanes>(state + i, kRowChannels) - a.h.zero);
    }
  }
  __syncthreads();
  if (multiplies) {
    if (valid) Cell::store_end(a, {b, a.first + count - 1, length}, j, in.state);
    return;
  }
  for (int i = helper; i < size; i += kHelpers) {
    const std::int32_t code = load_planes<kStatePlanes>(states + active % 2 * kStateBytes + i, kRowChannels);
    store_planes<kStatePlanes>(global_state + i, global_plane, code);
    for (int step = active > 0 ? active - 1 : 0; step < count; ++step) {
      const CellPlace place{b, a.first + step, length};
      store_state(a, place, i, code - a.h.zero);
      if (step >= active) Cell::store_gates(a, place, i, {});
    }
  }
}

// Returns false, and runs nothing, if the kernel is not for the cell's numbers.
template <class Cell, int kWeightPlanes, int kStatePlanes, auto... kKinds>
bool launch_row(const typename Cell::Steps& a, int device, cudaStream_t stream, CellKinds<kKinds...>) {
  void (*kernel)(typename Cell::Steps, RowPlan) = nullptr;
  ((a.kind == kKinds ? kernel = recurrent_row_kernel<Cell, typename Cell::Steps, kWeightPlanes, kStatePlanes, kKinds>
                     : kernel),
   ...);
  if (kernel == nullptr || (kRowNarrow<kWeightPlanes, kStatePlanes> && !a.narrow)) return false;
  RowPlan plan{};
  plan.product_warps = static_cast<int>(ceil_div(a.channels, kTileRows * kRowSets<kWeightPlanes, kStatePlanes>));
  std::int64_t bytes = 2 * kStatePlanes * kRowChannels + kRowAhead * Cell::kGates * kRowChannels * 2;
  for (int i = 0; i < Cell::kTables; ++i) {
    plan.tables[i] = static_cast<int>(bytes);
    bytes += std::int64_t{8} * a.arrays.lines[i].count;
    if (bytes > most_shared_bytes(device)) return false;
  }
  const int warps = plan.product_warps + kHelperWarps;
  LaunchShape shape{dim3(static_cast<unsigned>(a.batch)), dim3(static_cast<unsigned>(warps * kWarpSize)),
                    static_cast<std::size_t>(bytes)};
  shape.overlap = a.overlap;
  launch(Cell::kRow, kernel, shape, stream, a, plan);
  return true;
}

// Runs all of a.count steps, if a thread block holds R and what the cell needs; a.state gets the last states.
template <class Cell>
bool launch_row(const DeviceLayer& layer, const typename Cell::Steps& a, int device, cudaStream_t stream) {
  if (layer.hidden_size > kRowChannels) return false;
  constexpr typename Cell::NarrowKinds kKinds{};
  if (layer.weight_planes == 1)
    return layer.state_planes == 1 ? launch_row<Cell, 1, 1>(a, device, stream, kKinds)
                                   : launch_row<Cell, 1, 2>(a, device, stream, kKinds);
  if constexpr (fits_row_registers(Cell::kGates, 2))
    return layer.state_planes == 1 ? launch_row<Cell, 2, 1>(a, device, stream, kKinds)
                                   : launch_row<Cell, 2, 2>(a, device, stream, typename Cell::SmallKinds{});
  return false;
}

}  // namespace qcore
