#pragma once

#include "gemm/cuda/sm90_int8_wgmma/arguments.cuh"
#include "gemm/cuda/smem_pipeline.cuh"
#include "runtime/cuda/cuda_warp.cuh"

// A ring of stages of 128 k in shared memory, which one warp fills by bulk copies while others compute.
namespace qcore::sm90_int8_wgmma {

constexpr int kStageK = TiledRows::kStageK;
constexpr int kPanels = Tuning::kColumns / static_cast<int>(PackedLayout::kPanelRows);  // of a tile
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
  using Given = Arguments;
};
struct Im2colRows {
  static constexpr bool kWindow = true;
  using Given = WindowArguments;
};

// A thread block's place in its cluster, and the tiles that it computes: clusters walk through the tiles in bands of
// kBand of their columns, so that those which run at once need few weights and rows of x between them.
class Tiles {
 public:
  struct Tile {
    int column, row;
  };

  __device__ Tiles(const Arguments& a, int rows) : cluster_(a.cluster) {
    const int rank = ptx::cluster_rank(), size = cluster_.columns * cluster_.rows;
    in_ = rank % cluster_.columns;
    im_ = rank / cluster_.columns;
    columns_ = static_cast<unsigned>((a.w.n + Tuning::kColumns - 1) / Tuning::kColumns / cluster_.columns);
    rows_ = static_cast<unsigned>((a.x.rows + rows - 1) / rows / cluster_.rows);
    at_ = blockIdx.x / size;
    stride_ = gridDim.x / size;
  }
  __device__ bool valid() const { return at_ < columns_ * rows_; }
  __device__ void next() { at_ += stride_; }
  __device__ Tile tile() const {
    const unsigned band = at_ / (kBand * rows_), within = at_ % (kBand * rows_);
    const unsigned left = columns_ - band * kBand, width = left < kBand ? left : kBand;
    return {static_cast<int>((band * kBand + within % width) * cluster_.columns) + in_,
            static_cast<int>(within / width * cluster_.rows) + im_};
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
  static constexpr unsigned kBand = 8;
  Cluster cluster_;
  int in_, im_;
  unsigned columns_, rows_, at_, stride_;  // of clusters
};

// The warpgroup that fills the ring. One warp announces what is to come and copies what lies in one piece, two copy the
// panels of the weight, the fourth its parameters. Each runs alone, every instruction after the other, so that they
// keep pointers and compute as little as they can.
template <class Rows, int kBits, int kBlocks, int kRows, int kCount>
class Producer {
 public:
  using To = Stage<kBits, kBlocks, kRows>;
  using ToRing = SmemPipeline<To, kCount>;
  // For each stage: of who announces what is to come, and of the lanes that copy otherwise than in bulk.
  static constexpr int kFullArrivals = 1 + (Rows::kWindow ? kWarpgroupWarps : 1) * kWarpSize;

  // `origins`, of a tile's rows, is written to; null without a window.
  __device__ Producer(const typename Rows::Given& a, ToRing& ring, const Tiles& tiles, int warp, int block_stages,
                      WindowOrigin* origins)
      : a_(a),
        pipeline_(ring),
        tiles_(tiles),
        block_stages_(block_stages),
        warp_(warp),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        origins_(origins + warp * kWarpRows) {}

  __device__ void run() {
    if (warp_ == 0) {
      if (Rows::kWindow || lane_ == 0) copy_rows();
    } else if (warp_ < 3) {
      if (Rows::kWindow || lane_ == 0) copy_weights();
    } else {
      copy_columns();
    }
  }

 private:
  static constexpr int kWarpRows = kRows / kWarpgroupWarps;  // of a tile, that a warp gathers
  struct NoGather {};

  __device__ auto gather() const {
    if constexpr (Rows::kWindow)
      return RowGather<kWarpSize, kWarpRows, kStageK / 16>(a_.x, a_.gathered, origins_, lane_);
    else
      return NoGather{};
  }
  template <class Gather>
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
  template <class Gather>
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
    auto rows = gather();
    const int stages = static_cast<int>(a_.x.tiled.stages);
    for (; tiles_.valid(); tiles_.next()) {
      const Tiles::Tile tile = tiles_.tile();
      const std::int64_t panels_left = a_.w.panels - static_cast<std::int64_t>(tile.column) * kPanels;
      begin(tile, static_cast<int>(panels_left < kPanels ? panels_left : kPanels));
      if constexpr (Rows::kWindow) begin_rows(rows, tile.row);
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
        if constexpr (Rows::kWindow) copy_stage(rows, pipeline_.stages[state.slot], pipeline_.full[state.slot], ends);
        state.next();
      }
    }
  }

  __device__ __forceinline__ void copy_rows() {
    const TiledRows& tiled = a_.x.tiled;
    // The parts of a tile's codes are shared out among the thread blocks that need them, as the panels of a weight are.
    const int part = static_cast<int>(sizeof(To::codes)) / a_.cluster.columns, at = tiles_.column() * part;
    const int block_floats = tiled.arrays * kRows;
    const unsigned ranks = tiles_.row_ranks(), own = tiles_.own_rank();
    const std::int8_t* codes = nullptr;
    const float* parameters = nullptr;
    int panels = 0;
    walk(
        [&](Tiles::Tile tile, int tile_panels) {
          codes = a_.x.codes + tile.row * tiled.stages * static_cast<std::int64_t>(sizeof(To::codes)) + at;
          parameters = tiled.parameters + tile.row * a_.w.blocks * block_floats;
          panels = tile_panels;
        },
        [&](To& to, ptx::Barrier& full, int panel_bytes, int blocks) {
          if constexpr (Rows::kWindow) {
            if (lane_ == 0) ptx::barrier_expect(full, panels * panel_bytes);
            return;
          }
          const int bytes = blocks * block_floats * static_cast<int>(sizeof(float));
          ptx::barrier_expect(full, static_cast<int>(sizeof(To::codes)) + bytes + panels * panel_bytes);
          ptx::bulk_copy(to.codes + at, codes, part, full, ranks);
          if (blocks) ptx::bulk_copy(to.rows, parameters, bytes, full, own);
          codes += sizeof(To::codes);
          parameters += blocks * block_floats;
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
        [&](Tiles::Tile tile, int panels) {
          from = reinterpret_cast<const char*>(a_.w.words) +
                 (static_cast<std::int64_t>(tile.column) * kPanels + first) * panel_bytes;
          const int end = panels < behind ? panels : behind;
          count = end - first < half ? end - first : half;
        },
        [&](To& to, ptx::Barrier& full, int bytes, int) {
          if (bytes == 0 || (Rows::kWindow && lane_ != 0)) return;
#pragma unroll
          for (int i = 0; i < kMax; ++i)
            if (i < count) ptx::bulk_copy(to.weights[first + i], from + i * panel_bytes, bytes, full, ranks);
          from += bytes;
        });
  }

  // A lane copies four columns of each block.
  __device__ __forceinline__ void copy_columns() {
    const int panel = lane_ / 4, column = lane_ % 4 * 4;
    std::int64_t tap_blocks = a_.w.blocks;
    if constexpr (Rows::kWindow) tap_blocks = a_.gathered.tap_blocks;
    const std::int64_t tap_floats = tap_blocks * PackedLayout::kPanelRows;
    const float* scales = nullptr;
    const float* offsets = nullptr;
    const float* sums = nullptr;
    int p = 0;
    walk(
        [&](Tiles::Tile tile, int panels) {
          const bool exists = panel < panels;
          const std::int64_t at = (static_cast<std::int64_t>(tile.column) * kPanels + panel) * tap_floats + column;
          p = 0;
          scales = exists ? a_.w.scales + at : nullptr;
          offsets = exists && a_.w.offsets ? a_.w.offsets + at : nullptr;
          sums = exists && a_.w.sums ? a_.w.sums + at : nullptr;
        },
        [&](To& to, ptx::Barrier& full, int, int blocks) {
          // The next tap has the first one's scales and offsets again, and sums of its own.
          const Taps taps{p, static_cast<int>(tap_blocks)};
          copy_array(to.columns[0][panel], column, scales, blocks, taps, -tap_floats);
          copy_array(to.columns[1][panel], column, offsets, blocks, taps, -tap_floats);
          copy_array(to.columns[2][panel], column, sums, blocks, taps, tap_floats * (a_.w.panels - 1));
          if constexpr (Rows::kWindow)
            p = (p + blocks) % taps.blocks;
          else
            ptx::barrier_arrive_with_copies(full);
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
      if (Rows::kWindow && ++taps.p == taps.blocks) taps.p = 0, from += next_tap;
    }
  }

  const typename Rows::Given& a_;
  ToRing& pipeline_;
  Tiles tiles_;
  int block_stages_, warp_, lane_;
  WindowOrigin* origins_;  // of the rows that the warp gathers
};

}  // namespace qcore::sm90_int8_wgmma
