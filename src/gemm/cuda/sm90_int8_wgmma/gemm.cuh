#pragma once

#include <type_traits>

#include "gemm/cuda/sm90_int8_wgmma/operand.cuh"
#include "gemm/cuda/sm90_int8_wgmma/store.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_memory.cuh"
#include "runtime/memory.h"

// The kernel and the choice among its instances.
namespace qcore::sm90_int8_wgmma {

// Registers of a producing thread. Every thread starts with 168; the sum over the three warpgroups stays the same.
template <class Rows>
constexpr int kProducerRegisters = Rows::kWindow ? 56 : 40;
template <class Rows>
constexpr int kConsumerRegisters = Rows::kWindow ? 224 : 232;

// A 16th of an integer that is a multiple of 16 and less than 2^22: as the last bits of a float between 2^19 and 2^20.
__device__ __forceinline__ float sixteenth(std::int32_t value) {
#if defined(__CUDA_ARCH__)
  return __int_as_float(value + 0x49400000) - 786432.0f;
#else
  return static_cast<float>(value / 16);
#endif
}

// A warpgroup computes 64 columns n of a tile, a warp a panel of 16: row `group` of its part of a product is column
// 2*group, row group + 8 the one behind it.
template <class Rows, int kBits, int kBlocks, int kRows>
class Consumer {
 public:
  using S = Shape<Rows, kBits, kBlocks, kRows>;
  using TileStage = typename S::TileStage;
  static constexpr int kStages = S::kStages;
  static constexpr bool kOneBlockPerRow = S::kOneBlockPerRow;
  static constexpr int kChunks = kStageK / S::kStageBlocks / 32;  // products of a block, in a stage
  // Registers are enough for two products of a stage: while one runs, the other is promoted.
  static constexpr bool kInTurns = kBlocks == 1 && kRows <= 64;
  // It pays where a warp decodes for as long as it promotes.
  static constexpr bool kTimes16 = kInTurns && kRows == 32 && kBits == 4;
  // Tiles of 256 rows in blocks: the halves' products take turns in the same registers, with the same weights.
  static constexpr bool kSharesSums = kRows > 128 && !kOneBlockPerRow;
  // Tiles of 128 rows in blocks: while one half is multiplied, the other is promoted. Rows of a matrix have less work
  // around a promotion, so that it pays where a stage has two of them only.
  static constexpr bool kHalves =
      (kRows == 128 && (Rows::kWindow || kBlocks == 2)) || (Rows::kWindow && kRows == 64 && kBlocks > 1);
  static constexpr int kParts = kSharesSums || kHalves ? 2 : 1, kPartRows = kRows / kParts;
  using Operand = Weights<kBits, kTimes16>;
  using Sums = std::int32_t[kPartRows / 2];

  __device__ Consumer(const Arguments& a, typename S::TileRing& ring, Tiles<S::kSpread>& tiles, int warp,
                      int block_stages)
      : a_(a),
        pipeline_(ring),
        tiles_(tiles),
        block_stages_(block_stages),
        panel_(warp),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        group_(lane_ / 4),
        quad_(lane_ % 4),
        upper_(a.upper_nibbles) {
    // Which producers wait for this thread block: those of its row and column of the cluster.
    releases_ =
        lane_ < a.cluster.columns * a.cluster.rows && ((tiles.row_ranks() | tiles.column_ranks()) >> lane_ & 1u);
  }

  __device__ void run() {
    PipelineState<kStages> state;
    for (; tiles_.valid(); tiles_.template next<true>()) {
      if constexpr (kOneBlockPerRow) {
        const PipelineState<kStages> last = sum_row(state);
        last_ = &pipeline_.stages[last.slot];
        store();
        release(last);
      } else {
        sum_blocks(state);
        if (S::kSpread && tiles_.last_step() < tiles_.steps())
          leave_totals(a_.spread_totals, panel_, kConsumerWarps, y_);
        else
          store();
      }
    }
  }

 private:
  // Scales of a block: of a lane's columns and rows.
  struct Terms {
    float2 columns;
    float4 rows[kPartRows / 16];

    Terms() = default;
    __device__ __forceinline__ Terms(const Consumer& of, const TileStage& stage, int block, int part = 0)
        : columns(of.column_pair(stage, 0, block)) {
      const float* from = of.row_parameters(stage, block) + part * kPartRows;
#pragma unroll
      for (int j = 0; j < kPartRows / 16; ++j) rows[j] = *reinterpret_cast<const float4*>(from + 16 * j);
    }
  };

  __device__ __forceinline__ void sum_blocks(PipelineState<kStages>& state) {
    // Steps that are spread belong to no more than two thread blocks for each tile, in the order of k.
    const int begin = tiles_.first_step() * block_stages_, end = tiles_.last_step() * block_stages_;
    const int all = static_cast<int>(a_.x.tiled.stages), stages = (end < all ? end : all) - begin;
    std::int64_t blocks_left = a_.w.blocks - static_cast<std::int64_t>(tiles_.first_step()) * kBlocks;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) y_[i] = 0.0f;
    if (S::kSpread && begin > 0)
      take_totals<kRows / 2>(
          a_.spread_totals, static_cast<int>(blockIdx.x) - 1, panel_, kConsumerWarps, [&](int i, float4 four) {
            y_[4 * i] = four.x, y_[4 * i + 1] = four.y, y_[4 * i + 2] = four.z, y_[4 * i + 3] = four.w;
          });
    if (stages > 0) wait_and_load(state, weights_[0]);
    if constexpr (kSharesSums) return sum_parts(state, stages);
    int first = 0;
    if constexpr (kHalves) {
      if (block_stages_ == 1 && a_.x.tiled.arrays == 1) {
        const int whole = static_cast<int>(blocks_left) / kBlocks;
        first = whole < stages ? whole : stages;
        sum_halves(state, first, first < stages);
      }
    }
    if constexpr (kInTurns)
      if (block_stages_ == 1) return sum_in_turns(state, stages);
    blocks_left -= first * kBlocks;
    for (int stage = first, of_block = 0; stage < stages; ++stage) {
      const PipelineState<kStages> here = state;
      state.next();
      const bool ends = of_block + 1 == block_stages_;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const TileStage& here_stage = pipeline_.stages[here.slot];
        for_each_half([&](int half) { issue(weights_[0], here_stage, block, sums_[half], of_block > 0, half); });
        for_each_half([&](int half) { ptx::product_wait(sums_[half]); });
        // While the other warpgroup multiplies: the next operands, then this block's totals. Behind the weight's last
        // block there are products of codes that were not written.
        if (block + 1 == kBlocks && stage + 1 < stages) wait_and_load(state, weights_[0]);
        if (!ends || block >= blocks_left) continue;
        for_each_half([&](int half) {
          promote<kTimes16>(Terms(*this, here_stage, block, half), sums_[half], half * kPartRows / 2);
        });
        add_block_offsets(here_stage, block);
      }
      of_block = ends ? 0 : of_block + 1;
      if (ends) blocks_left -= kBlocks;
      release(here);
    }
  }

  template <class Call>
  __device__ __forceinline__ static void for_each_half(const Call& call) {
#pragma unroll
    for (int half = 0; half < (kHalves ? 2 : 1); ++half) call(half);
  }

  // Stages of whole blocks without offsets, `count` of them, behind which there are `more`: while a half of the rows is
  // multiplied, the product before it is promoted; with one block in a stage, that of the stage before it too, for
  // which the registers are too few with several. Whatever a thread loads from shared memory it asks for before it
  // issues a product, behind which loads wait in a queue. No product runs across the loop's end, where the compiler
  // would wait for it.
  __device__ __forceinline__ void sum_halves(PipelineState<kStages>& state, int count, bool more) {
    constexpr int kUnits = 2 * kBlocks, kPartSums = kPartRows / 2;
    constexpr bool kAcrossStages = kBlocks == 1;
    Terms terms{};  // of the product that is promoted next: at first of none, which adds zeros
    if constexpr (kAcrossStages) clear(sums_[1]);
#pragma unroll 1
    for (; count > 0; --count) {
      const PipelineState<kStages> here = state;
      const TileStage& stage = pipeline_.stages[here.slot];
      state.next();
      // Behind the last stage its own weights are loaded again: with a branch the operands' registers would be free.
      const PipelineState<kStages> next = more || count > 1 ? state : here;
      wait_for(next);
      weights_[1].load(pipeline_.stages[next.slot].weights[panel_], group_, quad_, upper_);
      issue(weights_[0], stage, 0, sums_[0], false, 0);
      if constexpr (kAcrossStages) promote(terms, sums_[1], kPartSums);
      ptx::keep(weights_[1].a);
      finish(sums_[0], kPartSums);
#pragma unroll
      for (int unit = 1; unit < kUnits; ++unit) {
        const int half = unit % 2, last = 1 - half;
        terms = Terms(*this, stage, (unit - 1) / 2, last);
        issue(weights_[0], stage, unit / 2, sums_[half], false, half);
        promote(terms, sums_[last], last * kPartSums);
        finish(sums_[half], last * kPartSums);
      }
      terms = Terms(*this, stage, kBlocks - 1, 1);
      if constexpr (!kAcrossStages) promote(terms, sums_[1], kPartSums);
      release(here);
      weights_[0] = weights_[1];
    }
    if constexpr (kAcrossStages) promote(terms, sums_[1], kPartSums);
  }
  // Waits for a product of weights_[0], when a part of the totals has been promoted: the compiler would do that behind
  // the wait.
  __device__ __forceinline__ void finish(Sums& sums, int base) {
    ptx::keep<kPartRows / 2>(y_ + base);
    ptx::product_wait(sums);
    ptx::keep(weights_[0].a);
  }
  __device__ __forceinline__ static void clear(Sums& sums) {
#pragma unroll
    for (std::int32_t& sum : sums) sum = 0;
  }

  __device__ __forceinline__ void sum_parts(PipelineState<kStages>& state, int stages) {
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      const PipelineState<kStages> here = state;
      state.next();
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        issue(weights_[0], pipeline_.stages[here.slot], 0, sums_[0], false, part);
        ptx::product_wait(sums_[0]);
        ptx::keep(weights_[0].a);
        if (part + 1 == kParts && stage + 1 < stages) wait_and_load(state, weights_[0]);
        promote(Terms(*this, pipeline_.stages[here.slot], 0, part), sums_[0], part * kPartRows / 2);
      }
      add_block_offsets(pipeline_.stages[here.slot], 0);
      release(here);
    }
  }

  // Stages of one block each: a product is promoted while the next one runs, and weights are loaded before the stage in
  // front of them is multiplied.
  __device__ __forceinline__ void sum_in_turns(PipelineState<kStages>& state, int count) {
    PipelineState<kStages> before = state;
    Terms terms[2]{};  // as in sum_halves()
    clear(sums_[1]);
    bool begun = false;
#pragma unroll 1
    for (; count > 1; count -= 2, begun = true) {
      turn_stage(state, before, weights_[0], weights_[1], sums_[0], sums_[1], terms[0], terms[1], begun, true);
      turn_stage(state, before, weights_[1], weights_[0], sums_[1], sums_[0], terms[1], terms[0], true, count > 2);
    }
    if (count == 1) {
      turn_stage(state, before, weights_[0], weights_[1], sums_[0], sums_[1], terms[0], terms[1], begun, false);
      promote(terms[0], sums_[0]);
    } else {
      promote(terms[1], sums_[1]);
      if (!begun) return;
    }
    add_block_offsets(pipeline_.stages[before.slot], 0);
    release(before);
  }
  // `more`: a stage follows. Between the product and the end of its wait there is no branch, see add_stage().
  __device__ __forceinline__ void turn_stage(PipelineState<kStages>& state, PipelineState<kStages>& before,
                                             Operand& weights, Operand& next, Sums& sums, Sums& last, Terms& terms,
                                             const Terms& last_terms, bool begun, bool more) {
    const PipelineState<kStages> here = state;
    const TileStage &stage = pipeline_.stages[here.slot], &earlier = pipeline_.stages[before.slot];
    state.next();
    const PipelineState<kStages> following = more ? state : here;
    wait_for(following);
    next.load(pipeline_.stages[following.slot].weights[panel_], group_, quad_, upper_);
    terms = Terms(*this, stage, 0);
    issue(weights, stage, 0, sums, false);
    promote(last_terms, last);
    // Without this the compiler decodes the next weights and promotes behind the wait.
    ptx::keep(next.a);
    ptx::keep<kRows / 2>(y_);
    ptx::product_wait(sums);
    ptx::keep(weights.a);
    if (begun) {
      add_block_offsets(earlier, 0);
      release(before);
    }
    before = here;
  }

  // The row's int32 sums, with the weights of a stage loaded while the stage before it is multiplied. Returns the last
  // stage, which holds the parameters.
  __device__ __forceinline__ PipelineState<kStages> sum_row(PipelineState<kStages>& state) {
    int left = static_cast<int>(a_.x.tiled.stages);
    bool add = false;
    wait_and_load(state, weights_[0]);
    for (; left > 2; left -= 2) {
      add_stage(state, weights_[0], weights_[1], add);
      add_stage(state, weights_[1], weights_[0], true);
      add = true;
    }
    if (left == 1) return add_last_stage(state, weights_[0], add);
    add_stage(state, weights_[0], weights_[1], add);
    return add_last_stage(state, weights_[1], true);
  }
  // Waits for the next stage before the products begin: a branch until they end would free their operands' registers.
  __device__ __forceinline__ void add_stage(PipelineState<kStages>& state, Operand& weights, Operand& next, bool add) {
    const PipelineState<kStages> here = state;
    state.next();
    wait_for(state);
    issue(weights, pipeline_.stages[here.slot], 0, sums_[0], add);
    next.load(pipeline_.stages[state.slot].weights[panel_], group_, quad_, upper_);
    // Both keep their registers until here, as in turn_stage(). Without that the compiler decodes weights between the
    // products of every second stage, and each product waits for the one before it.
    ptx::keep(next.a);
    ptx::product_wait(sums_[0]);
    ptx::keep(weights.a);
    release(here);
  }
  __device__ __forceinline__ PipelineState<kStages> add_last_stage(PipelineState<kStages>& state,
                                                                   const Operand& weights, bool add) {
    const PipelineState<kStages> here = state;
    state.next();
    issue(weights, pipeline_.stages[here.slot], 0, sums_[0], add);
    ptx::product_wait(sums_[0]);
    return here;
  }
  __device__ __forceinline__ void release(const PipelineState<kStages>& state) {
    __syncwarp();
    // Under a window every thread block of the cluster waits, so that no register has to say who does.
    if (Rows::kWindow ? lane_ < a_.cluster.rows : releases_) ptx::barrier_arrive(pipeline_.empty[state.slot], lane_);
  }

  __device__ __forceinline__ void wait_for(const PipelineState<kStages>& state) {
    ptx::barrier_wait(pipeline_.full[state.slot], state.parity);
  }
  __device__ __forceinline__ void wait_and_load(const PipelineState<kStages>& state, Operand& weights) {
    wait_for(state);
    weights.load(pipeline_.stages[state.slot].weights[panel_], group_, quad_, upper_);
  }

  __device__ __forceinline__ void issue(const Operand& weights, const TileStage& stage, int block, Sums& sums, bool add,
                                        int part = 0) {
    constexpr int kRowBytes = Rows::kRowBytes, kRowChunks = kRowBytes / 32;
    const ptx::SwizzledRows codes =
        ptx::next_k(ptx::swizzled_rows<kRowBytes>(stage.codes), part * kPartRows * kRowBytes);
    ptx::product_fence();
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = block * kChunks + i;
      const int place = chunk / kRowChunks * (kRows * kRowBytes) + chunk % kRowChunks * 32;
      ptx::product<kPartRows>(sums, weights.a[chunk], ptx::next_k(codes, place), i > 0 || add);
    }
    ptx::product_commit();
  }

  // Adds a block's products to the totals. kLong: of blocks of any length.
  template <bool kLong = false>
  __device__ __forceinline__ void promote(const Terms& terms, const Sums& sums, int base = 0) {
    const auto sum = [&](int i) {
      return !kTimes16 ? static_cast<float>(sums[i]) : kLong ? static_cast<float>(sums[i] >> 4) : sixteenth(sums[i]);
    };
    float* y = y_ + base;
#pragma unroll
    for (int j = 0; j < kPartRows / 16; ++j)
      for_each_row(terms.rows[j], [&](int at, float row) {
        y[8 * j + at] = numerics::add_float_product(y[8 * j + at], sum(8 * j + at), row, terms.columns.x);
        y[8 * j + at + 2] = numerics::add_float_product(y[8 * j + at + 2], sum(8 * j + at + 2), row, terms.columns.y);
      });
  }
  __device__ __forceinline__ void add_block_offsets(const TileStage& stage, int block) {
    if (a_.x.tiled.arrays == 1) return;
    const float* rows = row_parameters(stage, block);
    if (a_.w.offsets) add<1>(column_pair(stage, 1, block), rows + kRows);
    if (a_.w.sums) add<2>(column_pair(stage, 2, block), rows + 2 * kRows);
  }
  __device__ __forceinline__ const float* row_parameters(const TileStage& stage, int block) const {
    return &stage.rows[block * a_.x.tiled.arrays * kRows + kRegisterRows * quad_];
  }
  template <int kArray>
  __device__ __forceinline__ void add(float2 columns, const float* rows) {
#pragma unroll
    for (int j = 0; j < kRows / 16; ++j) add_offsets<kArray>(y_ + 8 * j, rows + 16 * j, columns);
  }
  template <int kArray>
  __device__ static float add_one(float y, float row, float column) {
    return kArray == 1 ? numerics::add_weight_offset(y, row, column) : numerics::add_activation_offset(y, row, column);
  }

  __device__ float2 column_pair(const TileStage& stage, int array, int block) const {
    return reinterpret_cast<const float2*>(stage.columns[array][panel_][block])[group_];
  }

  // The results of rows 16*j + 4*quad .. in the order of a lane's registers.
  __device__ __forceinline__ void results(int j, float (&y)[2 * kRegisterRows]) const {
    if constexpr (kOneBlockPerRow) {
      const int arrays = a_.x.tiled.arrays;
      const float* rows = &last_->rows[kRegisterRows * quad_ + 16 * j];
      const float2 scales = column_pair(*last_, 0, 0);
      for_each_row(rows, [&](int at, float scale) {
        y[at] = numerics::add_product(0.0f, ptx::opaque(sums_[0][8 * j + at]), scale, scales.x);
        y[at + 2] = numerics::add_product(0.0f, ptx::opaque(sums_[0][8 * j + at + 2]), scale, scales.y);
      });
      if (arrays == 1) return;
      if (a_.w.offsets) add_offsets<1>(y, rows + kRows, column_pair(*last_, 1, 0));
      if (a_.w.sums) add_offsets<2>(y, rows + 2 * kRows, column_pair(*last_, 2, 0));
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kRegisterRows; ++i) y[i] = y_[8 * j + i];
    }
  }
  template <int kArray>
  __device__ __forceinline__ static void add_offsets(float* y, const float* rows, float2 columns) {
    for_each_row(rows, [&](int at, float row) {
      y[at] = add_one<kArray>(y[at], row, columns.x);
      y[at + 2] = add_one<kArray>(y[at + 2], row, columns.y);
    });
  }
  __device__ __forceinline__ void store() {
    ResultStore<Rows, kRows, kOneBlockPerRow || Rows::kWindow>(
        a_, reinterpret_cast<float*>(&pipeline_ + 1) + panel_ * 256, panel_, lane_)
        .store(Target::of<Rows::kWindow>(a_, tiles_.tile(), kRows),
               [&](int j, float (&y)[2 * kRegisterRows]) { results(j, y); });
  }

  const Arguments& a_;
  typename S::TileRing& pipeline_;
  Tiles<S::kSpread>& tiles_;
  int block_stages_, panel_, lane_, group_, quad_;
  std::uint32_t upper_;
  bool releases_;
  Operand weights_[kOneBlockPerRow || kInTurns || kHalves ? 2 : 1];
  Sums sums_[kInTurns || kHalves ? 2 : 1];
  float y_[kOneBlockPerRow ? 1 : kRows / 2];
  const TileStage* last_ = nullptr;  // of a row that is one block
};

template <class Rows, int kBits, int kBlocks, int kRows>
__global__ void __launch_bounds__(kThreads, 1) sm90_int8_wgmma_kernel(const __grid_constant__ typename Rows::Given a) {
  using S = Shape<Rows, kBits, kBlocks, kRows>;
  using Fill = std::conditional_t<Rows::kWindow, WindowProducer<kBits, S::kStageBlocks, kRows, S::kStages>,
                                  RowProducer<kBits, S::kStageBlocks, kRows, S::kStages, S::kSpread>>;
  // Rows of one block gain 2 to 5% from an address that is kept, blocks nothing.
  auto& ring = S::TileRing::get(S::kOneBlockPerRow ? ptx::kept_shared(dynamic_shared()) : dynamic_shared());
  auto* staging = reinterpret_cast<float*>(&ring + 1);
  // The same in all lanes for the compiler too.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpSize, 0);
  ptx::let_next_kernel_start();  // which may quantize the next layer's activations
  if (threadIdx.x == kWarpSize) Fill::prefetch(a);
  if (threadIdx.x == 0) ring.init(Fill::kFullArrivals, kConsumerWarps * (a.cluster.columns + a.cluster.rows - 1));
  // A block of more than a stage's k is promoted after its last one.
  const int block_stages = kBlocks > 1 ? 1 : static_cast<int>(a.x.padded_block / kStageK);
  auto& part = *reinterpret_cast<SpreadPart*>(reinterpret_cast<char*>(staging) + S::kStagingBytes);
  if (S::kSpread && a.spread && warp == 0) {
    const std::int64_t tiles = (a.w.n + Tuning::kColumns - 1) / Tuning::kColumns * ((a.x.rows + kRows - 1) / kRows);
    part.set(static_cast<int>(a.whole_tiles), static_cast<int>(tiles - a.whole_tiles), a.steps,
             static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
  // Thread blocks of a cluster copy for each other and arrive at each other's barriers.
  if (a.cluster.columns * a.cluster.rows > 1) {
    ptx::cluster_meet();
  } else {
    if (threadIdx.x == 0) ptx::barriers_are_ready();
    __syncthreads();
  }
  Tiles<S::kSpread> tiles(a, kRows, part);
  if (warp >= kConsumerWarps) {
    ptx::fewer_registers<kProducerRegisters<Rows>>();
    Fill(a, ring, tiles, warp - kConsumerWarps, block_stages).run();
  } else {
    ptx::more_registers<kConsumerRegisters<Rows>>();
    Consumer<Rows, kBits, kBlocks, kRows>(a, ring, tiles, warp, block_stages).run();
  }
  __syncwarp();
  // Others of the cluster may still copy to this thread block's memory, or arrive at its barriers; and so may its own
  // arrivals be on their way, which take the way of a cluster.
  ptx::cluster_sync();
}

template <class Rows, int kBits, int kBlocks, int kRows>
void launch_kernel(typename Rows::Given a, cudaStream_t stream) {
  using S = Shape<Rows, kBits, kBlocks, kRows>;
  const auto kernel = sm90_int8_wgmma_kernel<Rows, kBits, kBlocks, kRows>;
  const auto size = static_cast<unsigned>(a.cluster.columns * a.cluster.rows);
  // Only the device knows how many tiles the experts have. No tile is without a row, so there are no more tiles than
  // rows.
  const std::int64_t tile_rows = a.experts.tiles ? a.x.rows : ceil_div(a.x.rows, kRows);
  const std::int64_t tiles = ceil_div(a.w.n, Tuning::kColumns) * tile_rows;
  if constexpr (Rows::kWindow)
    set_maps<kBits, S::kStageBlocks, kRows>(a);
  else
    set_maps<kBits, S::kStageBlocks>(a);
  a.upper_nibbles = 0xf0f0f0f0u;
  a.steps = static_cast<int>(kBlocks > 1 ? a.x.tiled.stages : ceil_div(a.x.tiled.stages * kStageK, a.x.padded_block));
  LaunchShape shape{dim3(size), dim3(kThreads), S::kSharedBytes, dim3(size), true};
  const std::int64_t resident = static_cast<std::int64_t>(resident_clusters("sm90_int8_wgmma", kernel, shape)) * size;
  shape.grid = dim3(static_cast<unsigned>(tiles < resident ? tiles : resident));
  if (a.spread) {
    shape.grid = dim3(static_cast<unsigned>(a.spread));
    a.whole_tiles = whole_tiles(static_cast<unsigned>(tiles), shape.grid.x);
  }
  launch("sm90_int8_wgmma", kernel, shape, stream, a);
}

template <class Rows, int kBits, int kBlocks>
void launch_rows(const typename Rows::Given& a, cudaStream_t stream) {
  if constexpr (!Rows::kWindow && kBlocks <= 1)  // blocks of a stage, and one block per row
    if (a.x.tiled.rows() == 256) return launch_kernel<Rows, kBits, kBlocks, 256>(a, stream);
  switch (a.x.tiled.rows()) {
    case 128:
      return launch_kernel<Rows, kBits, kBlocks, 128>(a, stream);
    case 64:
      return launch_kernel<Rows, kBits, kBlocks, 64>(a, stream);
    default:
      return launch_kernel<Rows, kBits, kBlocks, 32>(a, stream);
  }
}

template <class Rows, int kBits>
void launch_blocks(const typename Rows::Given& a, cudaStream_t stream) {
  if constexpr (!Rows::kWindow)
    if (a.one_block) return launch_rows<Rows, kBits, kOneBlock>(a, stream);
  switch (a.x.padded_block) {
    case 32:
      return launch_rows<Rows, kBits, 4>(a, stream);
    case 64:
      return launch_rows<Rows, kBits, 2>(a, stream);
    default:
      return launch_rows<Rows, kBits, 1>(a, stream);
  }
}

// y = act(x W^T + bias). Needs sm_90a.
template <class Rows>
void run(const typename Rows::Given& a, cudaStream_t stream) {
  a.w.bits == 8 ? launch_blocks<Rows, 8>(a, stream) : launch_blocks<Rows, 4>(a, stream);
}

}  // namespace qcore::sm90_int8_wgmma
