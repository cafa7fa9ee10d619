#pragma once

#include "gemm/cuda/sm90_float_wgmma/arguments.cuh"
#include "gemm/cuda/smem_pipeline.cuh"
#include "gemm/cuda/spread_steps.cuh"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

// A ring of stages of 64 k in shared memory, which one warpgroup fills while two compute.
namespace qcore::sm90_float_wgmma {

constexpr int kPanels = Tuning::kColumns / static_cast<int>(PackedLayout::kPanelRows);  // of a tile
constexpr int kWarpgroupWarps = 4;

// Groups of as many warps as a tile has panels, which multiply steps of k in turn and add their totals at the end. In
// tiles of one part two of them hide each other's waits; with more parts a group needs all registers.
template <int kParts>
constexpr int kGroups = kParts == 1 ? 2 : 1;
template <int kParts>
constexpr int kConsumerWarps = kGroups<kParts> * kPanels;
template <int kParts>
constexpr int kThreads = kWarpSize * (kConsumerWarps<kParts> + kWarpgroupWarps);

// A weight's offsets: those of zero points become part of the decoded codes, and others are multiplied by sums of x.
enum class Offsets { none, of_zero_points, any };
template <Offsets kOffsets>
constexpr bool kHasOffsets = kOffsets != Offsets::none;
template <Offsets kOffsets>
constexpr bool kNeedsSums = kOffsets == Offsets::any;

// kPromotions: in a step of two stages, 1, 2 or 4.
template <int kBits, Offsets kOffsets, int kPromotions, int kParts>
struct alignas(1024) Stage {
  static constexpr int kStepK = kBits == 8 ? 4 : 8;  // of the packed layout
  static constexpr int kSteps = kStageK / kStepK;
  static constexpr int kRows = kParts * kPartRows;
  static constexpr int kSets = kPromotions == 4 ? 2 : 1;  // of parameters
  static constexpr int kUnitK = kStageK / kSets;

  char x[kRows * kStageK * 2];  // as ptx::SwizzledRows
  char weights[kPanels][kSteps * PackedLayout::kStepBytes];
  float columns[kSets][kHasOffsets<kOffsets> ? 2 : 1][kPanels][PackedLayout::kPanelRows];  // scales, and offsets
  float sums[kSets][kNeedsSums<kOffsets> ? kRows : 4];                                     // of the rows
};

// The tiles that a thread block computes: whole ones, then its part of the spread steps. They lie in bands of
// kBand of their columns, so that those which run at once need few weights and rows of x between them. kWarps: whole
// warps call, and what a loop depends on is the same in all lanes for the compiler too, or it would keep a ring's state
// in registers of lanes and copy each operand of a product from there.
template <int kRows, bool kWarps>
class Tiles {
 public:
  __device__ Tiles(const Arguments& a, const SpreadPart& part) : a_(a), part_(part), at_(blockIdx.x) { set(); }
  __device__ bool valid() const { return tile_ != kNone; }
  __device__ void next() {
    at_ += gridDim.x;
    set();
  }
  __device__ int column() const {
    const unsigned band = tile_ / (kBand * rows()), within = tile_ % (kBand * rows());
    return static_cast<int>(band * kBand + within % width(band));
  }
  __device__ int row() const {
    const unsigned band = tile_ / (kBand * rows()), within = tile_ % (kBand * rows());
    return static_cast<int>(within / width(band));
  }
  // The steps of k that this thread block multiplies.
  __device__ int first_step() const { return first_step_; }
  __device__ int last_step() const { return last_step_; }
  // Returns the piece of a spread tile that this thread block computes, or null if it computes the whole tile.
  __device__ const SpreadPart::Piece* piece() const {
    return at_ < a_.whole_tiles ? nullptr : &part_.pieces[(at_ - a_.whole_tiles) / gridDim.x];
  }
  __device__ int steps() const { return static_cast<int>((a_.w.k + kStepK - 1) / kStepK); }

 private:
  static constexpr unsigned kBand = 16, kNone = 0xffffffffu;
  __device__ void set() {
    tile_ = kNone;
    if (at_ < a_.whole_tiles) {
      tile_ = at_;
      first_step_ = 0, last_step_ = steps();
    } else if (a_.spread && (at_ - a_.whole_tiles) / gridDim.x < SpreadPart::kMaxPieces) {
      const SpreadPart::Piece* of = piece();
      tile_ = static_cast<unsigned>(same(of->tile));
      first_step_ = same(of->first_step);
      last_step_ = same(of->last_step);
    }
  }
  __device__ static int same(int value) { return kWarps ? __shfl_sync(kAllLanes, value, 0) : value; }
  __device__ unsigned rows() const { return static_cast<unsigned>((a_.rows + kRows - 1) / kRows); }
  __device__ unsigned width(unsigned band) const {
    const unsigned left = static_cast<unsigned>((a_.w.n + Tuning::kColumns - 1) / Tuning::kColumns) - band * kBand;
    return left < kBand ? left : kBand;
  }

  const Arguments& a_;
  const SpreadPart& part_;
  int first_step_ = 0, last_step_ = 0;
  unsigned at_, tile_;
};

// The warpgroup that fills the ring: a thread announces what is to come and has x copied, one the weight, one its
// parameters.
template <int kBits, Offsets kOffsets, int kPromotions, int kParts, int kCount>
class Producer {
 public:
  using To = Stage<kBits, kOffsets, kPromotions, kParts>;
  static constexpr int kSets = To::kSets;
  using ToRing = SmemPipeline<To, kCount>;

  __device__ Producer(const Arguments& a, ToRing& ring, const Tiles<To::kRows, false>& tiles, int warp)
      : a_(a), pipeline_(ring), tiles_(tiles), warp_(warp) {}

  __device__ void run() {
    if (threadIdx.x % kWarpSize) return;
    if (warp_ == 0) copy_rows();
    if (warp_ == 1) copy_weights();
    if (warp_ == 2) copy_parameters();
  }

 private:
  // Calls copy(k, row, column, where to, its barrier) for each stage. Where a tile lies is computed once: a division
  // takes as long as all else that a stage needs of these threads.
  template <class Copy>
  __device__ __forceinline__ void walk(Copy&& copy) {
    PipelineState<kCount> state;
#pragma unroll 1
    for (; tiles_.valid(); tiles_.next()) {
      const int row = tiles_.row() * To::kRows, panel = tiles_.column() * kPanels;
      const int first = kStepK * tiles_.first_step(), last = kStepK * tiles_.last_step();
#pragma unroll 1  // few registers
      for (int k = first; k < last; k += kStageK) {
        ptx::barrier_wait(pipeline_.empty[state.slot], state.parity ^ 1u);
        copy(k, row, panel, pipeline_.stages[state.slot], pipeline_.full[state.slot]);
        state.next();
      }
    }
  }

  __device__ __forceinline__ void copy_rows() {
    const int bytes = a_.copied_rows * kStageK * 2 + static_cast<int>(sizeof(To::weights) + sizeof(To::columns) +
                                                                      (kNeedsSums<kOffsets> ? sizeof(To::sums) : 0));
    // Weights need nothing that another kernel writes. What is computed from x waits for it, and so does y.
    ptx::wait_for_earlier_kernels();
    if constexpr (!kHasOffsets<kOffsets>)
      if (a_.window.channels) return copy_pixels(bytes);
    walk([&](int k, int row, int, To& to, ptx::Barrier& full) {
      ptx::barrier_expect(full, bytes);
      ptx::tensor_copy(to.x, a_.x, row, k, full);
      if constexpr (kNeedsSums<kOffsets>) {
#pragma unroll
        for (int set = 0; set < kSets; ++set)
          ptx::bulk_copy(to.sums[set], a_.row_sums + (k / To::kUnitK + set) * a_.sum_stride + row,
                         static_cast<int>(sizeof(to.sums[set])), full, 1u);
      }
    });
  }

  // The pixels of a tile's results, tap after tap. Behind the last tap there are zeros.
  __device__ __forceinline__ void copy_pixels(int bytes) {
    const DeviceWindow& window = a_.window.of;
    const int channels = a_.window.channels;
    ptx::ImagePlace first{};
    int next_k = 0, next_row = -1, channel = 0, tap_row = 0, tap_column = 0;
    walk([&](int k, int row, int, To& to, ptx::Barrier& full) {
      if (row != next_row || k != next_k) {  // a tile begins
        const ResultPlace place(window, a_.window.first, row);
        first = {static_cast<int>(place.image), place.row * window.stride[0] - window.before[0],
                 place.column * window.stride[1] - window.before[1]};
        const int tap = k / channels;
        channel = k - tap * channels;
        tap_row = tap / window.kernel[1];
        tap_column = tap - tap_row * window.kernel[1];
      }
      next_row = row, next_k = k + kStageK;
      ptx::barrier_expect(full, bytes);
      const bool exists = tap_row < window.kernel[0];
      ptx::image_copy(to.x, a_.x, first, exists ? tap_row * window.dilation[0] : 0,
                      exists ? tap_column * window.dilation[1] : 0, exists ? channel : channels, full);
      if ((channel += kStageK) < channels) return;
      channel = 0;
      if (++tap_column == window.kernel[1]) tap_column = 0, ++tap_row;
    });
  }

  __device__ __forceinline__ void copy_weights() {
    walk([&](int k, int, int panel, To& to, ptx::Barrier& full) {
      ptx::tensor_copy(to.weights, a_.words, panel, k / To::kStepK * static_cast<int>(PackedLayout::kPanelRows), full);
    });
  }

  // Behind the last block, where x is zeros, its parameters are copied again. Every tap has those of the first one.
  __device__ __forceinline__ void copy_parameters() {
    const int blocks = static_cast<int>(a_.w.blocks);
    const int size = blocks > 1 ? static_cast<int>(a_.w.block_size) : 1 << 30;
    const int of_tap = a_.window.channels ? blocks : 1 << 30;
    int next_k = 0, p = 0, end = 0;  // of the block's end
    walk([&](int k, int, int panel, To& to, ptx::Barrier& full) {
      if (k != next_k || end == 0) p = k / size, end = (p + 1) * size, p %= of_tap;  // a tile begins
      next_k = k + kStageK;
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        if (k + set * To::kUnitK >= end) end += size, p = p + 1 == of_tap ? 0 : p + 1;
        const int column = (p < blocks ? p : blocks - 1) * static_cast<int>(PackedLayout::kPanelRows);
        ptx::tensor_copy(to.columns[set][0], a_.scales, panel, column, full);
        if constexpr (kHasOffsets<kOffsets>) ptx::tensor_copy(to.columns[set][1], a_.offsets, panel, column, full);
      }
    });
  }

  const Arguments& a_;
  ToRing& pipeline_;
  Tiles<To::kRows, false> tiles_;
  int warp_;
};

}  // namespace qcore::sm90_float_wgmma
