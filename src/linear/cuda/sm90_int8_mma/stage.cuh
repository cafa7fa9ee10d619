#pragma once

#include "linear/cuda/sm90_int8_mma/launch.cuh"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/cuda/ptx_wgmma.cuh"

// A ring of stages in shared memory: what some blocks of a tile need, as it lies in memory.
namespace qcore::sm90_int8_mma {

template <int kBits, int kBlockChunks, Size kSize>
struct alignas(16) Stage {
  static constexpr Shape kShape = Tuning::shape(kSize);
  static constexpr int kChunks = Tuning::chunks(kSize, kBlockChunks), kBlocks = kChunks / kBlockChunks;
  static constexpr int kRows = kShape.rows(), kPanels = kShape.columns() / static_cast<int>(PackedLayout::kPanelRows);
  static constexpr int kChunkSteps = kBits == 8 ? 8 : 4, kSteps = kChunks * kChunkSteps;
  static_assert(kBlocks % kShape.warps_k == 0, "each warp has whole blocks");

  uint4 weights[kPanels * kSteps * 4];
  char codes[kChunks][kRows][kChunk];
  float row_scales[kBlocks][kRows];
  float column_scales[kPanels][kBlocks][PackedLayout::kPanelRows];

  // Lines of 128 bytes are two steps. Lanes that differ in the step and in the lower two columns n of a unit's four
  // read at once: the exclusive or spreads them over the banks.
  __device__ static int weight_unit(int panel, int chunk, int step, int unit) {
    const int line = step / 2;
    return (panel * kSteps + chunk * kChunkSteps) * 4 + line * 8 +
           ((step % 2 * 4 + unit) ^ (2 * (line % (kChunkSteps / 2))));
  }
};

template <class TileStage, int kCount>
struct SmemPipeline {
  TileStage stages[kCount];
  ptx::Barrier full[kCount];
  ptx::Barrier empty[kCount];
  ptx::Barrier summed[2];  // where the warps share K
};

// Position in a ring that producer and consumers walk through in step.
template <int kCount>
struct PipelineState {
  int slot = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++slot == kCount) slot = 0, parity ^= 1u;
  }
};

// The warp that fills the ring: a lane copies 16 bytes of eight steps of the weight at a time, the first one what lies
// in one piece.
constexpr int kFullArrivals = 1 + kWarpSize;

template <class To, int kCount>
class Producer {
 public:
  __device__ Producer(const Arguments& a, SmemPipeline<To, kCount>& ring, int lane)
      : pipeline_(ring),
        lane_(lane),
        panel_units_(a.w.steps * 4),
        scale_floats_(a.w.blocks * PackedLayout::kPanelRows) {
    const std::int64_t panel = static_cast<std::int64_t>(blockIdx.x) * To::kPanels, tile = blockIdx.y;
    const std::int64_t left = a.w.panels - panel;
    panels_ = static_cast<int>(left < 0 ? 0 : left < To::kPanels ? left : To::kPanels);
    words_ = reinterpret_cast<const uint4*>(a.w.words) + panel * panel_units_ + lane;
    column_scales_ = a.w.scales + a.w.parameter_index(panel, 0, 0);
    codes_ = a.x.codes + tile * a.x.tiled.stages * kRowChunkBytes;
    row_scales_ = a.x.tiled.parameters + tile * a.w.blocks * To::kRows;
    units_left_ = static_cast<int>(panel_units_) - lane;
    weight_blocks_left_ = row_blocks_left_ = static_cast<int>(a.w.blocks);
  }

  __device__ __forceinline__ void run(int count) {
    const int first = count < kCount ? count : kCount;
#pragma unroll 1
    for (int i = 0; i < first; ++i) copy_weights(i);
    // The first stages of the weight are on their way before x is quantized.
    ptx::wait_for_earlier_kernels();
#pragma unroll 1
    for (int i = 0; i < first; ++i) copy_rows(i);
    PipelineState<kCount> state;
#pragma unroll 1
    for (int i = first; i < count; ++i) {
      ptx::barrier_wait(pipeline_.empty[state.slot], state.parity);
      copy_weights(state.slot);
      copy_rows(state.slot);
      state.next();
    }
  }

 private:
  static constexpr unsigned kOwnRank = 1;  // a thread block is its own cluster
  static constexpr int kBlockChunks = To::kChunks / To::kBlocks, kRowChunkBytes = To::kRows * kChunk;
  static constexpr int kColumnScaleBytes = static_cast<int>(PackedLayout::kPanelRows * sizeof(float));
  static constexpr int kRowScaleBytes = To::kRows * static_cast<int>(sizeof(float));
  static constexpr int kPanelUnits = To::kSteps * 4;
  static_assert(kPanelUnits % kWarpSize == 0, "a warp copies eight steps");

  // Announces what a stage gets, and starts what no other kernel writes.
  __device__ __forceinline__ void copy_weights(int slot) {
    To& to = pipeline_.stages[slot];
    ptx::Barrier& full = pipeline_.full[slot];
    const int blocks = weight_blocks_left_ < To::kBlocks ? weight_blocks_left_ : To::kBlocks;
    if (lane_ == 0) {
      const int bytes = blocks * kColumnScaleBytes;
      ptx::barrier_expect(full, panels_ * bytes + blocks * (kBlockChunks * kRowChunkBytes + kRowScaleBytes));
#pragma unroll
      for (int panel = 0; panel < To::kPanels; ++panel)
        if (panel < panels_)
          ptx::bulk_copy(to.column_scales[panel], column_scales_ + panel * scale_floats_, bytes, full, kOwnRank);
    }
    __syncwarp();
    const int step = lane_ / 4;
    uint4* target = &to.weights[To::weight_unit(0, step / To::kChunkSteps, step % To::kChunkSteps, lane_ % 4)];
#pragma unroll
    for (int panel = 0; panel < To::kPanels; ++panel) {
      const uint4* from = words_ + panel * panel_units_;
#pragma unroll
      for (int unit = 0; unit < kPanelUnits; unit += kWarpSize)
        ptx::copy_async(target + panel * kPanelUnits + unit, from + unit, panel < panels_ && unit < units_left_);
    }
    ptx::barrier_arrive_with_copies(full);
    words_ += kPanelUnits;
    units_left_ -= kPanelUnits;
    column_scales_ += To::kBlocks * PackedLayout::kPanelRows;
    weight_blocks_left_ -= To::kBlocks;
  }
  __device__ __forceinline__ void copy_rows(int slot) {
    To& to = pipeline_.stages[slot];
    const int blocks = row_blocks_left_ < To::kBlocks ? row_blocks_left_ : To::kBlocks;
    if (lane_ == 0) {
      ptx::bulk_copy(to.codes, codes_, blocks * kBlockChunks * kRowChunkBytes, pipeline_.full[slot], kOwnRank);
      ptx::bulk_copy(to.row_scales, row_scales_, blocks * kRowScaleBytes, pipeline_.full[slot], kOwnRank);
    }
    __syncwarp();
    codes_ += sizeof(to.codes);
    row_scales_ += To::kBlocks * To::kRows;
    row_blocks_left_ -= To::kBlocks;
  }

  SmemPipeline<To, kCount>& pipeline_;
  int lane_;
  std::int64_t panel_units_, scale_floats_;
  const uint4* words_;
  const float* column_scales_;
  const std::int8_t* codes_;
  const float* row_scales_;
  int panels_, units_left_, weight_blocks_left_, row_blocks_left_;
};

}  // namespace qcore::sm90_int8_mma
