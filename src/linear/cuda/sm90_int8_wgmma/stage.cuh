#pragma once

#include "linear/cuda/sm90_int8_wgmma/launch.cuh"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_wgmma.cuh"

// A ring of stages of 128 k in shared memory, which one warp fills by bulk copies while others compute.
namespace qcore::sm90_int8_wgmma {

constexpr int kStageK = TiledRows::kStageK;
constexpr int kPanels = Tuning::kColumns / static_cast<int>(PackedLayout::kPanelRows);  // of a tile
constexpr int kConsumerWarps = kPanels, kWarpgroupWarps = 4;
constexpr int kThreads = kWarpSize * (kConsumerWarps + kWarpgroupWarps);
constexpr int kFullArrivals = 1 + kWarpSize;  // of the producer, for each stage

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

template <class Stage, int kCount>
struct SmemPipeline {
  Stage stages[kCount];
  ptx::Barrier full[kCount];
  ptx::Barrier empty[kCount];

  // Dynamic shared memory starts at no particular multiple. Through uintptr_t the
  // address space would be lost, and nvcc would emit generic loads.
  __device__ static SmemPipeline& get(char* shared) {
    const auto behind = reinterpret_cast<std::uintptr_t>(shared) % alignof(Stage);
    return *reinterpret_cast<SmemPipeline*>(shared + (alignof(Stage) - behind) % alignof(Stage));
  }
};

// Position in a ring that producer and consumers walk through in step.
template <int kCount>
struct PipelineState {
  int slot = 0;
  unsigned parity = 0;

  __device__ void next() {
    if (++slot == kCount) slot = 0, parity ^= 1u;
  }
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
template <int kBits, int kBlocks, int kRows, int kCount>
class Producer {
 public:
  using To = Stage<kBits, kBlocks, kRows>;
  using ToRing = SmemPipeline<To, kCount>;

  __device__ Producer(const Arguments& a, ToRing& ring, const Tiles& tiles, int warp, int block_stages)
      : a_(a),
        pipeline_(ring),
        tiles_(tiles),
        block_stages_(block_stages),
        warp_(warp),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  __device__ void run() {
    if (warp_ == 0) {
      if (lane_ == 0) copy_rows();
    } else if (warp_ < 3) {
      if (lane_ == 0) copy_weights();
    } else {
      copy_columns();
    }
  }

 private:
  // Calls begin(tile, panels of the weight in it) and copy(stage, its barrier, bytes of a panel, blocks that end in
  // it).
  template <class Begin, class Copy>
  __device__ __forceinline__ void walk(Begin&& begin, Copy&& copy) {
    PipelineState<kCount> state;
    const int stages = static_cast<int>(a_.x.tiled.stages);
    for (; tiles_.valid(); tiles_.next()) {
      const Tiles::Tile tile = tiles_.tile();
      const std::int64_t panels_left = a_.w.panels - static_cast<std::int64_t>(tile.column) * kPanels;
      begin(tile, static_cast<int>(panels_left < kPanels ? panels_left : kPanels));
      int steps_left = static_cast<int>(a_.w.steps), blocks_left = static_cast<int>(a_.w.blocks), of_block = 0;
      for (int stage = 0; stage < stages; ++stage) {
        const int steps = steps_left < 0 ? 0 : steps_left < To::kSteps ? steps_left : To::kSteps;
        steps_left -= To::kSteps;
        // Parameters come with the last stage of their block.
        int blocks = 0;
        if (++of_block == block_stages_) {
          of_block = 0;
          blocks = blocks_left < kBlocks ? blocks_left : kBlocks;
          blocks_left -= kBlocks;
        }
        ptx::barrier_wait(pipeline_.empty[state.slot], state.parity ^ 1u);
        copy(pipeline_.stages[state.slot], pipeline_.full[state.slot],
             steps * static_cast<int>(PackedLayout::kStepBytes), blocks);
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
          if (bytes == 0) return;
#pragma unroll
          for (int i = 0; i < kMax; ++i)
            if (i < count) ptx::bulk_copy(to.weights[first + i], from + i * panel_bytes, bytes, full, ranks);
          from += bytes;
        });
  }

  // A lane copies four columns of each block.
  __device__ __forceinline__ void copy_columns() {
    const int panel = lane_ / 4, column = lane_ % 4 * 4;
    const float* scales = nullptr;
    const float* offsets = nullptr;
    const float* sums = nullptr;
    walk(
        [&](Tiles::Tile tile, int panels) {
          const bool exists = panel < panels;
          const std::int64_t at =
              a_.w.parameter_index(static_cast<std::int64_t>(tile.column) * kPanels + panel, 0, column);
          scales = exists ? a_.w.scales + at : nullptr;
          offsets = exists && a_.w.offsets ? a_.w.offsets + at : nullptr;
          sums = exists && a_.w.sums ? a_.w.sums + at : nullptr;
        },
        [&](To& to, ptx::Barrier& full, int, int blocks) {
          copy_array(to.columns[0][panel], column, scales, blocks);
          copy_array(to.columns[1][panel], column, offsets, blocks);
          copy_array(to.columns[2][panel], column, sums, blocks);
          ptx::barrier_arrive_with_copies(full);
        });
  }
  __device__ __forceinline__ static void copy_array(float (&to)[kBlocks][PackedLayout::kPanelRows], int column,
                                                    const float*& from, int blocks) {
    if (!from) return;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      if (block < blocks) ptx::copy_async(&to[block][column], from + block * PackedLayout::kPanelRows, true);
    from += blocks * PackedLayout::kPanelRows;
  }

  const Arguments& a_;
  ToRing& pipeline_;
  Tiles tiles_;
  int block_stages_, warp_, lane_;
};

}  // namespace qcore::sm90_int8_wgmma
