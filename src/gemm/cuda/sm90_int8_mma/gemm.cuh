#pragma once

#include "gemm/cuda/sm90_int8_mma/stage.cuh"
#include "gemm/cuda/store_four.cuh"
#include "gemm/cuda/window/window_tile.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_convert.cuh"
#include "runtime/cuda/ptx_memory.cuh"
#include "runtime/memory.h"

// The kernel and the choice among its instances; each number of bits has its own file.
namespace qcore::sm90_int8_mma {

// Operand a of a chunk's product of a panel: rows `group` and group + 8 are columns 2*group and 2*group + 1 of n, and
// quad's k are 8*quad .. of the chunk. 4-bit codes are sixteenfold there, signed bytes without a subtraction, or as
// `nibbles` says where the weight has offsets.
template <int kBits>
struct Weights {
  std::uint32_t a[4];

  template <class TileStage>
  __device__ __forceinline__ Weights(const TileStage& stage, const NibbleForm& nibbles, int panel, int chunk, int group,
                                     int quad) {
    constexpr std::uint32_t kTopBits = 0x80808080u;
    const auto pair = [&](int step) {
      const uint4& unit = stage.weights[TileStage::weight_unit(panel, chunk, step, group / 2)];
      return reinterpret_cast<const uint2*>(&unit)[group % 2];
    };
    if constexpr (kBits == 8) {
      const uint2 low = pair(2 * quad), high = pair(2 * quad + 1);
      a[0] = low.x ^ kTopBits, a[1] = low.y ^ kTopBits, a[2] = high.x ^ kTopBits, a[3] = high.y ^ kTopBits;
    } else if constexpr (TileStage::kHasOffsets) {
      const uint2 both = pair(quad);
      a[0] = ptx::and_xor(both.x << nibbles.left, nibbles.mask, nibbles.flip);
      a[1] = ptx::and_xor(both.y << nibbles.left, nibbles.mask, nibbles.flip);
      a[2] = ptx::and_xor(both.x >> nibbles.right, nibbles.mask, nibbles.flip);
      a[3] = ptx::and_xor(both.y >> nibbles.right, nibbles.mask, nibbles.flip);
    } else {
      constexpr std::uint32_t kHigh = 0xf0f0f0f0u;
      const uint2 both = pair(quad);
      a[0] = ptx::and_xor(both.x << 4, kHigh, kTopBits), a[1] = ptx::and_xor(both.y << 4, kHigh, kTopBits);
      a[2] = ptx::and_xor(both.x, kHigh, kTopBits), a[3] = ptx::and_xor(both.y, kHigh, kTopBits);
    }
  }
};

// Products of a block stay below 2^22, those of sixteenfold codes too, so they become floats without a conversion: an
// integer that starts at the bits of 1.5 * 2^23 counts in the lowest bits of that float.
constexpr std::int32_t kThreeHalvesBits = 0x4b400000;

template <int kBits>
__device__ __forceinline__ float to_float(std::int32_t product) {
  constexpr float kThreeHalves = 12582912.0f, kSixteenth = 0.0625f;
  const float shifted = numerics::bits_float(static_cast<std::uint32_t>(product));
  return kBits == 8 ? shifted - kThreeHalves : numerics::fma_once(shifted, kSixteenth, -kThreeHalves * kSixteenth);
}

template <class Rows, int kBits, int kBlockChunks, Size kSize, bool kOffsets>
class Gemm {
 public:
  static constexpr Shape kShape = Tuning::shape(kSize);
  using TileStage = Stage<kBits, kBlockChunks, kSize, kOffsets>;
  static constexpr int kPanels = kShape.panels, kTiles = kShape.tiles, kRows = kShape.rows();
  static constexpr int kBlocks = TileStage::kBlocks, kWarpBlocks = kBlocks / kShape.warps_k;
  static constexpr bool kOneBlockPerRow = kBlockChunks == kOneBlock;
  static constexpr bool kShared = kShape.warps_k > 1;  // K, by the warps
  static constexpr bool kKeepsSums = kShared && !kOneBlockPerRow;
  // The first warps multiply, the next one fills the ring, those behind it gather pixels, and the last ones add sums.
  static constexpr int kWarps = kShape.warps(), kAdders = kKeepsSums ? (kRows < 32 ? 4 : kRows / 8) : 0;
  static constexpr int kFirstAdder = kWarps + 1 + Rows::gather_warps(kSize);
  static constexpr int kThreads = kWarpSize * (kFirstAdder + kAdders);
  static constexpr int kPitch = kShape.columns() + 4;  // of floats in shared memory: rows 2*quad take every bank once
  // Sums of two stages' blocks: while those of one are made, the other's are added.
  static constexpr int kSums = kKeepsSums ? 2 * kBlocks * kRows * kPitch : 0;
  static constexpr int kRest = 256 + (Rows::kWindow ? 16 * kRows : 0);  // of the ring, beside the stages
  static constexpr int kFit = static_cast<int>((Tuning::shared_bytes(kSize) - 4 * kSums - kRest) / sizeof(TileStage));
  static constexpr int kStages = kFit < Tuning::kMaxStages ? kFit : Tuning::kMaxStages;
  using Given = typename Rows::Given;
  using Fill = Producer<Rows, TileStage, kStages>;
  struct TileRing : SmemPipeline<TileStage, kStages> {
    ptx::Barrier summed[2], added[2];  // of the buffers of sums, where the warps share K
    typename Rows::template Origins<kRows> origins;
  };
  static constexpr int kTotals = kRows * kPitch, kTotalArrays = kOneBlockPerRow ? kShape.warps_k : 1;
  static constexpr std::size_t kSharedBytes = sizeof(TileRing) + 4 * kSums;
  static_assert(kStages >= 2 && sizeof(TileRing) >= sizeof(float) * kTotals * kTotalArrays,
                "a stage is copied while another one is multiplied");
  static_assert(!kShared || kShape.columns() == kWarpSize, "a row's columns are shared among a warp's lanes");
  static_assert(!kOffsets || (!Rows::kWindow && !kOneBlockPerRow), "tiles of rows, in blocks");

  __device__ __forceinline__ explicit Gemm(const Given& a)
      : a_(a),
        pipeline_(*reinterpret_cast<TileRing*>(memory())),
        warp_(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpSize, 0)),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        group_(lane_ / 4),
        quad_(lane_ % 4),
        first_panel_(warp_ % kShape.warps_n * kPanels),
        first_row_(warp_ / kShape.warps_n % kShape.warps_m * (8 * kTiles)),
        warp_k_(warp_ / (kShape.warps_n * kShape.warps_m)) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      pipeline_.init(Fill::kFullArrivals, kKeepsSums ? kAdders : kWarps);
      for (int i = 0; kKeepsSums && i < 2; ++i) {
        ptx::barrier_init(pipeline_.summed[i], kWarps);
        ptx::barrier_init(pipeline_.added[i], kAdders);
      }
      ptx::barriers_are_ready();
    }
    if constexpr (Rows::kWindow)
      pipeline_.origins.set(a_.gathered.window, a_.gathered.first, static_cast<int>(blockIdx.y) * kRows,
                            static_cast<int>(a_.x.rows), a_.gathered.first_image);
    if constexpr (Rows::kWindow) ptx::let_next_kernel_start();
    __syncthreads();
    const int count = static_cast<int>((a_.w.blocks + kBlocks - 1) / kBlocks);
    if (warp_ < kWarps)
      consume(count);
    else if (warp_ == kWarps)
      Fill(a_, pipeline_, lane_).run(count);
    else if (kKeepsSums && warp_ >= kFirstAdder)
      accumulate(count);
    else if constexpr (Rows::kWindow)
      Fill::gather(a_, pipeline_, pipeline_.origins.of, static_cast<int>(threadIdx.x) - kWarpSize * (kWarps + 1),
                   count);
    __syncthreads();
    store();
  }

 private:
  using Products = std::int32_t[kPanels][kTiles][4];

  // Under a window there are too few registers to keep the address in one.
  __device__ __forceinline__ static char* memory() {
    return Rows::kWindow ? dynamic_shared() : ptx::kept_shared(dynamic_shared());
  }

  __device__ __forceinline__ void consume(int count) {
    PipelineState<kStages> state;
    PipelineState<2> buffer;
    int blocks_left = static_cast<int>(a_.w.blocks);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      ptx::barrier_wait(pipeline_.full[state.slot], state.parity);
      if (kKeepsSums && i >= 2) ptx::barrier_wait(pipeline_.added[buffer.slot], buffer.parity ^ 1u);
      const TileStage& stage = pipeline_.stages[state.slot];
      if (blocks_left >= kBlocks)
        multiply(stage, buffer.slot);
      else
        multiply_some(stage, buffer.slot, blocks_left);
      // Those who add read the stage's scales, and empty it.
      arrive(kKeepsSums ? pipeline_.summed[buffer.slot] : pipeline_.empty[state.slot]);
      blocks_left -= kBlocks;
      buffer.next();
      state.next();
    }
  }

  __device__ __forceinline__ void arrive(ptx::Barrier& barrier) const {
    __syncwarp();
    if (lane_ == 0) ptx::barrier_arrive(barrier, 0);
  }

  __device__ __forceinline__ void multiply(const TileStage& stage, int buffer) {
#pragma unroll
    for (int i = 0; i < kWarpBlocks; ++i) multiply_block(stage, buffer, i * kShape.warps_k + warp_k_);
  }
  // Behind the last block there is what an earlier stage left.
  __device__ __forceinline__ void multiply_some(const TileStage& stage, int buffer, int blocks) {
#pragma unroll 1
    for (int block = warp_k_; block < blocks; block += kShape.warps_k) multiply_block(stage, buffer, block);
  }

  __device__ __forceinline__ void multiply_block(const TileStage& stage, int buffer, int block) {
    if constexpr (kOneBlockPerRow) {
      add_block(row_products_, stage, block);
    } else {
      Products products;
      add_block(products, stage, block);
      if constexpr (kShared)
        keep(products, buffer, block);
      else
        promote(products, stage, block);
    }
  }

  __device__ __forceinline__ void add_block(Products& products, const TileStage& stage, int block) const {
    constexpr std::int32_t kStart[4] = {kThreeHalvesBits, kThreeHalvesBits, kThreeHalvesBits, kThreeHalvesBits};
#pragma unroll
    for (int i = 0; i < TileStage::kChunksOfBlock; ++i) {
      const int chunk = block * TileStage::kChunksOfBlock + i;
      std::uint32_t x[kTiles][2];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const auto* row = reinterpret_cast<const uint2*>(stage.codes[chunk][first_row_ + 8 * tile + group_]);
        x[tile][0] = row[quad_].x, x[tile][1] = row[quad_].y;
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const Weights<kBits> w(stage, a_.nibbles, first_panel_ + panel, chunk, group_, quad_);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          std::int32_t (&sums)[4] = products[panel][tile];
          if (i == 0 && !kOneBlockPerRow)
            ptx::mma_s8s8(sums, w.a, x[tile], kStart);
          else
            ptx::mma_s8s8(sums, w.a, x[tile], sums);
        }
      }
    }
  }

  __device__ __forceinline__ float product_float(std::int32_t product) const {
    if constexpr (kOffsets && kBits == 4)
      return numerics::fma_once(numerics::bits_float(static_cast<std::uint32_t>(product)), a_.nibbles.unit,
                                a_.nibbles.origin);
    else
      return to_float<kBits>(product);
  }

  __device__ __forceinline__ void promote(const Products& products, const TileStage& stage, int block) {
    for_each_result(stage, block, 0, [&](int panel, int tile, int i, float row, float column) {
      float& y = y_[panel][tile][i];
      y = numerics::add_float_product(y, product_float(products[panel][tile][i]), row, column);
    });
    if constexpr (kOffsets)
      for_each_result(stage, block, 1, [&](int panel, int tile, int i, float row, float column) {
        float& y = y_[panel][tile][i];
        y = numerics::add_weight_offset(y, row, column);
      });
  }

  // Calls add(panel, tile, i, row's parameter, column's parameter) for each result, of a block and array of parameters.
  template <class Add>
  __device__ __forceinline__ void for_each_result(const TileStage& stage, int block, int array, const Add& add) const {
    float2 rows[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      rows[tile] = *reinterpret_cast<const float2*>(&stage.rows[block][array][first_row_ + 8 * tile + 2 * quad_]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const float2 columns =
          *reinterpret_cast<const float2*>(&stage.columns[array][first_panel_ + panel][block][2 * group_]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          add(panel, tile, i, i % 2 ? rows[tile].y : rows[tile].x, i / 2 ? columns.y : columns.x);
    }
  }

  // Returns the sums of a stage's block in one of two buffers, [rows, kPitch].
  __device__ __forceinline__ float* sums(int buffer, int block) const {
    return reinterpret_cast<float*>(&pipeline_ + 1) + (buffer * kBlocks + block) * (kRows * kPitch);
  }

  // values[i]: of row 2*quad + i%2, column 2*group + i/2.
  template <class T>
  __device__ __forceinline__ void put(T* to, int panel, int tile, const T (&values)[4]) const {
    struct alignas(8) Pair {
      T low, high;
    };
    const int row = first_row_ + 8 * tile + 2 * quad_, column = 16 * (first_panel_ + panel) + 2 * group_;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      *reinterpret_cast<Pair*>(&to[(row + j) * kPitch + column]) = Pair{values[j], values[2 + j]};
  }

  __device__ __forceinline__ void keep(const Products& products, int buffer, int block) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float values[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = product_float(products[panel][tile][i]);
        put(sums(buffer, block), panel, tile, values);
      }
  }

  // By the warps that add: each owns kOwn neighboring rows, and a lane of it kOwnRows by kOwnColumns of their results.
  __device__ __forceinline__ void accumulate(int count) {
    PipelineState<kStages> state;
    PipelineState<2> buffer;
    int blocks_left = static_cast<int>(a_.w.blocks);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const TileStage& stage = pipeline_.stages[state.slot];
      ptx::barrier_wait(pipeline_.summed[buffer.slot], buffer.parity);
      if (blocks_left >= kBlocks) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) accumulate_block(stage, buffer.slot, block);
      } else {
#pragma unroll 1
        for (int block = 0; block < blocks_left; ++block) accumulate_block(stage, buffer.slot, block);
      }
      arrive(pipeline_.added[buffer.slot]);
      arrive(pipeline_.empty[state.slot]);
      blocks_left -= kBlocks;
      buffer.next();
      state.next();
    }
  }
  __device__ __forceinline__ int own_row() const {
    return (warp_ - kFirstAdder) * kOwn + lane_ / kColumnLanes * kOwnRows;
  }
  __device__ __forceinline__ int own_column() const { return lane_ % kColumnLanes * kOwnColumns; }
  template <int kCount>
  struct alignas(sizeof(float) * kCount) Floats {
    float of[kCount];
  };
  template <int kCount>
  __device__ __forceinline__ static Floats<kCount> load(const float* from) {
    return *reinterpret_cast<const Floats<kCount>*>(from);
  }
  __device__ __forceinline__ void accumulate_block(const TileStage& stage, int buffer, int block) {
    constexpr int kPanelRows = static_cast<int>(PackedLayout::kPanelRows);
    const int column = own_column(), row = own_row();
    const auto columns = [&](int array) {
      return load<kOwnColumns>(&stage.columns[array][column / kPanelRows][block][column % kPanelRows]);
    };
    const auto rows = [&](int array) { return load<kOwnRows>(&stage.rows[block][array][row]); };
    const float* products = sums(buffer, block) + row * kPitch + column;
    const Floats<kOwnColumns> scales = columns(0);
    const Floats<kOwnRows> row_scales = rows(0);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const Floats<kOwnColumns> product = load<kOwnColumns>(products + i * kPitch);
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j)
        own_[i][j] = numerics::add_float_product(own_[i][j], product.of[j], row_scales.of[i], scales.of[j]);
    }
    if constexpr (kOffsets) {
      const Floats<kOwnColumns> offsets = columns(1);
      const Floats<kOwnRows> row_sums = rows(1);
      for_each_own(
          [&](int i, int j) { own_[i][j] = numerics::add_weight_offset(own_[i][j], row_sums.of[i], offsets.of[j]); });
    }
  }
  // Calls with the row and the column of each result that a lane owns.
  template <class Call>
  __device__ __forceinline__ static void for_each_own(const Call& call) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) call(i, j);
  }

  // Returns four neighboring results of a row that is one block: the warps' sums of products become one float each.
  __device__ __forceinline__ float4 row_results(const std::int32_t* products, std::int64_t row, std::int64_t n) const {
    int4 sum{};
#pragma unroll
    for (int i = 0; i < kTotalArrays; ++i) {
      const int4 part = *reinterpret_cast<const int4*>(products + i * kTotals);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    const float x_scale = a_.x.tiled.parameters[row];
    const float4 scales = *reinterpret_cast<const float4*>(a_.w.scales + n);
    const auto result = [&](std::int32_t of, float scale) {
      // The sixteenth of sixteenfold codes' sum is exact.
      return numerics::add_float_product(0.0f, static_cast<float>(kBits == 8 ? of : of / 16), x_scale, scale);
    };
    return {result(sum.x, scales.x), result(sum.y, scales.y), result(sum.z, scales.z), result(sum.w, scales.w)};
  }

  // Through shared memory, so that neighboring columns are written at once.
  __device__ __forceinline__ void store() const {
    float* totals = reinterpret_cast<float*>(dynamic_shared());
    auto* products = reinterpret_cast<std::int32_t*>(dynamic_shared());
    if constexpr (kOneBlockPerRow) ptx::wait_for_earlier_kernels();  // for the scales of x
    if constexpr (kKeepsSums) {
      if (warp_ >= kFirstAdder)
        for_each_own([&](int i, int j) { totals[(own_row() + i) * kPitch + own_column() + j] = own_[i][j]; });
    } else if (warp_ >= kWarps) {
      // The producers hold no accumulators.
    } else if constexpr (kOneBlockPerRow) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          put(products + warp_k_ * kTotals, panel, tile, row_products_[panel][tile]);
    } else {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) put(totals, panel, tile, y_[panel][tile]);
    }
    __syncthreads();
    constexpr int kFours = kShape.columns() / 4;
    // Where pixels lie closer than channels, neighboring lanes are pixels.
    const bool along_rows = !Rows::kWindow || a_.out.y.column_stride == 1;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kFours; at += kThreads) {
      const int tile_row = along_rows ? at / kFours : at % kRows, four = along_rows ? at % kFours : at / kRows;
      const std::int64_t row = blockIdx.y * static_cast<std::int64_t>(kRows) + tile_row;
      const std::int64_t n = blockIdx.x * static_cast<std::int64_t>(kShape.columns()) + four * 4;
      if (row >= a_.x.rows || n >= a_.w.n) continue;
      const int place = tile_row * kPitch + four * 4;
      float4 from;
      if constexpr (kOneBlockPerRow)
        from = row_results(products + place, row, n);
      else
        from = *reinterpret_cast<const float4*>(totals + place);
      const std::int64_t m = a_.first_row + row;
      store_four(a_.out, a_.y_row_stride ? m * a_.y_row_stride : a_.out.y.row_offset(m), n, a_.w.n, a_.store_fours,
                 {from.x, from.y, from.z, from.w});
    }
  }

  // A lane that adds owns kOwn results: rows of a column, or of four neighboring columns if that makes fewer loads.
  static constexpr int kOwn = kKeepsSums ? kRows / kAdders : 1, kOwnColumns = kOwn < 8 ? 1 : 4;
  static constexpr int kOwnRows = kOwn / kOwnColumns, kColumnLanes = kWarpSize / kOwnColumns;

  const Given& a_;
  TileRing& pipeline_;
  int warp_, lane_, group_, quad_;
  int first_panel_, first_row_, warp_k_;
  float y_[kPanels][kTiles][4] = {};  // see put()
  float own_[kOwnRows][kOwnColumns] = {};
  Products row_products_ = {};  // of rows that are one block
};

template <class Rows, int kBits, int kBlockChunks, Size kSize, bool kOffsets>
__global__ void __launch_bounds__(Gemm<Rows, kBits, kBlockChunks, kSize, kOffsets>::kThreads,
                                  Tuning::shape(kSize).resident)
    sm90_int8_mma_kernel(const __grid_constant__ typename Rows::Given a) {
  Gemm<Rows, kBits, kBlockChunks, kSize, kOffsets>(a).run();
}

template <class Rows, int kBits, int kBlockChunks, Size kSize, bool kOffsets = false>
void launch_kernel(const typename Rows::Given& a, cudaStream_t stream) {
  using Kernel = Gemm<Rows, kBits, kBlockChunks, kSize, kOffsets>;
  constexpr Shape kShape = Kernel::kShape;
  LaunchShape shape{grid_of(a, kShape), dim3(Kernel::kThreads), Kernel::kSharedBytes};
  shape.overlap = a.w.blocks > 0;
  launch("sm90_int8_mma", sm90_int8_mma_kernel<Rows, kBits, kBlockChunks, kSize, kOffsets>, shape, stream, a);
}

template <class Rows, int kBits, int kBlockChunks>
void launch_with_offsets(const typename Rows::Given& a, cudaStream_t stream) {
  if (a.size == Size::rows8) return launch_kernel<Rows, kBits, kBlockChunks, Size::rows8, true>(a, stream);
  if (a.size == Size::rows16) return launch_kernel<Rows, kBits, kBlockChunks, Size::rows16, true>(a, stream);
  if (a.size == Size::rows32) return launch_kernel<Rows, kBits, kBlockChunks, Size::rows32, true>(a, stream);
  if constexpr (has_kernel(Size::split8, kBlockChunks * kChunk, kBits, true))
    if (a.size == Size::split8) return launch_kernel<Rows, kBits, kBlockChunks, Size::split8, true>(a, stream);
  if constexpr (has_kernel(Size::rows64, kBlockChunks * kChunk, kBits, true))
    if (a.size == Size::rows64) return launch_kernel<Rows, kBits, kBlockChunks, Size::rows64, true>(a, stream);
  launch_kernel<Rows, kBits, kBlockChunks, Size::tall, true>(a, stream);
}

template <class Rows, int kBits, int kBlockChunks>
void launch_size(const typename Rows::Given& a, cudaStream_t stream) {
  constexpr bool kOneBlockPerRow = kBlockChunks == kOneBlock;
  if constexpr (!Rows::kWindow && !kOneBlockPerRow)
    if (a.w.offsets) return launch_with_offsets<Rows, kBits, kBlockChunks>(a, stream);
  switch (a.size) {
    case Size::rows16:
      return launch_kernel<Rows, kBits, kBlockChunks, Size::rows16>(a, stream);
    case Size::rows32:
      return launch_kernel<Rows, kBits, kBlockChunks, Size::rows32>(a, stream);
    default:
      break;
  }
  // Rows of one block take sm90_int8_wgmma where there are more tiles.
  if constexpr (!kOneBlockPerRow)
    if (a.size == Size::tall) return launch_kernel<Rows, kBits, kBlockChunks, Size::tall>(a, stream);
  // A window has few results where its tiles are small, or else other tiles.
  if constexpr (!Rows::kWindow) {
    if (a.size == Size::rows8) return launch_kernel<Rows, kBits, kBlockChunks, Size::rows8>(a, stream);
    if constexpr (has_kernel(Size::split8, kBlockChunks * kChunk, kBits, false))
      if (a.size == Size::split8) return launch_kernel<Rows, kBits, kBlockChunks, Size::split8>(a, stream);
    if constexpr (has_kernel(Size::rows64, kBlockChunks * kChunk, kBits, false))
      if (a.size == Size::rows64) return launch_kernel<Rows, kBits, kBlockChunks, Size::rows64>(a, stream);
    if constexpr (!kOneBlockPerRow)
      a.size == Size::broad ? launch_kernel<Rows, kBits, kBlockChunks, Size::broad>(a, stream)
                            : launch_kernel<Rows, kBits, kBlockChunks, Size::broad16>(a, stream);
  }
}

template <class Rows, int kBits>
void launch_blocks(const typename Rows::Given& a, cudaStream_t stream) {
  if constexpr (!Rows::kWindow)
    if (a.one_block) return launch_size<Rows, kBits, kOneBlock>(a, stream);
  if (a.x.padded_block == 32)
    launch_size<Rows, kBits, 1>(a, stream);
  else if (a.x.padded_block == 64)
    launch_size<Rows, kBits, 2>(a, stream);
  else
    launch_size<Rows, kBits, 4>(a, stream);
}

// y = act(x W^T + bias). Needs sm_90.
template <class Rows>
void run(const typename Rows::Given& a, cudaStream_t stream) {
  a.w.bits == 8 ? launch_blocks<Rows, 8>(a, stream) : launch_blocks<Rows, 4>(a, stream);
}

}  // namespace qcore::sm90_int8_mma
