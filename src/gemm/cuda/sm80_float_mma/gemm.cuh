#pragma once

#include "gemm/cuda/sm80_float_mma/decode.cuh"
#include "gemm/cuda/sm80_float_mma/stage.cuh"
#include "gemm/cuda/sm80_float_mma/store.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"

// A tile of y = act(x W^T + bias) with float activations; see arguments.cuh. Needs sm_80.
namespace qcore::sm80_float_mma {

// `Rows` is the tile's shape and how its results find their rows of activations, their weights and their places: a
// class like linear's GemmRows.
template <class Rows, ptx::Half kHalf, int kPlanes, int kBits, bool kOffsets, Promote kPromote>
class Gemm {
 public:
  static constexpr Shape kShape = Rows::kShape;
  static constexpr int kPairs = kShape.pairs, kTiles = kShape.tiles, kChunks = kShape.chunks;
  static constexpr int kSets = kPromote == Promote::chunk ? kChunks : kShape.warps_k, kArrays = kOffsets ? 2 : 1;
  using TileStage = Stage<Rows, kBits, kPlanes, kSets, kArrays>;
  static constexpr int kFit = static_cast<int>(sm80_float_mma::kSharedBytes / sizeof(TileStage));
  static constexpr int kStages = kFit < kMaxStages ? kFit : kMaxStages;
  static constexpr int kPitch = kShape.columns() + 4;  // of totals in shared memory: rows 2*quad take every bank once
  static constexpr std::size_t kStageBytes = kStages * sizeof(TileStage);
  static constexpr std::size_t kTotalBytes = sizeof(float) * kShape.warps_k * kShape.rows() * kPitch;
  static constexpr std::size_t kSharedBytes = kStageBytes > kTotalBytes ? kStageBytes : kTotalBytes;
  static constexpr int kParts = kChunks / kShape.warps_k;  // chunks of a stage that a warp multiplies
  // Whether there are registers for the operands of the next stage, and of the stage's next chunk, during products.
  static constexpr bool kStageAhead = kPairs == 1 && kTiles < 8,
                        kChunkAhead = kStageAhead || (kPairs > 1 && kPromote == Promote::stage && kBits == 4);
  static_assert(kStages >= 2, "a stage is copied while another one is multiplied");
  static_assert(kShape.warps_n * kShape.warps_m * kShape.warps_k * kWarpSize == kThreads, "all warps work");

  // `a` is what `rows` was made of.
  template <class Given>
  __device__ Gemm(const Given& a, const Rows& rows)
      : a_(a),
        rows_(rows),
        tap_chunks_(static_cast<int>((a.w.steps + TileStage::kSteps - 1) / TileStage::kSteps)),
        ranges_(Rows::kWindow ? tap_chunks_ * static_cast<int>(a.w.taps) : tap_chunks_, kShape.warps_k, kParts),
        block_chunks_(static_cast<int>((a.w.steps_per_block + TileStage::kSteps - 1) / TileStage::kSteps)),
        copier_(a, rows, ranges_, block_chunks_),
        stages_(reinterpret_cast<TileStage*>(dynamic_shared())),
        group_(static_cast<int>(threadIdx.x) % kWarpSize / 4),
        quad_(static_cast<int>(threadIdx.x) % 4) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    first_column_ = warp % kShape.warps_n * (32 * kPairs);
    first_row_ = warp / kShape.warps_n % kShape.warps_m * (8 * kTiles);
    warp_k_ = warp / (kShape.warps_n * kShape.warps_m);
  }

  __device__ void run() {
    const int count = ranges_.stages();
    for (int i = 0; i + 1 < kStages; ++i) copy(i);
    int stage = kStages - 1;
    BlockWalk<Rows::kWindow> block(count > 0 ? ranges_.begin(warp_k_) : 0, block_chunks_, tap_chunks_);
    Operands operands[2];  // those of neighboring chunks
    if (count > 0) load(operands[0], advance(stage), warp_k_);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      block.advance(kParts);
      const bool last = block.ended() || i + 1 == count;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        Operands &now = operands[part % 2], &next = operands[(part + 1) % 2];
        if (part + 1 < kParts) {
          if (!kChunkAhead) multiply(now, false);
          load(next, stages_[stage], (part + 1) * kShape.warps_k + warp_k_);
          if (kChunkAhead) multiply(now, false);
        } else {
          // Behind the last stage there are zeros.
          if (!kStageAhead) multiply(now, last);
          load(next, advance(stage), warp_k_);
          if (kStageAhead) multiply(now, last);
        }
      }
      if (kParts % 2) operands[0] = operands[1];
      if (block.ended()) block.next();
    }
    ptx::copy_wait<0>();
    store();
  }

 private:
  using Decode = Decoder<kHalf, kBits>;

  // Sums of a block's products: [.., row 2*quad + i%2, column 4*group + 2*half + i/2]. With offsets also those of its
  // activations, of rows 2*quad + i%2: products with ones.
  struct Sums {
    float products[kPairs][kTiles][2][4];
    float x[kOffsets ? kTiles : 1][4];
  };

  __device__ void copy(int stage) {
    copier_.copy(stages_[stage]);
    ptx::copy_commit();
  }

  // To the next stage: waits for its copies and starts those of the last one in the ring.
  __device__ const TileStage& advance(int& stage) {
    ptx::copy_wait<kStages - 2>();
    // After it all threads' copies of the next stage are there, and no thread reads this one any more.
    __syncthreads();
    copy(stage);
    if (++stage == kStages) stage = 0;
    return stages_[stage];
  }

  // Operands of a chunk's products, as they lie in the stage. Rows and columns that do not exist are zeros.
  struct Operands {
    uint4 x[kPlanes][kTiles];
    uint4 w[kPairs][kBits / 4];
    float4 scales[kPairs], offsets[kPairs];
  };

  __device__ __forceinline__ void load(Operands& to, const TileStage& stage, int chunk) const {
    const int set = kPromote == Promote::chunk ? chunk : warp_k_;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int column = first_column_ + 32 * pair, panel = column / 16 + group_ / 4;
#pragma unroll
      for (int i = 0; i < kBits / 4; ++i)
        to.w[pair][i] = stage.weights[TileStage::weight_unit(panel, chunk, kBits / 4 * quad_ + i, group_ % 4)];
      to.scales[pair] = stage.scales(set, column + 4 * group_);
      if constexpr (kOffsets) to.offsets[pair] = stage.offsets(set, column + 4 * group_);
    }
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        to.x[plane][tile] = stage.x[TileStage::x_unit(plane, chunk, first_row_ / 8 + tile, group_, quad_)];
  }

  __device__ __forceinline__ void multiply(const Operands& operands, bool last) {
    if constexpr (kPromote == Promote::chunk) {
      Sums sums = {};
      add_chunk(sums, operands);
      promote(sums, operands);
    } else {
      add_chunk(block_, operands);
      if (!last) return;
      promote(block_, operands);
      block_ = {};
    }
  }

  // Operands a of a chunk's products, [j][half]: columns 4*group + 2*half and the next one, k 8*quad + 4*j ...
  struct Weights {
    std::uint32_t a[2][2][4];

    __device__ __forceinline__ Weights(const uint4 (&words)[kBits / 4], const float4& scales, const float4& offsets) {
      constexpr std::uint32_t kZero = 1u << (kBits - 1);
      std::uint32_t first[4], second[4], zero[4] = {kZero, kZero, kZero, kZero};
      split(first, words[0]);
      split(second, words[kBits / 4 - 1]);
      if constexpr (kOffsets) {
        zero[0] = nearest_zero<kBits>(scales.x, offsets.x), zero[1] = nearest_zero<kBits>(scales.y, offsets.y);
        zero[2] = nearest_zero<kBits>(scales.z, offsets.z), zero[3] = nearest_zero<kBits>(scales.w, offsets.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t pairs[4];
        Decode::template decode<kOffsets>(pairs, first[i], second[i], Decode::shift(zero[i]));
#pragma unroll
        for (int k = 0; k < 4; ++k) a[k / 2][i / 2][i % 2 + 2 * (k % 2)] = pairs[k];
      }
    }
    __device__ static void split(std::uint32_t (&to)[4], const uint4& from) {
      to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
    }
  };

  // Issues all independent products before one that continues another's sum.
  __device__ __forceinline__ void add_chunk(Sums& sums, const Operands& operands) const {
    const auto& x = operands.x;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const Weights w(operands.w[pair], operands.scales[pair], operands.offsets[pair]);
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile)
            ptx::mma_half<kHalf>(sums.products[pair][tile][half], w.a[0][half], x[plane][tile].x, x[plane][tile].y);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile)
            ptx::mma_half<kHalf>(sums.products[pair][tile][half], w.a[1][half], x[plane][tile].z, x[plane][tile].w);
      }
    }
    if constexpr (kOffsets) {
      constexpr std::uint32_t kOne = both(kHalf == ptx::Half::f16 ? 0x3c00u : 0x3f80u);
      const std::uint32_t ones[4] = {kOne, kOne, kOne, kOne};
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          ptx::mma_half<kHalf>(sums.x[tile], ones, x[plane][tile].x, x[plane][tile].y);
          ptx::mma_half<kHalf>(sums.x[tile], ones, x[plane][tile].z, x[plane][tile].w);
        }
    }
  }

  __device__ __forceinline__ void promote(const Sums& sums, const Operands& operands) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const float4 four = operands.scales[pair];
      const float scale[4] = {four.x, four.y, four.z, four.w};
      float offset[4] = {};
      if constexpr (kOffsets) {
        const float4 offsets = operands.offsets[pair];
        offset[0] = offsets.x, offset[1] = offsets.y, offset[2] = offsets.z, offset[3] = offsets.w;
#pragma unroll
        for (int i = 0; i < 4; ++i) offset[i] = rest_of_offset<kBits>(scale[i], offset[i]);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float& y = y_[pair][tile][j][i];
            y = numerics::fma_once(sums.products[pair][tile][i / 2][2 * (i % 2) + j], scale[i], y);
            if constexpr (kOffsets) y = numerics::fma_once(sums.x[tile][j], offset[i], y);
          }
    }
  }

  // Through shared memory, so that neighboring columns are written at once. Totals of warps that share K are added in
  // the order of the warps.
  __device__ void store() const {
    float* totals = reinterpret_cast<float*>(dynamic_shared());  // [warps_k, rows, kPitch]
    __syncthreads();
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float (&y)[4] = y_[pair][tile][j];
          const int row = warp_k_ * kShape.rows() + first_row_ + 8 * tile + 2 * quad_ + j;
          *reinterpret_cast<float4*>(&totals[row * kPitch + first_column_ + 32 * pair + 4 * group_]) =
              make_float4(y[0], y[1], y[2], y[3]);
        }
    __syncthreads();
    constexpr int kFours = kShape.columns() / 4;
    if constexpr (Rows::kWindow)
      if (a_.out.y.column_stride != 1) {
      // Neighboring lanes are pixels, which lie closer than channels.
#pragma unroll 1
        for (int at = static_cast<int>(threadIdx.x); at < kShape.rows() * kFours; at += kThreads)
          store_four(totals, at % kShape.rows(), at / kShape.rows() * 4);
        return;
      }
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < kShape.rows() * kFours; at += kThreads)
      store_four(totals, at / kFours, at % kFours * 4);
  }

  __device__ __forceinline__ void store_four(const float* totals, int row, int column) const {
    float y[4] = {};
#pragma unroll
    for (int part = 0; part < kShape.warps_k; ++part) {
      const float4 four = *reinterpret_cast<const float4*>(&totals[(part * kShape.rows() + row) * kPitch + column]);
      y[0] += four.x, y[1] += four.y, y[2] += four.z, y[3] += four.w;
    }
    FourColumns<kOffsets, kPlanes>::store(a_, rows_, row, rows_.first_column() + column, y);
  }

  const Arguments& a_;
  Rows rows_;
  int tap_chunks_;
  Ranges ranges_;
  int block_chunks_;
  typename Rows::template CopierOf<TileStage, kSets, kArrays> copier_;
  TileStage* stages_;
  int group_, quad_;
  int first_column_, first_row_, warp_k_;
  float y_[kPairs][kTiles][2][4] = {};  // [.., row 2*quad + j, column 4*group + i]
  Sums block_ = {};                     // of the block that is not complete
};

}  // namespace qcore::sm80_float_mma
