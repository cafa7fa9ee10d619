#pragma once

#include "gemm/cuda/sm90_int8_wgmma/arguments.cuh"
#include "gemm/cuda/smem_pipeline.cuh"
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
// parameters; or pixels under a window, which the lanes of all producing warps gather.
struct GemmRows {
  static constexpr bool kWindow = false;
  using Given = RowArguments;
};
struct Im2colRows {
  static constexpr bool kWindow = true;
  using Given = WindowArguments;
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

// The warpgroup that fills the ring under a window: all warps gather codes. One announces what is to come, two copy the
// panels of the weight, the fourth its parameters.
template <int kBits, int kBlocks, int kRows, int kCount>
class WindowProducer {
 public:
  using To = Stage<kBits, kBlocks, kRows>;
  using ToRing = SmemPipeline<To, kCount>;
  // For each stage: of who announces what is to come, and of the lanes, which copy otherwise than in bulk.
  static constexpr int kFullArrivals = 1 + kWarpgroupWarps * kWarpSize;

  // `origins`, of a tile's rows, is written to.
  __device__ WindowProducer(const WindowArguments& a, ToRing& ring, const Tiles<false>& tiles, int warp,
                            int block_stages, WindowOrigin* origins)
      : a_(a),
        pipeline_(ring),
        tiles_(tiles),
        block_stages_(block_stages),
        warp_(warp),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        origins_(origins + warp * kWarpRows) {}

  __device__ void run() {
    if (warp_ == 0)
      announce();
    else if (warp_ < 3)
      copy_weights();
    else
      copy_columns();
  }

 private:
  static constexpr int kWarpRows = kRows / kWarpgroupWarps;  // of a tile, that a warp gathers
  using Gather = RowGather<kWarpSize, kWarpRows, kStageK / 16>;

  __device__ __forceinline__ void begin_rows(Gather& rows, int tile_row) const {
    __syncwarp();
    const int row = tile_row * kRows + warp_ * kWarpRows + lane_;
    if (lane_ >= kWarpRows) {
      // Another lane's row.
    } else if (row < a_.x.rows) {
      origins_[lane_].set(a_.gathered.window, ResultPlace(a_.gathered.window, a_.gathered.first, row),
                          a_.gathered.first_image);
    } else {
      origins_[lane_].set_nowhere();
    }
    __syncwarp();
    rows.begin();
  }
  // Parameters come with the last of a block's stages.
  __device__ __forceinline__ void copy_stage(Gather& rows, To& to, ptx::Barrier& full, bool ends) const {
    constexpr int kBlockUnits = kStageK / 16 / kBlocks;
    const int first = warp_ * kWarpRows, arrays = a_.x.tiled.arrays;
    rows.copy_codes([&](int row) {
      const int column = TiledRows::column(first + row);
      return &to.codes[column * kStageK + (16 * rows.unit() ^ column % 8 * 16)];
    });
    if (ends && rows.unit() % kBlockUnits == 0)
      rows.copy_parameters(arrays, [&](int row, int array) {
        return &to.rows[(rows.unit() / kBlockUnits * arrays + array) * kRows + first + row];
      });
    ptx::barrier_arrive_with_copies(full);
    rows.next();
  }

  // Calls begin(tile, panels of the weight in it) and copy(stage, its barrier, bytes of a panel, blocks that end in
  // it).
  template <class Begin, class Copy>
  __device__ __forceinline__ void walk(Begin&& begin, Copy&& copy) {
    PipelineState<kCount> state;
    Gather rows(a_.x, a_.gathered, origins_, lane_);
    const int stages = static_cast<int>(a_.x.tiled.stages);
    for (; tiles_.valid(); tiles_.template next<false>()) {
      const Tile tile = tiles_.tile();
      const std::int64_t panels_left = a_.w.panels - static_cast<std::int64_t>(tile.column) * kPanels;
      begin(tile, static_cast<int>(panels_left < kPanels ? panels_left : kPanels));
      begin_rows(rows, tile.row);
      int steps_left = static_cast<int>(a_.w.steps), blocks_left = static_cast<int>(a_.w.blocks), of_block = 0;
      for (int stage = 0; stage < stages; ++stage) {
        const int steps = steps_left < 0 ? 0 : steps_left < To::kSteps ? steps_left : To::kSteps;
        steps_left -= To::kSteps;
        // Parameters come with the last stage of their block.
        int blocks = 0;
        const bool ends = ++of_block == block_stages_;
        if (ends) {
          of_block = 0;
          blocks = blocks_left < kBlocks ? blocks_left : kBlocks;
          blocks_left -= kBlocks;
        }
        ptx::barrier_wait(pipeline_.empty[state.slot], state.parity ^ 1u);
        copy(pipeline_.stages[state.slot], pipeline_.full[state.slot],
             steps * static_cast<int>(PackedLayout::kStepBytes), blocks);
        copy_stage(rows, pipeline_.stages[state.slot], pipeline_.full[state.slot], ends);
        state.next();
      }
    }
  }

  __device__ __forceinline__ void announce() {
    int panels = 0;
    walk([&](Tile, int tile_panels) { panels = tile_panels; },
         [&](To&, ptx::Barrier& full, int panel_bytes, int) {
           if (lane_ == 0) ptx::barrier_expect(full, panels * panel_bytes);
         });
  }

  __device__ __forceinline__ void copy_weights() {
    constexpr int kMax = kPanels / 2;
    const int share = kPanels / a_.cluster.rows, half = (share + 1) / 2;
    const int first = tiles_.row() * share + (warp_ - 1) * half, behind = (tiles_.row() + 1) * share;
    const std::int64_t panel_bytes = a_.w.steps * PackedLayout::kStepBytes;
    const unsigned ranks = tiles_.column_ranks();
    const char* from = nullptr;
    int count = 0;
    walk(
        [&](Tile tile, int panels) {
          from = reinterpret_cast<const char*>(a_.w.words) +
                 (static_cast<std::int64_t>(tile.column) * kPanels + first) * panel_bytes;
          const int end = panels < behind ? panels : behind;
          count = end - first < half ? end - first : half;
        },
        [&](To& to, ptx::Barrier& full, int bytes, int) {
          if (bytes == 0 || lane_ != 0) return;
#pragma unroll
          for (int i = 0; i < kMax; ++i)
            if (i < count) ptx::bulk_copy(to.weights[first + i], from + i * panel_bytes, bytes, full, ranks);
          from += bytes;
        });
  }

  // A lane copies four columns of each block.
  __device__ __forceinline__ void copy_columns() {
    const int panel = lane_ / 4, column = lane_ % 4 * 4;
    const std::int64_t tap_blocks = a_.gathered.tap_blocks;
    const std::int64_t tap_floats = tap_blocks * PackedLayout::kPanelRows;
    const float* scales = nullptr;
    const float* offsets = nullptr;
    const float* sums = nullptr;
    int p = 0;
    walk(
        [&](Tile tile, int panels) {
          const bool exists = panel < panels;
          const std::int64_t at = (static_cast<std::int64_t>(tile.column) * kPanels + panel) * tap_floats + column;
          p = 0;
          scales = exists ? a_.w.scales + at : nullptr;
          offsets = exists && a_.w.offsets ? a_.w.offsets + at : nullptr;
          sums = exists && a_.w.sums ? a_.w.sums + at : nullptr;
        },
        [&](To& to, ptx::Barrier&, int, int blocks) {
          // The next tap has the first one's scales and offsets again, and sums of its own.
          const Taps taps{p, static_cast<int>(tap_blocks)};
          copy_array(to.columns[0][panel], column, scales, blocks, taps, -tap_floats);
          copy_array(to.columns[1][panel], column, offsets, blocks, taps, -tap_floats);
          copy_array(to.columns[2][panel], column, sums, blocks, taps, tap_floats * (a_.w.panels - 1));
          p = (p + blocks) % taps.blocks;
        });
  }
  struct Taps {
    int p, blocks;  // the next block of the tap, of so many
  };
  __device__ __forceinline__ static void copy_array(float (&to)[kBlocks][PackedLayout::kPanelRows], int column,
                                                    const float*& from, int blocks, Taps taps, std::int64_t next_tap) {
    if (!from) return;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block >= blocks) break;
      ptx::copy_async(&to[block][column], from, true);
      from += PackedLayout::kPanelRows;
      if (++taps.p == taps.blocks) taps.p = 0, from += next_tap;
    }
  }

  const WindowArguments& a_;
  ToRing& pipeline_;
  Tiles<false> tiles_;
  int block_stages_, warp_, lane_;
  WindowOrigin* origins_;  // of the rows that the warp gathers
};

}  // namespace qcore::sm90_int8_wgmma
