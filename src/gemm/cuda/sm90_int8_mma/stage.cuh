#pragma once

#include "gemm/cuda/sm90_int8_mma/arguments.cuh"
#include "gemm/cuda/smem_pipeline.cuh"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"

// Stages of a tile, some blocks each, and the producer that copies them into the pipeline.
namespace qcore::sm90_int8_mma {

template <int kBits, int kBlockChunks, Size kTileSize, bool kOffsets>
struct alignas(16) Stage {
  static constexpr Size kSize = kTileSize;
  static constexpr bool kNibbles = kBits == 4;
  static constexpr Shape kShape = Tuning::shape(kSize);
  static constexpr bool kHasScales = kBlockChunks != kOneBlock, kHasOffsets = kOffsets;
  static constexpr int kArrays = kOffsets ? 2 : 1;  // of parameters
  static constexpr int kChunks = Tuning::chunks(kSize, kBlockChunks);
  static constexpr int kChunksOfBlock = kHasScales ? kBlockChunks : kUnitChunks, kBlocks = kChunks / kChunksOfBlock;
  static constexpr int kRows = kShape.rows(), kPanels = kShape.columns() / static_cast<int>(PackedLayout::kPanelRows);
  static constexpr int kChunkSteps = kBits == 8 ? 8 : 4, kSteps = kChunks * kChunkSteps;
  static_assert(kBlocks % kShape.warps_k == 0, "each warp has whole blocks");

  uint4 weights[kPanels * kSteps * 4];
  char codes[kChunks][kRows][kChunk];
  float rows[kBlocks][kArrays][kRows];  // scales, scaled sums
  // Scales, offsets. Where lanes read those of two panels at once, these take different banks.
  float columns[kArrays][kPanels][kBlocks + (kShape.warps_k > 1)][PackedLayout::kPanelRows];

  // Lines of 128 bytes are two steps. Lanes that differ in the step and in the lower two columns n of a unit's four
  // read at once: the exclusive or spreads them over the banks.
  __device__ static int weight_unit(int panel, int chunk, int step, int unit) {
    const int line = step / 2;
    return (panel * kSteps + chunk * kChunkSteps) * 4 + line * 8 +
           ((step % 2 * 4 + unit) ^ (2 * (line % (kChunkSteps / 2))));
  }
};

// Where a tile's rows of codes come from: a matrix, tiled so that a stage's codes are one piece, and so are their
// scales; or pixels under a window, which warps of their own gather.
struct GemmRows {
  static constexpr bool kWindow = false;
  static constexpr int gather_warps(Size) { return 0; }
  using Given = Arguments;
  template <int kRows>
  struct Origins {};
};
struct Im2colRows {
  static constexpr bool kWindow = true;
  static constexpr int gather_warps(Size size) { return size == Size::tall ? 2 : 4; }
  using Given = WindowArguments;
  template <int kRows>
  using Origins = WindowOrigins<kRows>;
};

// The warp that fills the ring: a lane copies 16 bytes of eight steps of the weight at a time; of a matrix the first
// one what lies in one piece.
template <class Rows, class To, int kCount>
class Producer {
 public:
  using Ring = SmemPipeline<To, kCount>;
  // At a stage's barrier: of those who copy, and of the one who announces what comes in one piece.
  static constexpr int kGatherWarps = Rows::gather_warps(To::kSize);
  static constexpr int kFullArrivals = Rows::kWindow ? kWarpSize * (1 + kGatherWarps) : 1 + kWarpSize;

  __device__ Producer(const typename Rows::Given& a, Ring& ring, int lane)
      : a_(a), pipeline_(ring), lane_(lane), panel_units_(a.w.steps * 4) {
    if constexpr (Rows::kWindow)
      scale_floats_ = a.gathered.tap_blocks * PackedLayout::kPanelRows;
    else
      scale_floats_ = a.w.blocks * PackedLayout::kPanelRows;
    const std::int64_t panel = static_cast<std::int64_t>(blockIdx.x) * To::kPanels, tile = blockIdx.y;
    const std::int64_t left = a.w.panels - panel;
    panels_ = static_cast<int>(left < 0 ? 0 : left < To::kPanels ? left : To::kPanels);
    words_ = reinterpret_cast<const uint4*>(a.w.words) + panel * panel_units_ + lane;
    column_scales_ = a.w.scales + panel * scale_floats_;
    if constexpr (To::kHasOffsets) column_offsets_ = a.w.offsets + panel * scale_floats_;
    units_left_ = static_cast<int>(panel_units_) - lane;
    weight_blocks_left_ = row_blocks_left_ = static_cast<int>(a.w.blocks);
    if constexpr (!Rows::kWindow) {
      codes_ = a.x.codes + tile * a.x.tiled.stages * kRowChunkBytes;
      rows_ = a.x.tiled.parameters + tile * a.w.blocks * (To::kArrays * To::kRows);
    }
  }

  __device__ __forceinline__ void run(int count) {
    const int first = count < kCount ? count : kCount;
    if constexpr (!Rows::kWindow)
      if (a_.new_weight) ptx::wait_for_earlier_kernels();
#pragma unroll 1
    for (int i = 0; i < first; ++i) copy_weights<false>(i);
    // The first stages of the weight are on their way before x is quantized.
    if constexpr (!Rows::kWindow) {
      ptx::wait_for_earlier_kernels();
#pragma unroll 1
      for (int i = 0; i < first; ++i) copy_rows<false>(i);
      // Not at the beginning: 32 rows of 6144 x 4096 took 16.3 us with that and 12.7 with this on an H100.
      ptx::let_next_kernel_start();
    }
    PipelineState<kCount> state;
#pragma unroll 1
    for (int i = first; i < count; ++i) {
      ptx::barrier_wait(pipeline_.empty[state.slot], state.parity);
      // Two paths made stages of 4 bits, which have half as many copies, 1 to 2% slower, and won nothing under a
      // window.
      if (!Rows::kWindow && !To::kNibbles && is_whole())
        copy<true>(state.slot);
      else
        copy<false>(state.slot);
      state.next();
    }
  }

  // By the warps that gather; `thread` is one of theirs.
  __device__ __forceinline__ static void gather(const WindowArguments& a, Ring& ring, const WindowOrigin* origins,
                                                int thread, int count) {
    constexpr int kUnits = 2 * To::kChunks;
    RowGather<kWarpSize * kGatherWarps, To::kRows, kUnits> rows(a.x, a.gathered, origins, thread);
    const int chunk = rows.unit() / 2, half = rows.unit() % 2, block = chunk / kBlockChunks;
    const bool begins_block = rows.unit() % (2 * kBlockChunks) == 0;
    rows.begin();
    ptx::wait_for_earlier_kernels();
    PipelineState<kCount> state;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (i >= kCount) ptx::barrier_wait(ring.empty[state.slot], state.parity ^ 1u);
      To& to = ring.stages[state.slot];
      rows.copy_codes([&](int row) { return &to.codes[chunk][row][16 * half]; });
      if (begins_block) rows.copy_parameters(1, [&](int row, int) { return &to.rows[block][0][row]; });
      ptx::barrier_arrive_with_copies(ring.full[state.slot]);
      rows.next();
      state.next();
    }
  }

 private:
  static constexpr unsigned kOwnRank = 1;  // a thread block is its own cluster
  static constexpr int kBlockChunks = To::kChunksOfBlock, kRowChunkBytes = To::kRows * kChunk;
  static constexpr int kColumnScaleBytes = static_cast<int>(PackedLayout::kPanelRows * sizeof(float));
  static constexpr int kRowParameterBytes = To::kArrays * To::kRows * static_cast<int>(sizeof(float));
  static constexpr int kPanelUnits = To::kSteps * 4;
  static_assert(kPanelUnits % kWarpSize == 0, "a warp copies eight steps");
  static_assert(To::kPanels * To::kBlocks <= kWarpSize, "a lane copies a block's scales of a panel");

  // Whether the weight has all of the next stage. Most stages are whole, and one warp fills the ring: its instructions
  // for each of them are what the ring's speed depends on.
  __device__ __forceinline__ bool is_whole() const {
    return panels_ == To::kPanels && weight_blocks_left_ >= To::kBlocks && units_left_ + lane_ >= kPanelUnits;
  }
  template <bool kWhole>
  __device__ __forceinline__ void copy(int slot) {
    copy_weights<kWhole>(slot);
    if constexpr (!Rows::kWindow) copy_rows<kWhole>(slot);
  }
  // Announces what a stage gets, and starts what no other kernel writes.
  template <bool kWhole>
  __device__ __forceinline__ void copy_weights(int slot) {
    To& to = pipeline_.stages[slot];
    ptx::Barrier& full = pipeline_.full[slot];
    const int blocks = kWhole || weight_blocks_left_ >= To::kBlocks ? To::kBlocks : weight_blocks_left_;
    if constexpr (Rows::kWindow)
      copy_tap_scales(to, blocks);
    else
      announce<kWhole>(to, full, blocks);
    __syncwarp();
    const int step = lane_ / 4;
    uint4* target = &to.weights[To::weight_unit(0, step / To::kChunkSteps, step % To::kChunkSteps, lane_ % 4)];
#pragma unroll
    for (int panel = 0; panel < To::kPanels; ++panel) {
      const uint4* from = words_ + panel * panel_units_;
#pragma unroll
      for (int unit = 0; unit < kPanelUnits; unit += kWarpSize)
        ptx::copy_async(target + panel * kPanelUnits + unit, from + unit,
                        kWhole || (panel < panels_ && unit < units_left_));
    }
    ptx::barrier_arrive_with_copies(full);
    words_ += kPanelUnits;
    units_left_ -= kPanelUnits;
    weight_blocks_left_ -= To::kBlocks;
  }
  template <bool kWhole>
  __device__ __forceinline__ void announce(To& to, ptx::Barrier& full, int blocks) {
    const int panels = kWhole ? To::kPanels : panels_;
    if (lane_ == 0) {
      const int bytes = To::kHasScales ? blocks * kColumnScaleBytes : 0;
      const int row_bytes = To::kHasScales ? kRowParameterBytes : 0;
      ptx::barrier_expect(full, panels * To::kArrays * bytes + blocks * (kBlockChunks * kRowChunkBytes + row_bytes));
#pragma unroll
      for (int panel = 0; panel < To::kPanels; ++panel)
        if (To::kHasScales && panel < panels) {
          ptx::bulk_copy(to.columns[0][panel], column_scales_ + panel * scale_floats_, bytes, full, kOwnRank);
          if constexpr (To::kHasOffsets)
            ptx::bulk_copy(to.columns[1][panel], column_offsets_ + panel * scale_floats_, bytes, full, kOwnRank);
        }
    }
    column_scales_ += To::kBlocks * PackedLayout::kPanelRows;
    if constexpr (To::kHasOffsets) column_offsets_ += To::kBlocks * PackedLayout::kPanelRows;
  }
  // Those of the weight's blocks, which start again with each tap.
  __device__ __forceinline__ void copy_tap_scales(To& to, int blocks) {
    const int panel = lane_ / To::kBlocks, block = lane_ % To::kBlocks;
    const int done = static_cast<int>(a_.w.blocks) - weight_blocks_left_;
    if (panel < panels_ && block < blocks) {
      const float* from =
          column_scales_ + panel * scale_floats_ + (done + block) % a_.gathered.tap_blocks * PackedLayout::kPanelRows;
#pragma unroll
      for (int i = 0; i < static_cast<int>(PackedLayout::kPanelRows); i += 4)
        ptx::copy_async(&to.columns[0][panel][block][i], from + i, true);
    }
  }
  template <bool kWhole>
  __device__ __forceinline__ void copy_rows(int slot) {
    To& to = pipeline_.stages[slot];
    const int blocks = kWhole || row_blocks_left_ >= To::kBlocks ? To::kBlocks : row_blocks_left_;
    if (lane_ == 0) {
      ptx::bulk_copy(to.codes, codes_, blocks * kBlockChunks * kRowChunkBytes, pipeline_.full[slot], kOwnRank);
      if constexpr (To::kHasScales)
        ptx::bulk_copy(to.rows, rows_, blocks * kRowParameterBytes, pipeline_.full[slot], kOwnRank);
    }
    __syncwarp();
    codes_ += sizeof(to.codes);
    rows_ += To::kBlocks * To::kArrays * To::kRows;
    row_blocks_left_ -= To::kBlocks;
  }

  const typename Rows::Given& a_;
  Ring& pipeline_;
  int lane_;
  std::int64_t panel_units_, scale_floats_;
  const uint4* words_;
  const float *column_scales_, *column_offsets_ = nullptr;
  const std::int8_t* codes_;
  const float* rows_;
  int panels_, units_left_, weight_blocks_left_, row_blocks_left_;
};

}  // namespace qcore::sm90_int8_mma
