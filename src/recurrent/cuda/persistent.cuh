#pragma once

#include "recurrent/cuda/device_cell.cuh"
#include "recurrent/cuda/persistent_plan.h"
#include "recurrent/cuda/state_product.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_cluster.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

// All steps of a part in one launch: clusters of thread blocks keep R in shared memory.
namespace qcore {

constexpr int kPersistentThreads = kPersistentWarps * kWarpSize;

// One cell of a thread in each step.
struct PersistentItem {
  int column, within;  // row in the cluster, channel in the block
  std::int64_t b, j, length;
  bool valid;
};

// The states in shared memory: of two, a step reads one and writes the other, in all blocks of the cluster. A state's
// barrier counts its bytes. A state that others still read is never overwritten: its writer first waits for their
// states of the step before, which they send after reading.
template <int kPlanes>
class ClusterStates {
 public:
  __device__ __forceinline__ ClusterStates(char* shared, const PersistentPlan& plan, int bytes_of_state)
      : barriers_(reinterpret_cast<ptx::Barrier*>(shared)),
        states_(shared + kBarrierBytes),
        plan_(plan),
        plane_bytes_(kClusterRows * plan.column_bytes),
        bytes_(bytes_of_state) {}

  __device__ __forceinline__ int plane_bytes() const { return plane_bytes_; }
  __device__ __forceinline__ char* at(std::int64_t step) const { return states_ + (step & 1) * kPlanes * plane_bytes_; }

  // Every thread; steps count from 0. What was written before it is seen by the block.
  __device__ __forceinline__ void start() const {
    if constexpr (ptx::kHasClusters) {
      if (plan_.cluster > 1) {
        if (threadIdx.x < 2) ptx::barrier_init(barriers_[threadIdx.x], 1);
        return ptx::cluster_sync();
      }
    }
    __syncthreads();
  }

  // Every thread: the state that the step reads is there, and the next one may come, unless there is none.
  __device__ __forceinline__ void wait(std::int64_t step, bool ends) const {
    if constexpr (ptx::kHasClusters) {
      if (plan_.cluster > 1) {
        if (!ends && threadIdx.x == 0) ptx::barrier_expect(barriers_[(step + 1) & 1], bytes_);
        if (step > 0) ptx::barrier_wait(barriers_[step & 1], static_cast<unsigned>((step - 1) >> 1) & 1u);
        return;
      }
    }
    if (step > 0) __syncthreads();
  }

  // 16 neighboring lanes have 16 codes, and each the words of its four, of the state after the step. All lanes call.
  __device__ __forceinline__ void send(std::int64_t step, int plane, int place, std::uint32_t word) const {
    const int lane = static_cast<int>(threadIdx.x) % kTileRows;
    uint4 words;
    words.x = __shfl_sync(kAllLanes, word, 0, kTileRows);
    words.y = __shfl_sync(kAllLanes, word, 4, kTileRows);
    words.z = __shfl_sync(kAllLanes, word, 8, kTileRows);
    words.w = __shfl_sync(kAllLanes, word, 12, kTileRows);
    char* to = at(step + 1) + plane * plane_bytes_ + place;
    if (lane >= plan_.cluster) return;
    if constexpr (ptx::kHasClusters) {
      if (plan_.cluster > 1) return ptx::cluster_store(to, lane, words, barriers_[(step + 1) & 1]);
    }
    *reinterpret_cast<uint4*>(to) = words;
  }

 private:
  ptx::Barrier* barriers_;
  char* states_;
  const PersistentPlan& plan_;
  int plane_bytes_, bytes_;
};

// Shared memory: barriers, two states, the block's rows of R, partial sums.
template <class Cell, class Steps, int kWeightPlanes, int kStatePlanes, auto kKind>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    recurrent_persistent_kernel(const __grid_constant__ Steps a, const __grid_constant__ PersistentPlan plan) {
  constexpr int kGates = Cell::kGates, kThreads = kPersistentThreads, kWarps = kPersistentWarps;
  constexpr bool kLoads = kKind == Cell::Kind::any;  // a channel's constants in each step: they fill many registers
  using Sum = StateSum<kWeightPlanes, kStatePlanes, kKind == Cell::Kind::any>;
  using Inputs = CellInputs<kGates, Sum>;
  using Constants = typename Cell::template Constants<Sum>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int rank = static_cast<int>(blockIdx.x) % plan.cluster;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) / plan.cluster * kClusterRows;
  const int all_tiles = static_cast<int>(a.channels / kTileRows), first_tile = rank * plan.channel_tiles;
  const int left = all_tiles - first_tile;
  const int channel_tiles = left < plan.channel_tiles ? left : plan.channel_tiles;
  const int channels = channel_tiles * kTileRows;
  const std::int64_t global_plane = a.rows * a.state_bytes;
  const auto steps = static_cast<int>(a.state_bytes / kStepK);

  char* shared = dynamic_shared();
  const ClusterStates<kStatePlanes> states(shared, plan, kStatePlanes * kClusterRows * static_cast<int>(a.channels));
  const int plane_bytes = states.plane_bytes(), tile_words = kWeightPlanes * steps * 64;
  auto* weights = reinterpret_cast<uint4*>(shared + kBarrierBytes + 2 * kStatePlanes * plane_bytes);
  const Partials<Sum> partials{reinterpret_cast<Sum*>(weights + kGates * plan.channel_tiles * tile_words),
                               kGates * channel_tiles, plan.slices, kClusterRows};

  const uint4* all_weights =
      static_cast<const uint4*>(a.arrays.r.weights) + std::int64_t{kGates} * first_tile * tile_words;
  for (int i = thread; i < kGates * channel_tiles * tile_words; i += kThreads) weights[i] = all_weights[i];
  ptx::wait_for_earlier_kernels();
  for (int i = thread; i < kStatePlanes * kClusterRows * steps * 4; i += kThreads) {
    const int unit = i % (4 * steps), row = i / (4 * steps) % kClusterRows, plane = i / (4 * steps) / kClusterRows;
    *reinterpret_cast<uint4*>(states.at(0) + plane * plane_bytes + row * plan.column_bytes + 16 * unit) =
        *reinterpret_cast<const uint4*>(a.state + plane * global_plane + (first_row + row) * a.state_bytes + 16 * unit);
  }

  const auto item_at = [&](int i) {
    PersistentItem item;
    item.column = i / channels;
    item.within = i - item.column * channels;
    item.b = first_row + item.column;
    item.j = std::int64_t{first_tile} * kTileRows + item.within;
    item.valid = item.b < a.batch && item.j < a.size;
    item.length = item.valid ? row_length(a.lengths, a.length_stride, item.b, a.steps) : 0;
    return item;
  };
  const int items = channels * kClusterRows;  // whole warps
  // A thread's first item, the only one in most blocks, does not wait for its part of W x, nor for its state c.
  Inputs first{};
  PersistentItem first_item{};
  if (thread < items) first_item = item_at(thread);
  Constants first_constants{};
  if (first_item.valid) {
    load_wx(a, a.first, first_item.b, first_item.j, first.wx);
    Cell::load_state(a, {first_item.b, a.first, first_item.length}, first_item.j, first);
    if (!kLoads) Cell::template load_constants<kKind>(a, first_item.j, first_constants);
  }
  states.start();

  ByteOperands from;
  from.weights = weights + lane;
  from.steps = steps;
  from.input_plane = plane_bytes;
  from.input_tile = 0;
  const int warp = thread / kWarpSize;
  const StateUnit first_unit = unit_at(warp, steps, partials);
  for (std::int64_t step = 0; step < a.count; ++step) {
    const bool ends = step + 1 == a.count;
    states.wait(step, ends);
    const char* state = states.at(step);
    from.inputs = state + lane / 4 * plan.column_bytes + 16 * (lane % 4);
    StateUnit unit = first_unit;
    for (int i = warp; i < partials.tiles * partials.slices; i += kWarps) {
      if (i != warp) unit = unit_at(i, steps, partials);
      multiply_state<kWeightPlanes, kStatePlanes, 1, false>(from, unit, partials);
    }
    __syncthreads();

    PersistentItem item = first_item;
    Inputs in = first;
    Constants constants = first_constants;
    for (int i = thread; i < items; i += kThreads) {
      if (i != thread) item = item_at(i);
      const CellPlace place{item.b, a.first + step, item.length};
      if (i != thread && item.valid) {
        load_wx(a, a.first + step, item.b, item.j, in.wx);
        Cell::load_state(a, place, item.j, in);
        if (!kLoads) Cell::template load_constants<kKind>(a, item.j, constants);
      }
      typename Cell::Outputs out{};
      const int at = item.column * plan.column_bytes + static_cast<int>(item.j);
      if (item.valid) {
        if (kLoads) Cell::template load_constants<kKind>(a, item.j, constants);
        sum_partials(partials, item.within / kTileRows * kGates, item.column, item.within % kTileRows, in.sums);
        in.state.h = load_planes<kStatePlanes>(state + at, plane_bytes) - a.h.zero;
        out = Cell::template evaluate<kKind>(a, place, constants, in);
        if (i == thread) first.state = out.state;
      }
#pragma unroll
      for (int plane = 0; plane < kStatePlanes; ++plane) {
        const std::uint32_t word = gather_plane<kStatePlanes>(out.state.h + a.h.zero, plane);
        if (!ends)
          states.send(step, plane, at - lane % kTileRows, word);
        else if (lane % 4 == 0)
          *reinterpret_cast<std::uint32_t*>(a.state + plane * global_plane + item.b * a.state_bytes + item.j) = word;
      }
      if (item.valid) Cell::store(a, place, item.j, out);
    }
    if (first_item.valid && !ends) load_wx(a, a.first + step + 1, first_item.b, first_item.j, first.wx);
  }
}

template <class Cell, int kWeightPlanes, int kStatePlanes, auto... kKinds>
void launch_persistent(const typename Cell::Steps& a, const PersistentPlan& plan, cudaStream_t stream,
                       CellKinds<kKinds...>) {
  void (*kernel)(typename Cell::Steps, PersistentPlan) = nullptr;
  ((a.kind == kKinds
        ? kernel = recurrent_persistent_kernel<Cell, typename Cell::Steps, kWeightPlanes, kStatePlanes, kKinds>
        : kernel),
   ...);
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.batch, kClusterRows) * plan.cluster)),
                    dim3(kPersistentThreads), static_cast<std::size_t>(plan.shared_bytes)};
  shape.cluster = dim3(static_cast<unsigned>(plan.cluster));
  shape.overlap = a.overlap;
  launch(Cell::kPersistent, kernel, shape, stream, a, plan);
}

// Runs all of a.count steps; a.state gets the last states.
template <class Cell>
void launch_persistent(const DeviceLayer& layer, const typename Cell::Steps& a, const PersistentPlan& plan,
                       cudaStream_t stream) {
  constexpr typename Cell::PersistentKinds kKinds{};
  if (layer.weight_planes == 1)
    layer.state_planes == 1 ? launch_persistent<Cell, 1, 1>(a, plan, stream, kKinds)
                            : launch_persistent<Cell, 1, 2>(a, plan, stream, kKinds);
  else
    layer.state_planes == 1 ? launch_persistent<Cell, 2, 1>(a, plan, stream, kKinds)
                            : launch_persistent<Cell, 2, 2>(a, plan, stream, kKinds);
}

}  // namespace qcore
