#pragma once

#include "gemm/cuda/sm90_int8_wgmma/arguments.cuh"
#include "gemm/cuda/smem_pipeline.cuh"
#include "gemm/cuda/window/image_copies.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"

// A ring of stages of 128 k in shared memory, which one warp fills by bulk copies while others compute.
namespace qcore::sm90_int8_wgmma {

constexpr int kStageK = TiledRows::kStageK;
constexpr int kPanels = Tuning::kColumns / static_cast<int>(PackedLayout::kPanelRows);  // of a tile
constexpr int kWeightUnit = 8;  // bytes: a stage of a panel has at most the 256 units that the copy engine takes
constexpr int kConsumerWarps = kPanels, kWarpgroupWarps = 4;
constexpr int kThreads = kWarpSize * (kConsumerWarps + kWarpgroupWarps);

// kBlocks: of k, in a stage.
template <int kBits, int kBlocks, int kRows>
struct alignas(1024) Stage {
  static constexpr int kStepK = kBits == 8 ? 4 : 8;
  static constexpr int kSteps = kStageK / kStepK;
  static constexpr int kPanelBytes = kSteps * static_cast<int>(PackedLayout::kStepBytes);
  static constexpr int kArrays = 3;

  char codes[kRows * kStageK];
  char weights[kPanels][kPanelBytes];
  float rows[kBlocks * kArrays * kRows];  // [kBlocks, arrays, kRows]: see TiledRows
  float columns[kArrays][kPanels][kBlocks][PackedLayout::kPanelRows];
};

// Where a tile's rows of codes come from: a matrix, tiled so that a stage's codes are one piece, and so are their
// parameters; or pixels under a window, which the copy engine finds in their order, kRowBytes of each at a time.
struct GemmRows {
  static constexpr bool kWindow = false;
  static constexpr int kRowBytes = kStageK;
  using Given = RowArguments;

  // Returns the row of a tile which is at place `at` of 16 of a lane's registers and of parameters.
  __device__ static int row(int at) { return at; }
};
struct Im2colRows {
  static constexpr bool kWindow = true;
  static constexpr int kRowBytes = kTapK;
  using Given = WindowArguments;

  __device__ static int row(int at) { return TiledRows::column(at); }
  // Returns where the parameters of a row are.
  __device__ static int place(int row) { return (row & ~15) | (row & 8) >> 2 | (row & 6) << 1 | (row & 1); }
};

constexpr std::size_t kMaxSharedBytes = 227 << 10;
constexpr int kMaxStages = 8;

template <class Rows, int kBits, int kBlocks, int kRows>
struct Shape {
  static constexpr bool kOneBlockPerRow = kBlocks == kOneBlock;
  static constexpr int kStageBlocks = kOneBlockPerRow ? 1 : kBlocks;
  static constexpr bool kSpread = !kOneBlockPerRow && !Rows::kWindow;  // steps may be
  using TileStage = Stage<kBits, kStageBlocks, kRows>;

  // Staging of each warp: 16 x 16 fp32 results, transposed before the store.
  static constexpr std::size_t kStagingBytes = sizeof(float) * kConsumerWarps * 256;
  static constexpr std::size_t kRest = kStagingBytes + sizeof(SpreadPart) + 2048;
  static constexpr int kFitting = static_cast<int>((kMaxSharedBytes - kRest) / sizeof(TileStage));
  static constexpr int kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  using TileRing = SmemPipeline<TileStage, kStages>;
  static constexpr std::size_t kSharedBytes = sizeof(TileRing) + alignof(TileRing) + kStagingBytes + sizeof(SpreadPart);
  static_assert(kSharedBytes <= kMaxSharedBytes, "what a thread block of sm_90 may have");
};

struct Tile {
  int column, row;
};

// A thread block's place in its cluster, and the tiles that it computes: clusters walk through the tiles in bands of
// kBand of their columns, so that those which run at once need few weights and rows of x between them. Whole tiles come
// first, then the thread block's part of the spread steps; a step is as many stages as end a block. Without kSpread no
// steps are spread, and a kernel has that much less code in front of its first product. kWarps: whole warps
// call, and what a loop depends on is the same in all lanes for the compiler too.
template <bool kSpread>
class Tiles {
 public:
  __device__ Tiles(const Arguments& a, int rows, const SpreadPart& part)
      : a_(a), part_(part), cluster_(a.cluster), experts_(a.experts) {
    const int rank = ptx::cluster_rank(), size = cluster_.columns * cluster_.rows;
    in_ = rank % cluster_.columns;
    im_ = rank / cluster_.columns;
    columns_ = static_cast<unsigned>((a.w.n + Tuning::kColumns - 1) / Tuning::kColumns / cluster_.columns);
    rows_ = experts_.tiles ? static_cast<unsigned>(*experts_.count)
                           : static_cast<unsigned>((a.x.rows + rows - 1) / rows / cluster_.rows);
    at_ = blockIdx.x / size;
    stride_ = gridDim.x / size;
    set<true>();
  }
  __device__ bool valid() const { return tile_ != kNone; }
  template <bool kWarps>
  __device__ void next() {
    at_ += stride_;
    set<kWarps>();
  }
  __device__ Tile tile() const {
    const unsigned band = tile_ / (kBand * rows_), within = tile_ % (kBand * rows_);
    const unsigned left = columns_ - band * kBand, width = left < kBand ? left : kBand;
    return {static_cast<int>((band * kBand + within % width) * cluster_.columns) + in_,
            static_cast<int>(within / width * cluster_.rows) + im_};
  }
  // The steps of k that this thread block multiplies, of so many.
  __device__ int first_step() const { return first_step_; }
  __device__ int last_step() const { return last_step_; }
  __device__ int steps() const { return a_.steps; }
  // Returns the first panel of a tile's weight.
  __device__ int first_panel(const Tile& tile) const {
    const int panel = tile.column * kPanels;
    return experts_.tiles ? panel + experts_.tiles[tile.row].expert * static_cast<int>(experts_.panels) : panel;
  }

  __device__ int column() const { return in_; }  // in the cluster
  __device__ int row() const { return im_; }
  __device__ unsigned own_rank() const { return 1u << (im_ * cluster_.columns + in_); }
  __device__ unsigned row_ranks() const { return ((1u << cluster_.columns) - 1) << (im_ * cluster_.columns); }
  __device__ unsigned column_ranks() const {
    unsigned ranks = 0;
    for (int row = 0; row < cluster_.rows; ++row) ranks |= 1u << (row * cluster_.columns + in_);
    return ranks;
  }

 private:
  static constexpr unsigned kBand = 8, kNone = 0xffffffffu;
  template <bool kWarps>
  __device__ void set() {
    const bool spread = kSpread && a_.spread;
    const unsigned whole = spread ? a_.whole_tiles : columns_ * rows_;
    tile_ = at_ < whole ? at_ : kNone;
    first_step_ = 0, last_step_ = a_.steps;
    if (at_ < whole || !spread || (at_ - whole) / gridDim.x >= SpreadPart::kMaxPieces) return;
    const SpreadPart::Piece& piece = part_.pieces[(at_ - whole) / gridDim.x];
    tile_ = static_cast<unsigned>(same<kWarps>(piece.tile));
    first_step_ = same<kWarps>(piece.first_step);
    last_step_ = same<kWarps>(piece.last_step);
  }
  template <bool kWarps>
  __device__ static int same(int value) {
    return kWarps ? __shfl_sync(kAllLanes, value, 0) : value;
  }

  const Arguments& a_;
  const SpreadPart& part_;
  Cluster cluster_;
  const ExpertTiles& experts_;
  int in_, im_, first_step_, last_step_;
  unsigned columns_, rows_, at_, tile_, stride_;  // of clusters
};

// The warpgroup that fills the ring. A thread announces what is to come and has codes and their parameters copied, one
// the weight, one its parameters. Each runs alone, every instruction after the other, so they compute as little as they
// can: one copy each, in most stages.
template <int kBits, int kBlocks, int kRows, int kCount, bool kSpread>
class RowProducer {
 public:
  using To = Stage<kBits, kBlocks, kRows>;
  using ToRing = SmemPipeline<To, kCount>;
  static constexpr int kFullArrivals = 1;  // for each stage: who announces what is to come

  __device__ RowProducer(const RowArguments& a, ToRing& ring, const Tiles<kSpread>& tiles, int warp, int block_stages)
      : a_(a), pipeline_(ring), tiles_(tiles), block_stages_(block_stages), warp_(warp) {}

  __device__ static void prefetch(const RowArguments& a) { ptx::prefetch_map(a.words), ptx::prefetch_map(a.scales); }
  __device__ void run() {
    if (threadIdx.x % kWarpSize) return;
    if (warp_ == 0) copy_rows();
    if (warp_ == 1) copy_weights();
    if (warp_ == 2) copy_columns();
  }

 private:
  // Calls begin(tile, its first stage and block) and copy(stage, where to, its barrier, block): the first of the blocks
  // that end in the stage, with which their parameters come; -1 if none does.
  template <class Begin, class Copy>
  __device__ __forceinline__ void walk(Begin&& begin, Copy&& copy) {
    PipelineState<kCount> state;
    const int stages = static_cast<int>(a_.x.tiled.stages), block_stages = block_stages_;
#pragma unroll 1
    for (; tiles_.valid(); tiles_.template next<false>()) {
      const int end = tiles_.last_step() * block_stages;
      int left = block_stages, block = tiles_.first_step() * kBlocks, stage = tiles_.first_step() * block_stages;
      begin(tiles_.tile(), stage, block);
#pragma unroll 1
      for (; stage < end && stage < stages; ++stage) {
        const bool ends = --left == 0;
        ptx::barrier_wait(pipeline_.empty[state.slot], state.parity ^ 1u);
        copy(stage, pipeline_.stages[state.slot], pipeline_.full[state.slot], ends ? block : -1);
        if (ends) left = block_stages, block += kBlocks;
        state.next();
      }
    }
  }

  __device__ __forceinline__ void copy_rows() {
    const TiledRows& tiled = a_.x.tiled;
    // The parts of a tile's codes are shared out among the thread blocks that need them, as the panels of a weight are.
    const int part = static_cast<int>(sizeof(To::codes)) / a_.cluster.columns, at = tiles_.column() * part;
    const int block_floats = tiled.arrays * kRows, blocks = static_cast<int>(a_.w.blocks);
    const int column_bytes =
        static_cast<int>(sizeof(To::columns[0])) * (1 + (a_.w.offsets ? 1 : 0) + (a_.w.sums ? 1 : 0));
    const unsigned ranks = tiles_.row_ranks(), own = tiles_.own_rank();
    const std::int8_t* codes = nullptr;
    const float* parameters = nullptr;
    // Weights need nothing that another kernel writes. What is computed from codes waits for them, and so does y.
    ptx::wait_for_earlier_kernels();
    walk(
        [&](Tile tile, int stage, int block) {
          codes = a_.x.codes + (tile.row * tiled.stages + stage) * static_cast<std::int64_t>(sizeof(To::codes)) + at;
          parameters = tiled.parameters + (tile.row * a_.w.blocks + block) * block_floats;
        },
        [&](int, To& to, ptx::Barrier& full, int block) {
          constexpr auto kBytes = static_cast<int>(sizeof(To::codes) + sizeof(To::weights));
          if (block < 0) {
            ptx::barrier_expect(full, kBytes);
          } else {
            const int count = blocks - block < kBlocks ? blocks - block : kBlocks;
            const int bytes = count * block_floats * static_cast<int>(sizeof(float));
            ptx::barrier_expect(full, kBytes + bytes + column_bytes);
            ptx::bulk_copy(to.rows, parameters, bytes, full, own);
            parameters += count * block_floats;
          }
          ptx::bulk_copy(to.codes + at, codes, part, full, ranks);
          codes += sizeof(To::codes);
        });
  }

  __device__ __forceinline__ void copy_weights() {
    const int share = kPanels / a_.cluster.rows, first = tiles_.row() * share;
    const unsigned ranks = tiles_.column_ranks();
    int panel = 0;
    walk([&](Tile tile, int, int) { panel = tiles_.first_panel(tile) + first; },
         [&](int stage, To& to, ptx::Barrier& full, int) {
           if (ranks & (ranks - 1))
             ptx::tensor_copy(to.weights[first], a_.words, panel, stage * kStageUnits, full, ranks);
           else
             ptx::tensor_copy(to.weights[first], a_.words, panel, stage * kStageUnits, full);
         });
  }

  __device__ __forceinline__ void copy_columns() {
    int panel = 0;
    walk([&](Tile tile, int, int) { panel = tiles_.first_panel(tile); },
         [&](int, To& to, ptx::Barrier& full, int block) {
           if (block < 0) return;
           const int column = block * static_cast<int>(PackedLayout::kPanelRows);
           ptx::tensor_copy(to.columns[0], a_.scales, panel, column, full);
           if (a_.w.offsets) ptx::tensor_copy(to.columns[1], a_.offsets, panel, column, full);
           if (a_.w.sums) ptx::tensor_copy(to.columns[2], a_.sums, panel, column, full);
         });
  }

  static constexpr int kStageUnits = To::kPanelBytes / kWeightUnit;

  const RowArguments& a_;
  ToRing& pipeline_;
  Tiles<kSpread> tiles_;
  int block_stages_, warp_;
};

// Sets the matrices of the weight as RowProducer copies them, when all else is set.
template <int kBits, int kBlocks>
void set_maps(RowArguments& a) {
  constexpr auto kPanelRows = static_cast<int>(PackedLayout::kPanelRows);
  const std::int64_t units = a.w.steps * PackedLayout::kStepBytes / kWeightUnit, floats = a.w.blocks * kPanelRows;
  const auto parameters = [&](const float* data) {
    return ptx::tensor_map({data, 4, a.w.panels, floats, floats, kPanels, kBlocks * kPanelRows, false});
  };
  a.words = ptx::tensor_map({a.w.words, kWeightUnit, a.w.panels, units, units, kPanels / a.cluster.rows,
                             Stage<kBits, kBlocks, 1>::kPanelBytes / kWeightUnit, false});
  a.scales = parameters(a.w.scales);
  if (a.w.offsets) a.offsets = parameters(a.w.offsets);
  if (a.w.sums) a.sums = parameters(a.w.sums);
}

// Likewise under a window.
template <int kBits, int kBlocks, int kRows>
void set_maps(WindowArguments& a) {
  const GatheredRows& from = a.gathered;
  const std::int64_t units = a.w.steps * PackedLayout::kStepBytes / kWeightUnit, channels = from.row_length;
  a.words = ptx::tensor_map({a.w.words, kWeightUnit, a.w.panels, units, units, kPanels / a.cluster.rows,
                             Stage<kBits, kBlocks, 1>::kPanelBytes / kWeightUnit, false});
  a.codes =
      ptx::image_map(image_parts(a.x.codes, 1, from.pixels / from.window.image, from.window, channels,
                                 from.window.image * channels, from.window.row * channels, channels, kRows, kTapK));
}

// The warpgroup that fills the ring under a window. A thread announces what is to come and has codes copied, tap after
// tap; one the weight; a lane of each row copies its parameters, the lanes of a warp those of the weight.
template <int kBits, int kBlocks, int kRows, int kCount>
class WindowProducer {
 public:
  using To = Stage<kBits, kBlocks, kRows>;
  using ToRing = SmemPipeline<To, kCount>;
  // For each stage: of who announces what is to come, and of all lanes, some of which copy otherwise than in bulk.
  static constexpr int kFullArrivals = 1 + kWarpgroupWarps * kWarpSize;

  __device__ WindowProducer(const WindowArguments& a, ToRing& ring, const Tiles<false>& tiles, int warp,
                            int block_stages)
      : a_(a),
        pipeline_(ring),
        tiles_(tiles),
        block_stages_(block_stages),
        warp_(warp),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  __device__ static void prefetch(const WindowArguments& a) { ptx::prefetch_map(a.words), ptx::prefetch_map(a.codes); }
  __device__ __forceinline__ void run() {
    const bool copies_codes = warp_ == 0 && lane_ == 0, copies_weights = warp_ == 1 && lane_ == 0;
    const int stages = static_cast<int>(a_.x.tiled.stages);
    // Weights need nothing that another kernel writes: those of the first tile are on their way before codes are there.
    int ahead = 0;
    if (copies_weights && tiles_.valid()) {
      begin_weights(tiles_.tile().column);
      for (; ahead < kCount && ahead < stages; ++ahead) copy_weights(ahead, ahead);
    }
    ptx::wait_for_earlier_kernels();
    PipelineState<kCount> state;
#pragma unroll 1
    for (; tiles_.valid(); tiles_.template next<false>()) {
      const Tile tile = tiles_.tile();
      begin_rows(tile.row);
      begin_columns(tile.column);
      begin_weights(tile.column);
      int blocks_left = static_cast<int>(a_.w.blocks), of_block = 0;
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        // Parameters come with the last stage of their block.
        int blocks = 0;
        if (++of_block == block_stages_) {
          of_block = 0;
          blocks = blocks_left < kBlocks ? blocks_left : kBlocks;
          blocks_left -= kBlocks;
        }
        ptx::barrier_wait(pipeline_.empty[state.slot], state.parity ^ 1u);
        To& to = pipeline_.stages[state.slot];
        ptx::Barrier& full = pipeline_.full[state.slot];
        if (copies_codes) ptx::barrier_expect(full, static_cast<int>(sizeof(To::codes) + sizeof(To::weights)));
        if (copies_weights && --ahead < 0) copy_weights(state.slot, stage);
        if (warp_ == kColumnWarp) copy_columns(to, blocks);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          if (copies_codes) copy_codes(&to.codes[half * kRows * kTapK], full);
          if (warp_ < kRowWarps) copy_rows(to, half, blocks);
          next_tap();
        }
        ptx::barrier_arrive_with_copies(full);
        state.next();
      }
    }
  }

 private:
  static constexpr int kHalves = kStageK / kTapK;  // of a stage, each of one tap
  static constexpr int kRowWarps = kRows / kWarpSize, kColumnWarp = kWarpgroupWarps - 1;

  __device__ __forceinline__ void begin_rows(int tile_row) {
    const DeviceWindow& window = a_.gathered.window;
    const int row = tile_row * kRows + warp_ * kWarpSize + lane_;
    const ResultPlace place(window, a_.gathered.first, row);
    image_ = static_cast<int>(place.image - a_.gathered.first_image);
    if (row < a_.x.rows)
      origin_.set(window, place, a_.gathered.first_image);
    else
      origin_.set_nowhere();
    tap_row_ = tap_column_ = channel_ = p_ = 0;
    find();
  }
  __device__ __forceinline__ void next_tap() {
    channel_ += kTapK;
    if (channel_ < a_.gathered.row_length) return;
    channel_ = p_ = 0;
    if (++tap_column_ == a_.gathered.window.kernel[1]) tap_column_ = 0, ++tap_row_;
    find();
  }
  // Behind the last tap there is none.
  __device__ __forceinline__ bool tap_exists() const { return tap_row_ < a_.gathered.window.kernel[0]; }
  __device__ __forceinline__ void find() {
    std::int64_t pixel = 0;
    const bool found = tap_exists() && origin_.find(a_.gathered.window, tap_row_, tap_column_, pixel);
    pixel_ = found ? static_cast<int>(pixel) : -1;
  }

  // By the thread of a tile's first row: behind the last tap there are zeros.
  __device__ __forceinline__ void copy_codes(char* to, ptx::Barrier& full) const {
    const DeviceWindow& window = a_.gathered.window;
    const bool exists = tap_exists();
    ptx::image_copy(to, a_.codes, {image_, origin_.row, origin_.column}, exists ? tap_row_ * window.dilation[0] : 0,
                    exists ? tap_column_ * window.dilation[1] : 0, exists ? channel_ : a_.gathered.row_length, full);
  }

  // The parameters of the row's blocks that end in half a stage, of `blocks` that end in all of it.
  __device__ __forceinline__ void copy_rows(To& to, int half, int blocks) {
    constexpr int kHalfBlocks = kBlocks == 1 ? 1 : kBlocks / kHalves;
    if (blocks == 0 || (kBlocks == 1 && half > 0)) return;
    const int place = Im2colRows::place(warp_ * kWarpSize + lane_), arrays = a_.x.tiled.arrays;
    const std::int64_t pixels = a_.gathered.pixels, array_step = a_.gathered.tap_blocks * pixels;
    const float* from = a_.x.scales + p_ * pixels + (pixel_ < 0 ? 0 : pixel_);
#pragma unroll
    for (int i = 0; i < kHalfBlocks; ++i, from += pixels) {
      float* block = &to.rows[(half * kHalfBlocks + i) * arrays * kRows + place];
      ptx::copy_async_word(block, from, pixel_ >= 0);
      if (arrays == 1) continue;
      ptx::copy_async_word(block + kRows, from + array_step, pixel_ >= 0);
      ptx::copy_async_word(block + 2 * kRows, from + 2 * array_step, pixel_ >= 0);
    }
    p_ += kHalfBlocks;
  }

  // Thread blocks of a cluster share out the panels.
  __device__ __forceinline__ void begin_weights(int tile_column) {
    share_ = kPanels / a_.cluster.rows * tiles_.row();
    panel_ = tile_column * kPanels + share_;
  }
  __device__ __forceinline__ void copy_weights(int slot, int stage) const {
    char* to = pipeline_.stages[slot].weights[share_];
    if (a_.cluster.rows > 1)
      ptx::tensor_copy(to, a_.words, panel_, stage * kStageUnits, pipeline_.full[slot], tiles_.column_ranks());
    else
      ptx::tensor_copy(to, a_.words, panel_, stage * kStageUnits, pipeline_.full[slot]);
  }
  static constexpr int kStageUnits = To::kPanelBytes / kWeightUnit;

  // A lane copies four columns of each block.
  __device__ __forceinline__ void begin_columns(int tile_column) {
    const std::int64_t panel = static_cast<std::int64_t>(tile_column) * kPanels + lane_ / 4;
    const std::int64_t at = panel * a_.gathered.tap_blocks * PackedLayout::kPanelRows + lane_ % 4 * 4;
    const bool exists = panel < a_.w.panels;
    column_p_ = 0;
    columns_[0] = exists ? a_.w.scales + at : nullptr;
    columns_[1] = exists && a_.w.offsets ? a_.w.offsets + at : nullptr;
    columns_[2] = exists && a_.w.sums ? a_.w.sums + at : nullptr;
  }
  // The next tap has the first one's scales and offsets again, and sums of its own.
  __device__ __forceinline__ void copy_columns(To& to, int blocks) {
    const std::int64_t tap_floats = a_.gathered.tap_blocks * PackedLayout::kPanelRows;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block >= blocks) return;
      const bool last = ++column_p_ == a_.gathered.tap_blocks;
      if (last) column_p_ = 0;
#pragma unroll
      for (int array = 0; array < To::kArrays; ++array) {
        if (!columns_[array]) continue;
        ptx::copy_async(&to.columns[array][lane_ / 4][block][lane_ % 4 * 4], columns_[array], true);
        columns_[array] += PackedLayout::kPanelRows;
        if (last) columns_[array] += array < 2 ? -tap_floats : tap_floats * (a_.w.panels - 1);
      }
    }
  }

  const WindowArguments& a_;
  ToRing& pipeline_;
  Tiles<false> tiles_;
  int block_stages_, warp_, lane_;
  int image_, tap_row_, tap_column_, channel_, p_;  // under the tap: the next channel and block
  WindowOrigin origin_;                             // of the lane's row of the tile
  int pixel_;                                       // under the tap; -1: none
  int share_, panel_;                               // what is copied of the weight
  int column_p_;
  const float* columns_[To::kArrays];
};

}  // namespace qcore::sm90_int8_wgmma
