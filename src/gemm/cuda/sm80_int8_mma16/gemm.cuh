#pragma once

#include "gemm/cuda/sm80_int8_mma16/stage.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_convert.cuh"
#include "runtime/cuda/ptx_launch.cuh"

namespace qcore::sm80_int8_mma16 {

// Products of a block stay below 2^22, those of sixteenfold codes too, so they become floats without a conversion: an
// integer that starts at the bits of 1.5 * 2^23 counts in the lowest bits of that float.
constexpr std::int32_t kThreeHalvesBits = 0x4b400000;

template <int kBits>
__device__ __forceinline__ float to_float(std::int32_t product) {
  constexpr float kThreeHalves = 12582912.0f, kSixteenth = 0.0625f;
  const float shifted = numerics::bits_float(static_cast<std::uint32_t>(product));
  return kBits == 8 ? shifted - kThreeHalves : numerics::fma_once(shifted, kSixteenth, -kThreeHalves * kSixteenth);
}

template <int kBits, Terms kTerms, Size kSize>
class Gemm {
 public:
  using TileStage = Stage<kBits, kTerms, kSize>;
  static constexpr Shape kShape = Tuning::shape(kSize);
  static constexpr int kPanels = kShape.panels, kTiles = kShape.tiles, kBlocks = TileStage::kBlocks;
  static constexpr int kStages = Tuning::stages(kSize, kTerms);
  static constexpr int kPitch = kShape.columns() + 4;  // of totals in shared memory
  static constexpr std::size_t kSharedBytes = kStages * sizeof(TileStage);
  static_assert(kSharedBytes >= sizeof(float) * kShape.rows() * kPitch, "totals take the stages' place");
  static_assert(kSharedBytes <= 99 << 10, "what every device since sm_80 grants");

  __device__ explicit Gemm(const Arguments& a)
      : a_(a),
        stages_(reinterpret_cast<TileStage*>(dynamic_shared())),
        copier_(a),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        group_(lane_ / 4),
        quad_(lane_ % 4) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    first_panel_ = warp % kShape.warps_n * kPanels;
    first_row_ = warp / kShape.warps_n * (8 * kTiles);
    // A lane's row of load_matrices(): matrices of as many tiles as there are, and of neighboring blocks.
    const int matrix = lane_ / 8, row = lane_ % 8, block = matrix / kTiles;
    code_unit_ = TileStage::code_unit(block / 2, first_row_ + tile_row(matrix % kTiles, row), block % 2);
  }

  __device__ void run() {
    int blocks = static_cast<int>(a_.w.blocks);
    const int count = (blocks + kBlocks - 1) / kBlocks;
#pragma unroll 1
    for (int i = 0; i + 1 < kStages; ++i) copy(i, i < count);
    int slot = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i, blocks -= kBlocks) {
      ptx::copy_wait<kStages - 2>();
      // After it all threads' copies of this stage are there, and no thread reads the one before it any more.
      __syncthreads();
      copy(slot == 0 ? kStages - 1 : slot - 1, i + kStages - 1 < count);
      const TileStage& stage = stages_[slot];
      if (blocks >= kBlocks) {
#pragma unroll
        for (int first = 0; first < kBlocks; first += kAtOnce) multiply<true>(stage, first, kAtOnce);
      } else {
        // The weight's last blocks.
#pragma unroll 1
        for (int first = 0; first < blocks; first += kAtOnce) multiply<false>(stage, first, blocks - first);
      }
      if (++slot == kStages) slot = 0;
    }
    ptx::copy_wait<0>();
    __syncthreads();
    store();
  }

 private:
  static constexpr int kAtOnce = 4 / kTiles;  // blocks whose codes are loaded together
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4, "so that there are whole blocks in four matrices");

  // The next stage, one group of copies whether there is one or not.
  __device__ __forceinline__ void copy(int slot, bool exists) {
    if (exists) copier_.copy(stages_[slot]);
    ptx::copy_commit();
  }

  // Returns the row of column `of` of a tile's product. Two tiles share 16 rows, of which a lane has four neighbors.
  __device__ static constexpr int tile_row(int tile, int of) {
    return kTiles == 1 ? of : 16 * (tile / 2) + 4 * (of / 2) + 2 * (tile % 2) + of % 2;
  }

  // Blocks first .. of a stage, kAtOnce of them, or fewer unless kAll.
  template <bool kAll>
  __device__ __forceinline__ void multiply(const TileStage& stage, int first, int count) {
    std::uint32_t codes[4];
    ptx::load_matrices(codes, &stage.codes[(code_unit_ ^ first % 2) + first / 2 * (2 * TileStage::kRows)]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!kAll && i >= count) break;
      multiply_block(stage, first + i, codes + i * kTiles);
    }
  }

  __device__ __forceinline__ void multiply_block(const TileStage& stage, int block, const std::uint32_t* x) {
    constexpr std::int32_t kStart[4] = {kThreeHalvesBits, kThreeHalvesBits, kThreeHalvesBits, kThreeHalvesBits};
    float rows[2 * kTiles];
    load_rows(stage, block, 0, rows);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      std::uint32_t a[2];
      load_weights(stage, block, first_panel_ + panel, a);
      const float2 columns = column_pair(stage, 0, panel, block);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        std::int32_t products[4];
        ptx::mma_s8s8_k16(products, a, x[tile], kStart);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& y = y_[panel][tile][i];
          y = numerics::add_float_product(y, to_float<kBits>(products[i]), rows[2 * tile + i % 2],
                                          i / 2 ? columns.y : columns.x);
        }
      }
    }
    if constexpr (kTerms == Terms::weight_offsets) {
      add_offsets<1>(stage, block);
    } else if constexpr (kTerms == Terms::all) {
      if (a_.w.offsets) add_offsets<1>(stage, block);
      add_offsets<2>(stage, block);
    }
  }

  // Operand a of a panel: rows `group` and group + 8 are columns 2*group and 2*group + 1 of n. 4-bit codes are sixteenfold
  // there: signed bytes without a subtraction.
  __device__ __forceinline__ void load_weights(const TileStage& stage, int block, int panel,
                                               std::uint32_t (&a)[2]) const {
    constexpr std::uint32_t kTopBits = 0x80808080u, kHigh = 0xf0f0f0f0u;
    const uint2* steps = reinterpret_cast<const uint2*>(stage.weights[panel]) + group_;  // [steps, 8 pairs of columns]
    if constexpr (kBits == 8) {
      const uint2 words = steps[(4 * block + quad_) * 8];
      a[0] = words.x ^ kTopBits, a[1] = words.y ^ kTopBits;
    } else {
      const uint2 words = steps[(2 * block + quad_ / 2) * 8];
      const int shift = quad_ % 2 ? 0 : 4;
      a[0] = ptx::and_xor(words.x << shift, kHigh, kTopBits), a[1] = ptx::and_xor(words.y << shift, kHigh, kTopBits);
    }
  }

  // Returns a lane's rows of the tiles, in the order of the results.
  __device__ __forceinline__ void load_rows(const TileStage& stage, int block, int array,
                                            float (&rows)[2 * kTiles]) const {
    const float* from = &stage.rows[block][array][first_row_];
    if constexpr (kTiles == 1) {
      const float2 two = *reinterpret_cast<const float2*>(from + 2 * quad_);
      rows[0] = two.x, rows[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kTiles / 2; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(from + 16 * i + 4 * quad_);
        rows[4 * i] = four.x, rows[4 * i + 1] = four.y, rows[4 * i + 2] = four.z, rows[4 * i + 3] = four.w;
      }
    }
  }
  __device__ __forceinline__ float2 column_pair(const TileStage& stage, int array, int panel, int block) const {
    return reinterpret_cast<const float2*>(stage.columns[array][first_panel_ + panel][block])[group_];
  }

  // Of the weight with array 1, of the activations with array 2.
  template <int kArray>
  __device__ __forceinline__ void add_offsets(const TileStage& stage, int block) {
    float rows[2 * kTiles];
    load_rows(stage, block, kArray, rows);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const float2 columns = column_pair(stage, kArray, panel, block);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& y = y_[panel][tile][i];
          const float row = rows[2 * tile + i % 2], column = i / 2 ? columns.y : columns.x;
          y = kArray == 1 ? numerics::add_weight_offset(y, row, column) : numerics::add_activation_offset(y, row, column);
        }
    }
  }

  // Through shared memory, so that neighboring columns are written at once.
  __device__ void store() const {
    float* totals = reinterpret_cast<float*>(dynamic_shared());
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          *reinterpret_cast<float2*>(&totals[(first_row_ + tile_row(tile, 2 * quad_ + i)) * kPitch +
                                             16 * (first_panel_ + panel) + 2 * group_]) =
              float2{y_[panel][tile][i], y_[panel][tile][i + 2]};
    __syncthreads();
    // A thread has one column, so that there is one copy of what finishes a value: of four it would be half of the
    // kernel's instructions.
    constexpr int kColumns = kShape.columns(), kAtATime = kShape.threads() / kColumns;
    const int column = static_cast<int>(threadIdx.x) % kColumns;
    const std::int64_t n = blockIdx.x * static_cast<std::int64_t>(kColumns) + column;
    if (n >= a_.w.n) return;
    const Epilogue finish_column(a_.out, n);
    const std::int64_t first = blockIdx.y * static_cast<std::int64_t>(kShape.rows()), left = a_.x.rows - first;
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / kColumns; row < kShape.rows() && row < left; row += kAtATime) {
      const std::int64_t m = a_.first_row + first + row;
      finish_column.store(a_.y_row_stride ? m * a_.y_row_stride : a_.out.y.row_offset(m), totals[row * kPitch + column]);
    }
  }

  const Arguments& a_;
  TileStage* stages_;
  Copier<kBits, kTerms, kSize> copier_;
  int lane_, group_, quad_;
  int first_panel_, first_row_;       // of the warp, in the tile
  int code_unit_;                     // of the lane, for blocks of even number
  float y_[kPanels][kTiles][4] = {};  // [.., column 2*quad + i%2 of the tile's product, column 2*group + i/2 of n]
};

template <int kBits, Terms kTerms, Size kSize>
__global__ void __launch_bounds__(Tuning::shape(kSize).threads(), Tuning::resident(kSize))
    sm80_int8_mma16_kernel(const __grid_constant__ Arguments a) {
  ptx::wait_for_earlier_kernels();
  Gemm<kBits, kTerms, kSize>(a).run();
}

}  // namespace qcore::sm80_int8_mma16
