#pragma once

#include <algorithm>

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/quantize_activations.cuh"
#include "linear/problem.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/memory.h"

// Few rows of x. A block of threads computes y for two panels, 32 columns n, and reads their weights once. Blocks of k
// are dealt to its warps in rounds: the warps sum products of codes (or of floats) over their blocks, in any order for
// integers, and leave the sums in shared memory; then one thread per output adds them to y, block after block, in the
// order that the reference has. While it does, the next round's weights are on their way into registers.
namespace qcore::gemv {

// Rows of activations as fp32, block after block; a block is followed by zeros up to `padded_block`. For weights of 4
// bits a value is multiplied by what nibble_weight() makes of its code too large by.
struct FloatRows {
  float* values;  // [M, P * padded_block]
  std::int64_t rows, blocks, padded_block;
};

// A nibble that is masked but not shifted is its code times this power of two; `k` within a step of 8.
__host__ __device__ constexpr float nibble_weight(int k) { return (k % 2 ? 256.0f : 1.0f) * (k / 4 ? 16.0f : 1.0f); }

struct Tuning {
  static constexpr int kWarps = 8;
  static constexpr int kLoads = 8;  // 16-byte loads of weights in flight per thread
  static constexpr int kSharedBytes = 48 << 10;
  static constexpr int kMaxRows = 16;      // of x, with integer activations
  static constexpr int kMaxFloatRows = 8;  // with float ones
};

constexpr int kThreads = Tuning::kWarps * kWarpSize;
constexpr int kChunk = 32;  // k of one step of a warp
constexpr int kColumns = 2 * PackedLayout::kPanelRows;

constexpr int chunk_loads(int bits) { return bits == 8 ? 2 : 1; }
constexpr int batch_chunks(int bits) { return Tuning::kLoads / chunk_loads(bits); }

// How blocks of k are dealt out. A block that is longer than a warp's batch is cut into segments; their sums are added
// before anything is rounded.
struct SplitKSchedule {
  int block_chunks;
  int segment_chunks;  // of every segment but a block's last
  int block_segments;
  int warp_segments;      // that a warp sums in one round: more than one only if blocks are not cut
  std::int64_t segments;  // of K
};

inline int slots(const SplitKSchedule& schedule) { return Tuning::kWarps * schedule.warp_segments; }

// The weight's parameters of one segment's block, for the 32 columns, and the sums of the segment's stored codes.
struct ColumnParameters {
  float scales[kColumns], offsets[kColumns];
  std::int32_t code_sums[kColumns];
};

// Dynamic shared memory: parameters and terms in two copies, of this round and the next.
struct SharedLayout {
  int slots, rows;
  __host__ __device__ int terms_at(int copy) const {
    return (2 * static_cast<int>(sizeof(ColumnParameters)) + copy * rows * static_cast<int>(sizeof(ActivationTerms))) *
           slots;
  }
  __host__ __device__ int sums_at() const { return terms_at(2); }
  __host__ __device__ int bytes() const { return sums_at() + slots * rows * kColumns * 4; }
};

inline SplitKSchedule plan_split_k(const DeviceWeight& w, std::int64_t padded_block, int rows) {
  SplitKSchedule schedule{};
  schedule.block_chunks = static_cast<int>(padded_block / kChunk);
  schedule.segment_chunks = std::min(schedule.block_chunks, batch_chunks(w.bits));
  schedule.block_segments = static_cast<int>(ceil_div(schedule.block_chunks, schedule.segment_chunks));
  schedule.warp_segments = schedule.block_segments > 1 ? 1 : batch_chunks(w.bits) / schedule.segment_chunks;
  schedule.segments = w.blocks * schedule.block_segments;
  while (schedule.warp_segments > 1 && SharedLayout{slots(schedule), rows}.bytes() > Tuning::kSharedBytes)
    --schedule.warp_segments;
  return schedule;
}

struct IntegerArguments {
  QuantizedRows<std::int8_t> x;  // codes and terms; padded_block a multiple of 32
  std::int64_t first_row;        // of x's rows in out.y
  DeviceWeight w;                // its sums are not used: the kernel makes them on the way
  DeviceOutput out;
  SplitKSchedule schedule;
  bool activation_offsets;
};

struct FloatArguments {
  FloatRows x;  // padded_block a multiple of 32
  std::int64_t first_row;
  DeviceWeight w;
  DeviceOutput out;
  SplitKSchedule schedule;
};

// Makes them of all rows of x.
void gather_rows(const RowView& x, const DeviceWeight& w, const FloatRows& out, cudaStream_t stream);

// y = act(x W^T + bias) for up to Tuning::kMaxRows, kMaxFloatRows rows.
void run_integer(const IntegerArguments& arguments, cudaStream_t stream);
void run_float(const FloatArguments& arguments, cudaStream_t stream);

// A thread's place in the fragments of a warp: every lane loads 16 bytes, one step of four neighboring columns n. The
// lanes of one `group` share the columns, those of one `quad` the steps; so that the words are operands of
// ptx::mma_u8s8 as they come, whose row `group` is column 4*group + i of n, i the word.
struct Lane {
  int warp, lane, group, quad;
  __device__ Lane()
      : warp(static_cast<int>(threadIdx.x) / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize),
        group(lane / 4),
        quad(lane % 4) {}
};

// The segments that a warp sums in one round, chunk after chunk.
struct Cursor {
  std::int64_t p;
  int chunk, end;  // of the block
  int left;        // segments, this one included

  __device__ Cursor(const SplitKSchedule& schedule, std::int64_t blocks, std::int64_t round, int warp) {
    const std::int64_t first = (round * Tuning::kWarps + warp) * schedule.warp_segments;
    p = first / schedule.block_segments;
    chunk = static_cast<int>(first % schedule.block_segments) * schedule.segment_chunks;
    end = chunk + schedule.segment_chunks < schedule.block_chunks ? chunk + schedule.segment_chunks
                                                                  : schedule.block_chunks;
    left = p >= blocks                           ? 0
           : blocks - p < schedule.warp_segments ? static_cast<int>(blocks - p)
                                                 : schedule.warp_segments;
  }
  __device__ bool valid() const { return left > 0; }
  // True if that was the segment's last chunk.
  __device__ bool next() {
    if (++chunk < end) return false;
    ++p;
    chunk = 0;  // a warp that has another segment has whole blocks
    --left;
    return true;
  }
};

// Where a lane's loads start: two panels, of which the second may not exist.
struct WeightColumn {
  const uint4* words;  // [steps, 4] of the lane's panel, at the lane's columns
  std::int64_t panel;
  bool exists;

  __device__ WeightColumn(const DeviceWeight& w, const Lane& lane) {
    panel = static_cast<std::int64_t>(blockIdx.x) * 2 + lane.group / 4;
    exists = panel < w.panels;
    words = reinterpret_cast<const uint4*>(w.words) + (exists ? panel : 0) * w.steps * 4 + lane.group % 4;
  }
};

// The lane's 16 bytes of the steps that hold its 8 k of a chunk, k = 8*quad ..: one for 4 bits, two for 8.
template <int kBits>
__device__ __forceinline__ void load_chunk(uint4 (&words)[chunk_loads(kBits)], const DeviceWeight& w,
                                           const WeightColumn& column, const Cursor& at, int quad) {
  constexpr int kSteps = chunk_loads(kBits);
  const std::int64_t steps = w.block_steps(at.p), first = at.p * w.steps_per_block;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const std::int64_t step = static_cast<std::int64_t>(at.chunk) * (4 * kSteps) + quad * kSteps + i;
    words[i] = uint4{0, 0, 0, 0};
    if (column.exists && step < steps) words[i] = ptx::load_once(column.words + (first + step) * 4);
  }
}

// Starts the copies of one segment's parameters. Columns of a panel that does not exist get zeros.
__device__ __forceinline__ void copy_parameters(ColumnParameters& to, const DeviceWeight& w, std::int64_t p, int lane) {
  const int array = lane / 8, unit = lane % 8;
  const float* from = array == 0 ? w.scales : w.offsets;
  if (array > 1 || !from) return;
  float* target = array == 0 ? to.scales : to.offsets;
  const std::int64_t panel = static_cast<std::int64_t>(blockIdx.x) * 2 + unit / 4;
  const bool exists = panel < w.panels;
  ptx::copy_async(target + 4 * unit, from + w.parameter_index(exists ? panel : 0, p, 4 * (unit % 4)), exists);
}

}  // namespace qcore::gemv
