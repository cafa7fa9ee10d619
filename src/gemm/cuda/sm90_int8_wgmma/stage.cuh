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
    // Where no steps are spread, one register less lives across a tile.
    at_ = (kSpread ? at_ : tile_) + stride_;
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

// The warpgroup that fills the ring under a window. Each of its warps runs alone, every instruction after the other,
// and the slowest sets the pace, so each has work of its own: a thread announces what is to come and has codes copied,
// tap after tap; a warp copies the weight and its parameters; others the parameters of some rows per lane.
template <int kBits, int kBlocks, int kRows, int kCount>
class WindowProducer {
 public:
  using To = Stage<kBits, kBlocks, kRows>;
  using ToRing = SmemPipeline<To, kCount>;
  static constexpr int kRowWarps = kRows < 64 ? 1 : 2, kLaneRows = kRows / (kRowWarps * kWarpSize);
  // For each stage: of who announces what is to come, and of all lanes that copy otherwise than in bulk.
  static constexpr int kFullArrivals = 1 + (1 + kRowWarps) * kWarpSize;

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
    if (warp_ == 0) {
      if (lane_ == 0) copy_codes();
    } else if (warp_ == 1) {
      copy_weights();
    } else if (warp_ < kFirstRowWarp + kRowWarps) {
      copy_rows();
    }
  }

 private:
  static constexpr int kHalves = kStageK / kTapK;  // of a stage, each of one tap
  static constexpr int kFirstRowWarp = 2;

  // Calls begin(tile) and copy(the stage, its number, its barrier, how many blocks end in it: their parameters come
  // with it).
  template <class Begin, class Copy>
  __device__ __forceinline__ void walk(Begin&& begin, Copy&& copy) {
    PipelineState<kCount> state;
    const int stages = static_cast<int>(a_.x.tiled.stages), block_stages = block_stages_;
#pragma unroll 1
    for (; tiles_.valid(); tiles_.template next<false>()) {
      begin(tiles_.tile());
      int blocks_left = static_cast<int>(a_.w.blocks), of_block = 0;
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        int blocks = 0;
        if (++of_block == block_stages) {
          of_block = 0;
          blocks = blocks_left < kBlocks ? blocks_left : kBlocks;
          blocks_left -= kBlocks;
        }
        ptx::barrier_wait(pipeline_.empty[state.slot], state.parity ^ 1u);
        copy(pipeline_.stages[state.slot], stage, pipeline_.full[state.slot], blocks);
        state.next();
      }
    }
  }

  __device__ __forceinline__ void copy_codes() {
    const DeviceWindow& window = a_.gathered.window;
    const int length = a_.gathered.row_length;
    ptx::ImagePlace first;
    int tap_row = 0, tap_column = 0, column = 0, channel = 0;  // the tap's place is in pixels
    bool waits = true;
    walk(
        [&](const Tile& tile) {
          const ResultPlace place(window, a_.gathered.first, tile.row * kRows);
          first = {static_cast<int>(place.image - a_.gathered.first_image),
                   place.row * window.stride[0] - window.before[0], place.column * window.stride[1] - window.before[1]};
          tap_row = tap_column = column = channel = 0;
          if (waits) ptx::wait_for_earlier_kernels();
          waits = false;
        },
        [&](To& to, int, ptx::Barrier& full, int) {
          ptx::barrier_expect(full, static_cast<int>(sizeof(To::codes) + sizeof(To::weights)));
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            ptx::image_copy(&to.codes[half * kRows * kTapK], a_.codes, first, tap_row, tap_column, channel, full);
            if ((channel += kTapK) < length) continue;
            channel = 0;
            tap_column += window.dilation[1];
            if (++column < window.kernel[1]) continue;
            column = tap_column = 0;
            // Behind the last tap there are zeros.
            if ((tap_row += window.dilation[0]) == window.kernel[0] * window.dilation[0]) tap_row = 0, channel = length;
          }
        });
  }

  // Thread blocks of a cluster share out the panels.
  __device__ __forceinline__ void copy_weights() {
    constexpr int kStageUnits = To::kPanelBytes / kWeightUnit;
    const int share = kPanels / a_.cluster.rows, first = share * tiles_.row();
    const unsigned ranks = tiles_.column_ranks();
    int panel = 0;
    const auto copy_words = [&](To& to, int stage, ptx::Barrier& full) {
      if (ranks & (ranks - 1))
        ptx::tensor_copy(to.weights[first], a_.words, panel, stage * kStageUnits, full, ranks);
      else
        ptx::tensor_copy(to.weights[first], a_.words, panel, stage * kStageUnits, full);
    };
    // Weights need nothing that another kernel writes: those of the first tile are on their way before codes are there.
    int ahead = 0;
    if (lane_ == 0 && tiles_.valid()) {
      panel = tiles_.tile().column * kPanels + first;
      for (; ahead < kCount && ahead < a_.x.tiled.stages; ++ahead)
        copy_words(pipeline_.stages[ahead], ahead, pipeline_.full[ahead]);
    }
    if (a_.w.sums) ptx::wait_for_earlier_kernels();
    walk(
        [&](const Tile& tile) {
          panel = tile.column * kPanels + first;
          begin_columns(tile.column);
        },
        [&](To& to, int stage, ptx::Barrier& full, int blocks) {
          if (lane_ == 0 && --ahead < 0) copy_words(to, stage, full);
          copy_columns(to, blocks);
          ptx::barrier_arrive_with_copies(full);
        });
  }

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

  // A lane has rows of the tile kWarpSize apart: it finds their pixels once per tap.
  __device__ __forceinline__ void copy_rows() {
    constexpr int kStepK = kBlocks == 1 ? kStageK : kTapK;  // of one tap, as a block is
    constexpr int kSteps = kStageK / kStepK, kStepBlocks = kBlocks == 1 ? 1 : kBlocks / kSteps;
    constexpr int kNowhere = -(1 << 30);  // a result that there is none of
    const DeviceWindow& window = a_.gathered.window;
    const int own = (warp_ - kFirstRowWarp) * kLaneRows * kWarpSize + lane_, place = Im2colRows::place(own);
    const int arrays = a_.x.tiled.arrays;
    const std::int64_t pixels = a_.gathered.pixels, array_step = a_.gathered.tap_blocks * pixels;
    int image[kLaneRows], row[kLaneRows], column[kLaneRows], pixel[kLaneRows];  // pixel: -1 outside of the image
    int channel = 0, tap_column = 0;
    const float* block = a_.x.scales;
    const auto find = [&] {
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        const bool inside = static_cast<unsigned>(row[i]) < static_cast<unsigned>(window.input[0]) &&
                            static_cast<unsigned>(column[i]) < static_cast<unsigned>(window.input[1]);
        pixel[i] = inside ? image[i] + row[i] * window.input[1] + column[i] : -1;
      }
    };
    bool waits = true;
    walk(
        [&](const Tile& tile) {
#pragma unroll
          for (int i = 0; i < kLaneRows; ++i) {
            const int at = tile.row * kRows + own + i * kWarpSize;
            const ResultPlace of(window, a_.gathered.first, at);
            image[i] = static_cast<int>((of.image - a_.gathered.first_image) * window.image);
            row[i] = at < a_.x.rows ? of.row * window.stride[0] - window.before[0] : kNowhere;
            column[i] = of.column * window.stride[1] - window.before[1];
          }
          channel = tap_column = 0;
          block = a_.x.scales;
          find();
          if (waits) ptx::wait_for_earlier_kernels();
          waits = false;
        },
        [&](To& to, int, ptx::Barrier& full, int blocks) {
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            if (blocks > 0) {
#pragma unroll
              for (int p = 0; p < kStepBlocks; ++p, block += pixels)
#pragma unroll
                for (int i = 0; i < kLaneRows; ++i) {
                  const float* from = block + (pixel[i] < 0 ? 0 : pixel[i]);
                  float* target = &to.rows[(step * kStepBlocks + p) * arrays * kRows + place + i * kWarpSize];
                  ptx::copy_async_word(target, from, pixel[i] >= 0);
                  if (arrays == 1) continue;
                  ptx::copy_async_word(target + kRows, from + array_step, pixel[i] >= 0);
                  ptx::copy_async_word(target + 2 * kRows, from + 2 * array_step, pixel[i] >= 0);
                }
            }
            // Behind the last tap there may be any parameters: no block ends there.
            if ((channel += kStepK) < a_.gathered.row_length) continue;
            channel = 0;
            block = a_.x.scales;
            const bool same_row = ++tap_column < window.kernel[1];
            if (!same_row) tap_column = 0;
#pragma unroll
            for (int i = 0; i < kLaneRows; ++i) {
              column[i] += same_row ? window.dilation[1] : (1 - window.kernel[1]) * window.dilation[1];
              if (!same_row) row[i] += window.dilation[0];
            }
            find();
          }
          ptx::barrier_arrive_with_copies(full);
        });
  }

  const WindowArguments& a_;
  ToRing& pipeline_;
  Tiles<false> tiles_;
  int block_stages_, warp_, lane_;
  int column_p_;
  const float* columns_[To::kArrays];
};

}  // namespace qcore::sm90_int8_wgmma
