#pragma once

#include "linear/cuda/sm75_gemv/gemv_kernels.cuh"
#include "runtime/cuda/ptx_cluster.cuh"

// The weights of a thread block's columns and their scales on their way to shared memory: in stages, runs of k of both
// panels, so many ahead as fit. From 9.0 on the copy engine brings them. Loads by threads would fill the queue of the
// multiprocessor's memory unit, behind which the kernel in front, which may still run there, waits for its x.
namespace qcore::gemv {

// How the stages lie in shared memory. A round is what the thread block multiplies at once: as many neighboring chunks
// of every warp. A thread block takes groups of 32 columns in turn, blockIdx.x, + gridDim.x ..
struct StagedLayout {
  int warps, round_stages, round_bits, reader_bits;  // 2^round_bits stages; 2^reader_bits neighboring warps read one
  int copier;                                        // the warp that asks the copy engine
  int stage_steps, stages, rounds;  // stages and rounds of a group; the last round may have fewer stages
  int blocks, slots;
  int barriers_at, scales_at, scales_bytes, scales_stride, stages_at, bytes;

  static constexpr int kMaxSlots = 30;
  static constexpr int kSharedOfTwo = 113 << 10;  // of each of two thread blocks on a multiprocessor of 9.0

  StagedLayout() = default;
  // Behind `first` bytes.
  StagedLayout(const DeviceWeight& w, int warps_, int first) : warps(warps_), copier(warps_ - 1) {
    set_stages(w, kLongBits);
    barriers_at = static_cast<int>(round_up(first, 16));
    scales_at = barriers_at + (kMaxSlots + 2) * 8;
    scales_bytes = static_cast<int>(w.blocks) * 64;
    scales_stride = static_cast<int>(round_up(w.blocks, 2) + 1) * 64;  // the second panel's take the other banks
    stages_at = static_cast<int>(round_up(scales_at + 4 * scales_stride, 128));
  }
  __host__ __device__ int stage_bytes() const { return 2 * stage_steps * 64; }

  // Chooses thread blocks and slots. Up to two groups per multiprocessor have a thread block each, if they leave room
  // for one another; more groups take turns in one thread block of each multiprocessor, which makes one copy of x and
  // asks for the next group's weights early. With one group per multiprocessor, room for the next kernel's thread
  // blocks pays where no weight has to wait for a slot, and up to `few_bytes` of weights where some do. Slots for
  // two rounds are faster than more, unless two groups of more rounds take turns. Long stages, copies of 8 KB, are
  // faster, but not where a thread block has a single round. Measured on an H200, see docs/notes/linear-cuda.md.
  // Returns false if not even a round has slots.
  bool fill(const DeviceWeight& w, std::int64_t multiprocessors, int most_bytes, std::int64_t few_bytes = 0) {
    const std::int64_t groups = ceil_div(w.panels, 2), turns = ceil_div(groups, multiprocessors);
    if (turns <= 2 && rounds == 1 && w.bits == 4) set_stages(w, kShortBits);
    int most_slots = kMaxSlots;
    if (most_bytes >= 2 * kSharedOfTwo) {
      const bool leaves_room = turns == 2 || stages * stage_bytes() <= few_bytes;
      if (turns <= 2 && fill_slots(w, groups, kSharedOfTwo, kMaxSlots) && (leaves_room || slots == stages)) return true;
      if (turns != 2 || rounds <= 2) most_slots = 2 * round_stages;
    }
    return fill_slots(w, std::min(groups, multiprocessors), most_bytes, most_slots);
  }
  // Whether one thread block takes a multiprocessor of 9.0 for itself and still has slots for less than two of the many
  // rounds of a group.
  bool lacks_slots() const { return bytes > kSharedOfTwo && rounds > 2 && slots < 2 * round_stages; }

 private:
  static constexpr int kLongBits = 2, kShortBits = 3;  // of a round's stages

  void set_stages(const DeviceWeight& w, int bits) {
    const int round_steps = warps * Tuning::kLoads * 4;
    round_bits = bits;
    round_stages = 1 << bits;
    reader_bits = 0;
    while (round_stages << reader_bits < warps) ++reader_bits;
    stage_steps = round_steps / round_stages;
    stages = static_cast<int>(ceil_div(w.steps, stage_steps));
    rounds = static_cast<int>(ceil_div(w.steps, round_steps));
  }
  bool fill_slots(const DeviceWeight& w, std::int64_t blocks_, int limit, int most_slots) {
    if (stages_at > limit) return false;
    const std::int64_t groups = ceil_div(ceil_div(w.panels, 2), blocks_), round = round_stages;
    const std::int64_t fitting = std::min((limit - stages_at) / stage_bytes(), most_slots);
    blocks = static_cast<int>(blocks_);
    const std::int64_t all = (groups - 1) * rounds * round + stages;
    slots = static_cast<int>(std::min(all, fitting));
    bytes = stages_at + slots * stage_bytes();
    return slots >= std::min(all, round);
  }
};

// kHeld: chunks of a round that wait in registers; the others are read where they lie.
template <int kBits, int kHeld>
class StagedWeights {
 public:
  static constexpr int kLoads = chunk_loads(kBits), kChunks = batch_chunks(kBits);
  static constexpr unsigned kPhase = 1u << 16;  // the bit of slot_and_phase_

  __device__ __forceinline__ StagedWeights(char* memory, const StagedLayout& layout)
      : memory_(memory), layout_(layout) {}

  // Asks for the scales and for as many stages as there are slots. All threads call.
  __device__ __forceinline__ void start(const DeviceWeight& w, const uint4* words, const float* scales) {
    steps_ = static_cast<int>(w.steps);
    panels_ = static_cast<int>(w.panels);
    words_ = words;
    scales_ = scales;
    const int all = (panels_ + 1) / 2;
    groups_ = (all - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    slot_and_phase_ = static_cast<unsigned>(stage_of_round());
    if constexpr (ptx::kHasClusters) {
      if (copies() && lane() == 0) {
        for (int i = 0; i < layout_.slots + 2; ++i) ptx::barrier_init(barrier(i), 1);
        ptx::barriers_are_ready();
      }
      __syncwarp();
    }
    ask_for_scales(0);
    copy_stages(0, layout_.slots);
    ask_for_scales(1);
    if constexpr (ptx::kHasClusters) __syncthreads();  // the barriers are seen
  }

  __device__ __forceinline__ int groups() const { return groups_; }
  __device__ __forceinline__ std::int64_t column(int group) const {
    return (static_cast<std::int64_t>(blockIdx.x) + static_cast<std::int64_t>(group) * gridDim.x) * kColumns;
  }

  // Takes a round's first chunks into registers when they are there. Called for one round after the other, and those of
  // a group follow those of the one before it: a division would take a hundred cycles while nothing else goes on. All
  // threads call; before 9.0 also to see scales that were asked for.
  __device__ __forceinline__ void fetch(int round, const Lane& lane) {
    if (round > 0) {
      slot_and_phase_ += static_cast<unsigned>(layout_.round_stages);
      const auto slots = static_cast<unsigned>(layout_.slots);
      if (slot_and_phase_ % kPhase >= slots) slot_and_phase_ = (slot_and_phase_ - slots) ^ kPhase;
    }
    const int slot = static_cast<int>(slot_and_phase_ % kPhase);
    const int of_group = layout_.rounds == 1 ? 0 : round % layout_.rounds;
    const bool exists = of_group * layout_.round_stages + stage_of_round() < layout_.stages;
    if constexpr (ptx::kHasClusters) {
      if (exists) ptx::barrier_wait(barrier(slot), slot_and_phase_ / kPhase);
    } else {
      ptx::copy_wait<0>();
      __syncthreads();
    }
    const int first = (lane.warp & ((1 << layout_.reader_bits) - 1)) * kChunks;  // the warp's first chunk in its stage
    const int unit = (first * 4 * kLoads + lane.quad) * 4 + lane.group % 4;
    place_ = memory_ + layout_.stages_at + slot * layout_.stage_bytes() + lane.group / 4 * (layout_.stage_steps * 64) +
             unit * 16;
    if (exists) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) read(i, held_[i]);
    }
  }

  // The words of chunk i of the round: with 4 bits the codes of its k 8*quad .., with 8 bits of 4*quad .. and of
  // 16 + 4*quad ..
  __device__ __forceinline__ void get(int i, uint4 (&words)[kLoads]) const {
    if (i < kHeld) {
#pragma unroll
      for (int j = 0; j < kLoads; ++j) words[j] = held_[i < kHeld ? i : 0][j];
    } else {
      read(i, words);
    }
  }

  // Whether stages take the places of others.
  __device__ __forceinline__ bool turns() const { return all_stages() > layout_.slots; }
  // Asks for the stages that take the place of a round's. All threads call, after a barrier behind the last get().
  __device__ __forceinline__ void refill(int round) const {
    const int begin = round * layout_.round_stages + layout_.slots;
    copy_stages(begin, begin + layout_.round_stages);
  }

  // The round whose refill() asks for the calling warp's stage of this round; negative if start() does.
  __device__ __forceinline__ int refill_of(int round) const {
    const int left = round * layout_.round_stages + stage_of_round() - layout_.slots;
    return left >> layout_.round_bits;
  }

  // Two groups have places for their scales. All threads call, after a barrier behind the last use of those of two
  // groups before.
  __device__ __forceinline__ void ask_for_scales(int group) const {
    if (group >= groups_ || (ptx::kHasClusters && (!copies() || lane() != 0))) return;
    const int first = first_panel(group), panels = panels_ - first < 2 ? 1 : 2;
    const char* from = reinterpret_cast<const char*>(scales_) + static_cast<std::int64_t>(first) * layout_.scales_bytes;
    ptx::Barrier& full = barrier(layout_.slots + group % 2);
    if constexpr (ptx::kHasClusters) ptx::barrier_expect(full, panels * layout_.scales_bytes);
    for (int panel = 0; panel < panels; ++panel)
      copy(scales_of(group, panel), from + static_cast<std::int64_t>(panel) * layout_.scales_bytes,
           layout_.scales_bytes, full);
  }
  __device__ __forceinline__ void wait_for_scales(int group) const {
    if constexpr (ptx::kHasClusters)
      ptx::barrier_wait(barrier(layout_.slots + group % 2), static_cast<unsigned>(group / 2) & 1u);
  }
  // [P][16] of a panel of the group's.
  __device__ __forceinline__ const float* scales(int group, int panel) const {
    return reinterpret_cast<const float*>(scales_of(group, panel));
  }

 private:
  __device__ __forceinline__ ptx::Barrier& barrier(int i) const {
    return reinterpret_cast<ptx::Barrier*>(memory_ + layout_.barriers_at)[i];
  }
  __device__ __forceinline__ char* scales_of(int group, int panel) const {
    return memory_ + layout_.scales_at + (group % 2 * 2 + panel) * layout_.scales_stride;
  }
  __device__ __forceinline__ int first_panel(int group) const {
    return (static_cast<int>(blockIdx.x) + group * static_cast<int>(gridDim.x)) * 2;
  }
  // Whether the calling warp is the one that asks the copy engine.
  __device__ __forceinline__ bool copies() const { return warp() == layout_.copier; }
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }
  // That the calling warp reads.
  __device__ __forceinline__ int stage_of_round() const { return warp() >> layout_.reader_bits; }
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
  __device__ __forceinline__ void read(int i, uint4 (&words)[kLoads]) const {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) words[j] = *reinterpret_cast<const uint4*>(place_ + (i * 4 * kLoads + 4 * j) * 64);
  }

  __device__ __forceinline__ int all_stages() const {
    return (groups_ - 1) * layout_.rounds * layout_.round_stages + layout_.stages;
  }

  // By one thread from 9.0 on, and by all before.
  __device__ __forceinline__ void copy(char* to, const char* from, int bytes, ptx::Barrier& full) const {
    if constexpr (ptx::kHasClusters) {
      ptx::bulk_copy(to, from, bytes, full, 1u);
    } else {
      for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += static_cast<int>(blockDim.x) * 16)
        ptx::copy_async(to + at, from + at, true);
      ptx::copy_commit();
    }
  }
  __device__ __forceinline__ void copy_stages(int begin, int end) const {
    if (ptx::kHasClusters && !copies()) return;
    // The copy engine's stages are dealt to the lanes of one warp.
    constexpr int kLanes = ptx::kHasClusters ? kWarpSize : 1;
    const int group_stages = layout_.rounds * layout_.round_stages, all = all_stages();
#pragma unroll 1
    for (int stage = begin + (kLanes > 1 ? lane() : 0); stage < end && stage < all; stage += kLanes) {
      const int group = groups_ == 1 ? 0 : stage / group_stages, slot = stage % layout_.slots;
      const int panel = first_panel(group);
      const int first = (stage - group * group_stages) * layout_.stage_steps, left = steps_ - first;
      const int steps = left < layout_.stage_steps ? left : layout_.stage_steps, panels = panels_ - panel < 2 ? 1 : 2;
      char* to = memory_ + layout_.stages_at + slot * layout_.stage_bytes();
      ptx::Barrier& full = barrier(slot);
      // The last round's stages that do not exist take part in turns.
      if constexpr (ptx::kHasClusters) ptx::barrier_expect(full, steps > 0 ? panels * steps * 64 : 0);
      if (steps <= 0) continue;
      for (int i = 0; i < panels; ++i)
        copy(to + i * (layout_.stage_steps * 64),
             reinterpret_cast<const char*>(words_ + (static_cast<std::int64_t>(panel + i) * steps_ + first) * 4),
             steps * 64, full);
    }
  }

  char* memory_;
  const StagedLayout& layout_;
  int steps_ = 0, panels_ = 0, groups_ = 0;
  const uint4* words_ = nullptr;
  const float* scales_ = nullptr;
  const char* place_ = nullptr;
  unsigned slot_and_phase_ = 0;  // of the stage that the warp reads
  uint4 held_[kHeld][kLoads];
};

}  // namespace qcore::gemv
