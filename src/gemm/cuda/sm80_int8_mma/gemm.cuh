#pragma once

#include "gemm/cuda/sm80_int8_mma/stage.cuh"
#include "gemm/cuda/store_four.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"

// A tile of y = act(x W^T + bias) with integer activations: products of a block of k stay in registers and are promoted
// into fp32 totals there, block after block, with the operations and in the order of the reference. Needs sm_80.
namespace qcore::sm80_int8_mma {

// How a stage relates to a block of k, and what enters a total besides the product.
//   whole    a stage is a block: at most 128 k, symmetric activations
//   part     a stage is 32 k of a block of any length; either operand may have offsets
enum class Blocks { whole, part };

// Products of a whole block stay below 2^22, those of stored codes too, so they become floats without a conversion: an
// integer that starts at the bits of 1.5 * 2^23 counts in the lowest bits of that float. All results start alike, in
// registers that stay as they are; the subtraction that takes 1.5 * 2^23 back takes the row's shift as well, exactly.
constexpr std::int32_t kThreeHalvesBits = 0x4b400000;

// `Rows` is how a tile's results find their rows of codes, their weights and their places: a class like GemmRows of
// launch.cuh. Its columns are rows of the weight; y_column() says which column of y one of them is.
template <class Rows, int kBits, int kChunks, Blocks kBlocks, bool kOffsets, Size kSize>
class Gemm {
 public:
  static constexpr Shape kShape = Tuning::shape(kSize);
  static constexpr int kPairs = kShape.pairs, kTiles = kShape.tiles;
  static constexpr int kTogether = kTiles < 4 ? kTiles : 4;  // tiles of 8 rows whose products are made in turns
  // Small tiles of a window wait for their copies: behind all products of a stage these would be late.
  static constexpr bool kCopyFirst = Rows::kWindow && kBlocks == Blocks::whole && kTiles == kTogether;
  static constexpr int kStages = Tuning::stages(kBits, kChunks);
  static constexpr int kArrays = kBlocks == Blocks::part ? 3 : 2;
  using TileStage = Stage<kBits, kChunks, kArrays, kShape.columns(), kShape.rows()>;
  static constexpr std::size_t kStageBytes = kStages * sizeof(TileStage);
  static constexpr std::size_t kTotalBytes = sizeof(float) * kShape.threads() * 8 * kTiles;
  static constexpr std::size_t kSharedBytes = kStageBytes > kTotalBytes ? kStageBytes : kTotalBytes;
  static_assert(kSharedBytes <= 99 << 10, "what every device since sm_80 grants");

  __device__ Gemm(const Arguments& a, const Rows& rows)
      : a_(a),
        rows_(rows),
        block_stages_(static_cast<int>(a.x.padded_block / (kChunk * kChunks))),
        copier_(a, rows, block_stages_),
        stages_(reinterpret_cast<TileStage*>(dynamic_shared())),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        group_(static_cast<int>(threadIdx.x) % kWarpSize / 4),
        quad_(static_cast<int>(threadIdx.x) % 4),
        first_column_(warp_ % kShape.warps_n * (32 * kPairs)),
        first_row_(warp_ / kShape.warps_n * (8 * kTiles)) {}

  __device__ void run() {
    int count = static_cast<int>(a_.w.blocks) * block_stages_;
    if constexpr (Rows::kWindow) count *= static_cast<int>(a_.w.taps);
    for (int i = 0; i + 1 < kStages; ++i) copy(stages_[i], i < count);
    int chunk = 0, stage = 0;
    for (int i = 0; i < count; ++i) {
      ptx::copy_wait<kStages - 2>();
      // After it all threads' copies of this stage are there, and no thread reads the one before it any more.
      __syncthreads();
      TileStage& free = stages_[stage == 0 ? kStages - 1 : stage - 1];
      multiply(stages_[stage], chunk == 0, chunk + 1 == block_stages_, free, i + kStages - 1 < count);
      if (++chunk == block_stages_) chunk = 0;
      if (++stage == kStages) stage = 0;
    }
    ptx::copy_wait<0>();
    __syncthreads();
    store();
  }

 private:
  // One pair of panels after the other, so that the operands of only one are in registers. The copies of a later stage
  // to `free`, if there `exists` one, stand behind the first loads, which would wait for them in the queue of the
  // memory pipeline; there is a group of them in any case.
  __device__ void multiply(const TileStage& stage, bool first, bool last, TileStage& free, bool exists) {
    if constexpr (kCopyFirst) copy(free, exists);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      WeightFragments<kBits, kChunks> w;
      w.load(stage, first_column_ / 16 + 2 * pair + group_ / 4, quad_, group_ % 4);
      if constexpr (kBlocks == Blocks::whole) {
#pragma unroll
        for (int tile = 0; tile < kTiles; tile += kTogether) {
          std::int32_t products[kTogether][2][4];
#pragma unroll
          for (int i = 0; i < kTogether; ++i) start(products[i], kThreeHalvesBits, kThreeHalvesBits);
          add_chunks(products, stage, w, tile);
          if (!kCopyFirst && pair == 0 && tile == 0) copy(free, exists);
#pragma unroll
          for (int i = 0; i < kTogether; ++i) promote(stage, pair, tile + i, products[i]);
        }
      } else {
        static_assert(kPairs == 1, "products of a block that is not complete take as many registers as its totals");
        if (first)
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            const ActivationTerms* terms = &stage.terms[first_row_ + 8 * tile + 2 * quad_];
            start(products_[tile], terms[0].shift, terms[1].shift);
          }
        add_chunks(products_, stage, w, 0);
        copy(free, exists);
        if (last)
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) promote(stage, pair, tile, products_[tile]);
      }
    }
  }

  __device__ __forceinline__ void copy(TileStage& to, bool exists) {
    if (exists) copier_.copy(to);
    ptx::copy_commit();
  }

  __device__ __forceinline__ static void start(std::int32_t (&products)[2][4], std::int32_t even, std::int32_t odd) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      products[half][0] = products[half][2] = even;
      products[half][1] = products[half][3] = odd;
    }
  }

  // Issues the products of all tiles before one that continues another's sum.
  template <int kCount>
  __device__ __forceinline__ void add_chunks(std::int32_t (&products)[kCount][2][4], const TileStage& stage,
                                             const WeightFragments<kBits, kChunks>& w, int tile) const {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint2 codes = stage.codes_of(chunk, first_row_ + 8 * (tile + i) + group_, quad_);
        const std::uint32_t x[2] = {codes.x, codes.y};
        ptx::mma_u8s8(products[i][0], w.first[chunk], x, products[i][0]);
        ptx::mma_u8s8(products[i][1], w.second[chunk], x, products[i][1]);
      }
  }

  __device__ void promote(const TileStage& stage, int pair, int tile, const std::int32_t (&products)[2][4]) {
    const int column = first_column_ + 32 * pair + 4 * group_, row = first_row_ + 8 * tile + 2 * quad_;
    const float4 scales = stage.scales(column);
    const float scale[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const ActivationTerms& terms = stage.terms[row + j];
      const float row_scale = terms.scale;
      const auto to_float = [&](std::int32_t product) {
        if constexpr (kBlocks == Blocks::whole)
          return numerics::bits_float(static_cast<std::uint32_t>(product)) -
                 numerics::bits_float(static_cast<std::uint32_t>(kThreeHalvesBits - terms.shift));
        else
          return static_cast<float>(product);
      };
      float (&y)[4] = y_[pair][tile][j];
      // numerics::add_product() of a float that is the product exactly.
#pragma unroll
      for (int i = 0; i < 4; ++i)
        y[i] = numerics::fma_once(to_float(products[i / 2][2 * (i % 2) + j]), row_scale * scale[i], y[i]);
      if constexpr (kOffsets) add_offsets(stage, column, row + j, y);
    }
  }

  __device__ void add_offsets(const TileStage& stage, int column, int row, float (&y)[4]) const {
    if (kBlocks == Blocks::whole || a_.w.offsets) {
      const float4 offsets = stage.offsets(column);
      const float scaled_sum = stage.terms[row].scaled_sum;
      y[0] = numerics::add_weight_offset(y[0], scaled_sum, offsets.x);
      y[1] = numerics::add_weight_offset(y[1], scaled_sum, offsets.y);
      y[2] = numerics::add_weight_offset(y[2], scaled_sum, offsets.z);
      y[3] = numerics::add_weight_offset(y[3], scaled_sum, offsets.w);
    }
    if (kBlocks == Blocks::part && a_.w.sums) {
      const float4 sums = stage.sums(column);
      const float offset = stage.terms[row].offset;
      y[0] = numerics::add_activation_offset(y[0], offset, sums.x);
      y[1] = numerics::add_activation_offset(y[1], offset, sums.y);
      y[2] = numerics::add_activation_offset(y[2], offset, sums.z);
      y[3] = numerics::add_activation_offset(y[3], offset, sums.w);
    }
  }

  // Through shared memory, so that a warp writes 32 neighboring columns of a row at once, or a column of neighboring
  // rows.
  __device__ void store() const {
    float* totals = reinterpret_cast<float*>(dynamic_shared()) + warp_ * (8 * kTiles * 32);  // [8*kTiles, 32]
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      __syncwarp();
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float (&y)[4] = y_[pair][tile][j];
          *reinterpret_cast<float4*>(&totals[place(8 * tile + 2 * quad_ + j, 4 * group_)]) =
              make_float4(y[0], y[1], y[2], y[3]);
        }
      __syncwarp();
      const std::int64_t first_column = rows_.first_panel() * PackedLayout::kPanelRows + first_column_ + 32 * pair;
      if constexpr (Rows::kFours) {
        store_fours(totals, first_column);
        continue;
      }
      if constexpr (Rows::kWindow)
        if (a_.out.y.column_stride != 1) {
          store_columns(totals, first_column);
          continue;
        }
      store_rows(totals, first_column);
    }
  }

  // Four neighboring columns of a row per lane.
  __device__ __forceinline__ void store_fours(const float* totals, std::int64_t first_column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, column = lane % 8 * 4;
    const std::int64_t left = rows_.count() - rows_.first_row() - first_row_, n = first_column + column;
    if (n >= rows_.last_column()) return;
#pragma unroll 1
    for (int row = lane / 8; row < 8 * kTiles && row < left; row += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&totals[place(row, column)]);
      store_four(a_.out, rows_.y_offset(first_row_ + row), n, rows_.last_column(), a_.store_fours,
                 {four.x, four.y, four.z, four.w});
    }
  }

  __device__ __forceinline__ void store_rows(const float* totals, std::int64_t first_column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const std::int64_t left = rows_.count() - rows_.first_row() - first_row_, n = first_column + lane;
    if (n >= rows_.last_column()) return;
    const Epilogue finish_column(a_.out, rows_.y_column(n), rows_.bias_shift());
    // A window's loads wait together. Rows of a matrix may have to compute where they lie, which is long.
    constexpr int kAtOnce = Rows::kWindow ? 4 : 1;
#pragma unroll 1
    for (int row = 0; row < 8 * kTiles && row < left; row += kAtOnce) {
      float y[kAtOnce];
      std::int64_t at[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        y[i] = totals[place(row + i, lane)];
        at[i] = row + i < left ? rows_.y_offset(first_row_ + row + i) : 0;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (row + i < left) finish_column.store(at[i], y[i]);
    }
  }

  __device__ void store_columns(const float* totals, std::int64_t first_column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll 1
    for (int row = lane; row < 8 * kTiles; row += kWarpSize) {
      const std::int64_t at = rows_.first_row() + first_row_ + row;
      if (at >= rows_.count()) break;
      const std::int64_t row_offset = rows_.y_offset(first_row_ + row);
#pragma unroll 1
      for (int column = 0; column < 32; ++column)
        if (first_column + column < rows_.last_column())
          store_epilogue(a_.out, row_offset, first_column + column, totals[place(row, column)]);
    }
  }

  // Where lanes are rows, four neighboring columns change places so that eight of them differ in the bank; else so that
  // those of eight lanes do that write at once, of two groups and four quads.
  __device__ static int place(int row, int column) { return row * 32 + (column ^ 4 * (row & (Rows::kWindow ? 7 : 6))); }

  const Arguments& a_;
  Rows rows_;
  int block_stages_;
  Copier<Rows, kShape.threads(), kBits, kChunks, kArrays, kShape.columns(), kShape.rows()> copier_;
  TileStage* stages_;
  int warp_, group_, quad_;
  int first_column_, first_row_;                                       // of the warp, in the tile
  float y_[kPairs][kTiles][2][4] = {};                                 // [.., row 2*quad + j, column 4*group + i]
  std::int32_t products_[kBlocks == Blocks::part ? kTiles : 1][2][4];  // of a block that is not complete
};

}  // namespace qcore::sm80_int8_mma
