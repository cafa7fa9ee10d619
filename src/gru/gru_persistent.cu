#include <algorithm>
#include <type_traits>

#include "gru/device_cell.cuh"
#include "gru/state_product.cuh"
#include "gru/step_kernels.cuh"
#include "runtime/cuda_launch.h"
#include "runtime/memory.h"
#include "runtime/ptx_cluster.cuh"

namespace qcore {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarpSize;
constexpr int kGates = 3;

// Sums of few k fit in int32 if nothing is multiplied by 256.
template <int kWeightPlanes, int kStatePlanes>
using PartialSum = std::conditional_t<kWeightPlanes + kStatePlanes == 2, std::int32_t, std::int64_t>;

std::int64_t weight_bytes(int channel_tiles, int planes, std::int64_t state_bytes) {
  return std::int64_t{1} * kGates * channel_tiles * kGruRows * planes * state_bytes;
}

// One cell of a thread in each step.
struct Item {
  int column, within;  // row in the cluster, channel in the block
  std::int64_t b, j, length;
  bool valid;
};

// Shared memory: the block's rows of R, then two states, of which a step reads one and writes the other in all blocks
// of the cluster, then partial sums. Clusters have 8 * kColumns rows each.
template <int kWeightPlanes, int kStatePlanes, int kColumns>
__global__ void __launch_bounds__(kThreads, 1)
    gru_persistent_kernel(const __grid_constant__ GruSteps a, const PersistentPlan plan) {
  using Sum = PartialSum<kWeightPlanes, kStatePlanes>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int rank = static_cast<int>(blockIdx.x) % plan.cluster;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) / plan.cluster * 8 * kColumns;
  const int all_tiles = static_cast<int>(a.channels / kGruRows), first_tile = rank * plan.channel_tiles;
  const int left = all_tiles - first_tile,
            channel_tiles = left < plan.channel_tiles ? (left > 0 ? left : 0) : plan.channel_tiles;
  const int channels = channel_tiles * kGruRows;
  const int plane_bytes = 8 * kColumns * plan.column_bytes, state_bytes = kStatePlanes * plane_bytes;
  const std::int64_t global_plane = a.rows * a.state_bytes;
  const auto steps = static_cast<int>(a.state_bytes / kGruStepK);

  char* shared = dynamic_shared();
  auto* weights = reinterpret_cast<uint4*>(shared);
  const int tile_words = kWeightPlanes * steps * 64;
  char* states =
      shared + std::int64_t{kGates} * plan.channel_tiles * tile_words * static_cast<std::int64_t>(sizeof(uint4));
  const Partials<Sum> partials{reinterpret_cast<Sum*>(states + 2 * state_bytes), kGates * channel_tiles, plan.slices,
                               8 * kColumns};

  const uint4* all_weights = static_cast<const uint4*>(a.arrays.r) + std::int64_t{kGates} * first_tile * tile_words;
  for (int i = thread; i < kGates * channel_tiles * tile_words; i += kThreads) weights[i] = all_weights[i];
  for (int i = thread; i < kStatePlanes * 8 * kColumns * steps * 4; i += kThreads) {
    const int unit = i % (4 * steps), row = i / (4 * steps) % (8 * kColumns), plane = i / (4 * steps) / (8 * kColumns);
    *reinterpret_cast<uint4*>(states + plane * plane_bytes + row * plan.column_bytes + 16 * unit) =
        *reinterpret_cast<const uint4*>(a.state + plane * global_plane + (first_row + row) * a.state_bytes + 16 * unit);
  }

  const auto item_at = [&](int i) {
    Item item;
    item.column = i / channels;
    item.within = i - item.column * channels;
    item.b = first_row + item.column;
    item.j = std::int64_t{first_tile} * kGruRows + item.within;
    item.valid = item.b < a.batch && item.j < a.size;
    item.length = item.valid ? row_length(a.lengths, a.length_stride, item.b, a.steps) : 0;
    return item;
  };
  const int items = channels * 8 * kColumns;  // whole warps
  // A thread's first item, the only one in most blocks, does not wait for its part of W x.
  CellInputs first{};
  Item first_item{};
  if (thread < items) first_item = item_at(thread);
  if (first_item.valid) load_wx(a, a.first, first_item.b, first_item.j, first.wx);
  if (plan.cluster > 1) {
    ptx::cluster_arrive();  // nobody stores to a block that has not started
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }

  ByteOperands from;
  from.weights = weights + lane;
  from.steps = steps;
  from.input_plane = plane_bytes;
  from.input_tile = 8 * plan.column_bytes;
  for (std::int64_t step = a.first; step < a.first + a.count; ++step) {
    const int turn = static_cast<int>((step - a.first) & 1);
    char* state = states + turn * state_bytes;
    char* next = states + (1 - turn) * state_bytes;
    const bool ends = step + 1 == a.first + a.count;
    from.inputs = state + lane / 4 * plan.column_bytes + 16 * (lane % 4);
    multiply_state<kWeightPlanes, kStatePlanes, kColumns>(from, partials);
    __syncthreads();

    Item item = first_item;
    CellInputs in = first;
    for (int i = thread;; i += kThreads) {
      if (i != thread && i < items) {
        item = item_at(i);
        if (item.valid) load_wx(a, step, item.b, item.j, in.wx);
      }
      CellOutputs out{};
      const CellPlace place{item.b, step, item.length};
      if (i < items) {
        const int at = item.column * plan.column_bytes + static_cast<int>(item.j);
        if (item.valid) {
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate)
            in.sums[gate] =
                sum_partials(partials, item.within / kGruRows * kGates + gate, item.column, item.within % kGruRows);
          in.h = load_planes<kStatePlanes>(state + at, plane_bytes) - a.h.zero;
          out = evaluate_cell(a, place, item.j, in);
        }
        // The new state goes to all blocks.
#pragma unroll
        for (int plane = 0; plane < kStatePlanes; ++plane) {
          const std::uint32_t word = gather_plane<kStatePlanes>(out.h + a.h.zero, plane);
          auto* to = reinterpret_cast<std::uint32_t*>(next + plane * plane_bytes + at - lane % 4);
          if (plan.cluster == 1) {
            if (lane % 4 == 0) *to = word;
          } else {
            for (int other = lane % 4; other < plan.cluster; other += 4) ptx::cluster_store(to, other, word);
          }
          if (ends && lane % 4 == 0)
            *reinterpret_cast<std::uint32_t*>(a.state + plane * global_plane + item.b * a.state_bytes + item.j) = word;
        }
      }
      const bool done = i + kThreads >= items;
      if (done && plan.cluster > 1) ptx::cluster_arrive();
      // No other block waits for this.
      if (i < items && item.valid) store_cell(a, place, item.j, out);
      if (done) break;
    }
    if (first_item.valid && !ends) load_wx(a, step + 1, first_item.b, first_item.j, first.wx);
    if (plan.cluster > 1)
      ptx::cluster_wait();
    else
      __syncthreads();
  }
}

template <int kWeightPlanes, int kStatePlanes>
void run(const GruSteps& a, const PersistentPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.batch, plan.columns) * plan.cluster)), dim3(kThreads),
                    static_cast<std::size_t>(plan.shared_bytes)};
  shape.cluster = dim3(static_cast<unsigned>(plan.cluster));
  launch("gru_persistent",
         plan.columns == 8 ? gru_persistent_kernel<kWeightPlanes, kStatePlanes, 1>
                           : gru_persistent_kernel<kWeightPlanes, kStatePlanes, 2>,
         shape, stream, a, plan);
}

}  // namespace

PersistentPlan plan_persistent(std::int64_t size, std::int64_t batch, int weight_planes, int state_planes,
                               std::int64_t most_shared_bytes, int largest_cluster) {
  const std::int64_t tiles = gru_channels(size) / kGruRows, row_bytes = gru_row_bytes(size);
  const int steps = static_cast<int>(row_bytes / kGruStepK);
  const std::int64_t sum_bytes = weight_planes + state_planes == 2 ? 4 : 8;
  constexpr int kManyRows = 128;  // what clusters that run at once have, with 8 each
  PersistentPlan plan;
  plan.cluster = largest_cluster;
  while (plan.cluster > 1 && plan.cluster > tiles) plan.cluster /= 2;
  plan.channel_tiles = static_cast<int>(ceil_div(tiles, plan.cluster));
  // 64 bytes off a multiple of 128: two columns of a 16-byte load then lie in different banks.
  plan.column_bytes = static_cast<int>(row_bytes + (steps % 2 ? 0 : kGruStepK));
  const int block_tiles = kGates * plan.channel_tiles;
  for (plan.columns = batch > kManyRows ? 16 : 8; plan.columns >= 8; plan.columns -= 8)
    for (plan.slices = std::clamp(kWarps / block_tiles, 1, steps); plan.slices >= 1; --plan.slices) {
      plan.shared_bytes = weight_bytes(plan.channel_tiles, weight_planes, row_bytes) +
                          std::int64_t{2} * state_planes * plan.columns * plan.column_bytes +
                          partial_count(block_tiles, plan.slices, plan.columns) * sum_bytes;
      if (plan.shared_bytes <= most_shared_bytes) return plan;
    }
  return {};
}

void run_persistent(const GruSteps& a, const PersistentPlan& plan, int weight_planes, int state_planes,
                    cudaStream_t stream) {
  if (weight_planes == 1)
    state_planes == 1 ? run<1, 1>(a, plan, stream) : run<1, 2>(a, plan, stream);
  else
    state_planes == 1 ? run<2, 1>(a, plan, stream) : run<2, 2>(a, plan, stream);
}

}  // namespace qcore
