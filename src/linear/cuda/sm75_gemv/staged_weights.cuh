#pragma once

#include "linear/cuda/sm75_gemv/gemv_kernels.cuh"
#include "runtime/cuda/ptx_cluster.cuh"

// The weights of a thread block's 32 columns and their scales on their way to shared memory: in stages, runs of k of
// both panels, so many ahead as fit. From 9.0 on the copy engine brings them. Loads by threads would fill the queue of
// the multiprocessor's memory unit, behind which the kernel in front, which may still run there, waits for its x.
namespace qcore::gemv {

// How the stages lie in shared memory. A round is what the thread block multiplies at once: as many neighboring chunks
// of every warp as it has stages.
struct StagedLayout {
  int warps, round;  // stages of a round
  int stage_steps, stages, slots;
  int barriers_at, scales_at, scales_stride, stages_at, bytes;

  StagedLayout() = default;
  // Behind `first` bytes. The scales of `w` follow one after the other in both panels.
  StagedLayout(const DeviceWeight& w, int warps_, int first)
      : warps(warps_), round(batch_chunks(w.bits)), stage_steps(warps_ * 4 * chunk_loads(w.bits)) {
    stages = static_cast<int>(ceil_div(w.steps, stage_steps));
    barriers_at = static_cast<int>(round_up(first, 16));
    scales_at = barriers_at + kMaxSlots * 8 + 16;
    scales_stride = static_cast<int>(round_up(w.blocks, 2) + 1) * 64;  // the second panel's take the other banks
    stages_at = static_cast<int>(round_up(scales_at + 2 * scales_stride, 128));
  }
  __host__ __device__ int stage_bytes() const { return 2 * stage_steps * 64; }
  // Takes as many slots as there are stages, or as fit. Returns false if those are fewer than a round needs.
  bool fill(int most_bytes) {
    const int fitting = std::min((most_bytes - stages_at) / stage_bytes(), kMaxSlots);
    slots = std::min(stages, fitting);
    bytes = stages_at + slots * stage_bytes();
    return stages_at < most_bytes && slots >= std::min(stages, round);
  }
  static constexpr int kMaxSlots = 30;
};

// kHeld: chunks of a round that wait in registers; the others are read where they lie.
template <int kBits, int kHeld>
class StagedWeights {
 public:
  static constexpr int kLoads = chunk_loads(kBits), kChunks = batch_chunks(kBits);

  __device__ __forceinline__ StagedWeights(char* memory, const StagedLayout& layout)
      : memory_(memory), layout_(layout) {}

  // Asks for the scales and for as many stages as there are slots. All threads call.
  __device__ __forceinline__ void start(const DeviceWeight& w, const uint4* first_words, const float* first_scales) {
    const std::int64_t first_panel = static_cast<std::int64_t>(blockIdx.x) * 2;
    steps_ = static_cast<int>(w.steps);
    panels_ = w.panels - first_panel < 2 ? 1 : 2;
    words_ = first_words + first_panel * w.steps * 4;
    const float* scales = first_scales + w.parameter_index(first_panel, 0, 0);
    const int scale_bytes = static_cast<int>(w.blocks) * 64;
    if constexpr (ptx::kHasClusters) {
      if (copies() && lane() == 0) {
        for (int i = 0; i <= layout_.slots; ++i) ptx::barrier_init(barrier(i), 1);
        ptx::barriers_are_ready();
        ptx::barrier_expect(barrier(layout_.slots), panels_ * scale_bytes);
        for (int panel = 0; panel < panels_; ++panel)
          ptx::bulk_copy(memory_ + layout_.scales_at + panel * layout_.scales_stride,
                         reinterpret_cast<const char*>(scales) + panel * scale_bytes, scale_bytes,
                         barrier(layout_.slots), 1u);
      }
      __syncwarp();
    } else {
      for (int panel = 0; panel < panels_; ++panel)
        copy_by_threads(memory_ + layout_.scales_at + panel * layout_.scales_stride,
                        reinterpret_cast<const char*>(scales) + panel * scale_bytes, scale_bytes);
    }
    copy_stages(0, layout_.slots);
    if constexpr (ptx::kHasClusters) __syncthreads();  // the barriers are seen
  }

  // Takes a round's first chunks into registers when they are there. All threads call.
  __device__ __forceinline__ void fetch(int round, const Lane& lane) {
    const int first = lane.warp * kChunks, stage = round * kChunks + first / layout_.warps;
    if constexpr (ptx::kHasClusters) {
      if (stage < layout_.stages)
        ptx::barrier_wait(barrier(stage % layout_.slots), static_cast<unsigned>(stage / layout_.slots) & 1u);
    } else {
      ptx::copy_wait<0>();
      __syncthreads();
    }
    const int unit = (first % layout_.warps * 4 * kLoads + lane.quad) * 4 + lane.group % 4;
    place_ = memory_ + layout_.stages_at + stage % layout_.slots * layout_.stage_bytes() +
             lane.group / 4 * (layout_.stage_steps * 64) + unit * 16;
    if (stage < layout_.stages) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) read(i, held_[i]);
    }
  }

  // A panel's scales.
  __device__ __forceinline__ const float* scales(int panel) const {
    return reinterpret_cast<const float*>(memory_ + layout_.scales_at + panel * layout_.scales_stride);
  }
  // Whether stages take the places of others.
  __device__ __forceinline__ bool turns() const { return layout_.stages > layout_.slots; }

  // Waits for the scales. A barrier must follow where the other threads' copies are needed, before 9.0.
  __device__ __forceinline__ void wait_for_scales() const {
    if constexpr (ptx::kHasClusters) ptx::barrier_wait(barrier(layout_.slots), 0);
  }

  // The words of chunk i of the round: of 4 bits those of its k 8*quad .., of 8 bits of its k 4*quad .. and 16 + 4*quad
  // ..
  __device__ __forceinline__ void get(int i, uint4 (&words)[kLoads]) const {
    if (i < kHeld) {
#pragma unroll
      for (int j = 0; j < kLoads; ++j) words[j] = held_[i < kHeld ? i : 0][j];
    } else {
      read(i, words);
    }
  }

  // Asks for the stages that take the place of a round's. All threads call, after a barrier behind the last get().
  __device__ __forceinline__ void refill(int round) const {
    copy_stages(round * kChunks + layout_.slots, (round + 1) * kChunks + layout_.slots);
  }

 private:
  __device__ __forceinline__ ptx::Barrier& barrier(int i) const {
    return reinterpret_cast<ptx::Barrier*>(memory_ + layout_.barriers_at)[i];
  }
  // Whether the calling warp speaks to the copy engine: the last one, because the first ones add sums.
  __device__ __forceinline__ bool copies() const {
    return static_cast<int>(threadIdx.x) / kWarpSize == layout_.warps - 1;
  }
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
  __device__ __forceinline__ void read(int i, uint4 (&words)[kLoads]) const {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) words[j] = *reinterpret_cast<const uint4*>(place_ + (i * 4 * kLoads + 4 * j) * 64);
  }
  __device__ __forceinline__ void copy_stages(int begin, int end) const {
    if (ptx::kHasClusters && !copies()) return;
    // The copy engine's stages are dealt to the lanes of one warp.
    constexpr int kLanes = ptx::kHasClusters ? kWarpSize : 1;
#pragma unroll 1
    for (int stage = begin + (kLanes > 1 ? lane() : 0); stage < end && stage < layout_.stages; stage += kLanes) {
      const int first = stage * layout_.stage_steps, left = steps_ - first;
      const int bytes = (left < layout_.stage_steps ? left : layout_.stage_steps) * 64, slot = stage % layout_.slots;
      char* to = memory_ + layout_.stages_at + slot * layout_.stage_bytes();
      if constexpr (ptx::kHasClusters) ptx::barrier_expect(barrier(slot), panels_ * bytes);
      for (int panel = 0; panel < panels_; ++panel) {
        char* panel_to = to + panel * (layout_.stage_steps * 64);
        const uint4* from = words_ + (static_cast<std::int64_t>(panel) * steps_ + first) * 4;
        if constexpr (ptx::kHasClusters)
          ptx::bulk_copy(panel_to, from, bytes, barrier(slot), 1u);
        else
          copy_by_threads(panel_to, reinterpret_cast<const char*>(from), bytes);
      }
    }
  }
  __device__ __forceinline__ void copy_by_threads(char* to, const char* from, int bytes) const {
    for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += layout_.warps * kWarpSize * 16)
      ptx::copy_async(to + at, from + at, true);
    ptx::copy_commit();
  }

  char* memory_;
  const StagedLayout& layout_;
  int steps_ = 0, panels_ = 0;
  const uint4* words_ = nullptr;  // of the first panel
  const char* place_ = nullptr;
  uint4 held_[kHeld][kLoads];
};

}  // namespace qcore::gemv
