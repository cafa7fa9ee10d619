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
    weight_at_ = (kBits == 8 ? quad_ : quad_ / 2) * 8 + group_;
    code_unit_ = TileStage::code_unit(block / 2, first_row_ + tile_row(matrix % kTiles, row), block % 2);
  }

  __device__ void run() {
    int blocks = static_cast<int>(a_.w.blocks);
    const int count = (blocks + kBlocks - 1) / kBlocks;
#pragma unroll 1
    for (int i = 0; i + 1 < kStages; ++i) copy(i, i < count);
    int slot = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      ptx::copy_wait<kStages - 2>();
      // After it all threads' copies of this stage are there, and no thread reads the one before it any more.
      __syncthreads();
      copy(slot == 0 ? kStages - 1 : slot - 1, i + kStages - 1 < count);
      const TileStage& stage = stages_[slot];
      Operands operands(*this, stage);
      if (blocks >= kBlocks) {
#pragma unroll 1
        for (int part = 0; part < kBlocks; part += kUnrolled) {
#pragma unroll
          for (int first = 0; first < kUnrolled; first += kAtOnce) multiply<true>(operands, first, kAtOnce);
          operands.skip(kUnrolled);
        }
      } else {
        // The weight's last blocks.
#pragma unroll 1
        for (; blocks > 0; blocks -= kFewest) {
#pragma unroll
          for (int first = 0; first < kFewest; first += kAtOnce) multiply<false>(operands, first, blocks - first);
          operands.skip(kFewest);
        }
        break;
      }
      blocks -= kBlocks;
      if (++slot == kStages) slot = 0;
    }
    ptx::copy_wait<0>();
    __syncthreads();
    store();
  }

 private:
  static constexpr int kAtOnce = 4 / kTiles;                      // blocks whose codes are loaded together
  static constexpr int kUnrolled = kSize == Size::small ? 8 : 4;  // blocks, of a stage that is full
  static constexpr int kFewest = kAtOnce < 2 ? 2 : kAtOnce;       // whose codes are whole chunks
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4, "so that there are whole blocks in four matrices");

  // The next stage, one group of copies whether there is one or not.
  __device__ __forceinline__ void copy(int slot, bool exists) {
    if (exists) copier_.copy(stages_[slot]);
    ptx::copy_commit();
  }

  // Where a lane's operands of some blocks lie in a stage.
  struct Operands {
    const uint2* weights;  // [panels, steps, 8 pairs of columns]
    const uint4* codes;    // of load_matrices()
    const float *rows, *columns;
    int odd;  // from the codes of a block of even number to those of the next one, where matrices have one block

    __device__ __forceinline__ Operands(const Gemm& of, const TileStage& stage)
        : weights(reinterpret_cast<const uint2*>(stage.weights[of.first_panel_]) + of.weight_at_),
          codes(stage.codes + of.code_unit_),
          rows(stage.rows[0][0] + of.first_row_ + (kTiles == 1 ? 2 : 4) * of.quad_),
          columns(stage.columns[0][of.first_panel_][0] + 2 * of.group_),
          odd((of.code_unit_ ^ 1) - of.code_unit_) {}
    __device__ __forceinline__ void skip(int blocks) {
      weights += blocks * kBlockPairs;
      codes += blocks * TileStage::kRows;
      rows += blocks * (TileStage::kRowArrays * TileStage::kRows);
      columns += blocks * TileStage::kPanelRows;
    }
  };
  static constexpr int kBlockPairs = 2 * TileStage::kBlockUnits, kPanelPairs = 2 * TileStage::kPanelUnits;

  // Returns the row of column `of` of a tile's product. Two tiles share 16 rows, of which a lane has four neighbors.
  __device__ static constexpr int tile_row(int tile, int of) {
    return kTiles == 1 ? of : 16 * (tile / 2) + 4 * (of / 2) + 2 * (tile % 2) + of % 2;
  }

  using Products = std::int32_t[kPanels][kTiles][4];

  // Blocks first .. of the operands, kAtOnce of them, or fewer unless kAll. All their products are on their way before
  // the first one is promoted.
  template <bool kAll>
  __device__ __forceinline__ void multiply(const Operands& from, int first, int count) {
    std::uint32_t codes[4];
    ptx::load_matrices(codes, from.codes + first / 2 * (2 * TileStage::kRows) + (first % 2 ? from.odd : 0));
    Products products[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (kAll || i < count) multiply_block(from, first + i, codes + i * kTiles, products[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (kAll || i < count) promote(from, first + i, products[i]);
  }

  __device__ __forceinline__ void multiply_block(const Operands& from, int block, const std::uint32_t* x,
                                                 Products& products) const {
    constexpr std::int32_t kStart[4] = {kThreeHalvesBits, kThreeHalvesBits, kThreeHalvesBits, kThreeHalvesBits};
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      std::uint32_t a[2];
      load_weights(from.weights[panel * kPanelPairs + block * kBlockPairs], a);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) ptx::mma_s8s8_k16(products[panel][tile], a, x[tile], kStart);
    }
  }

  // Operand a of a panel: rows `group` and group + 8 are columns 2*group and 2*group + 1 of n. 4-bit codes are
  // sixteenfold there: signed bytes without a subtraction.
  __device__ __forceinline__ void load_weights(const uint2& words, std::uint32_t (&a)[2]) const {
    constexpr std::uint32_t kTopBits = 0x80808080u, kHigh = 0xf0f0f0f0u;
    if constexpr (kBits == 8) {
      a[0] = words.x ^ kTopBits, a[1] = words.y ^ kTopBits;
    } else {
      const int shift = quad_ % 2 ? 0 : 4;
      a[0] = ptx::and_xor(words.x << shift, kHigh, kTopBits), a[1] = ptx::and_xor(words.y << shift, kHigh, kTopBits);
    }
  }

  // Calls add(panel, tile, i, row's parameter, column's parameter) for each result, of a block and array of parameters.
  template <class Add>
  __device__ __forceinline__ void for_each_result(const Operands& from, int block, int array, const Add& add) {
    const float* row_parameters = from.rows + (block * TileStage::kRowArrays + array) * TileStage::kRows;
    float rows[2 * kTiles];  // of a lane's rows, in the order of the results
    if constexpr (kTiles == 1) {
      const float2 two = *reinterpret_cast<const float2*>(row_parameters);
      rows[0] = two.x, rows[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kTiles / 2; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(row_parameters + 16 * i);
        rows[4 * i] = four.x, rows[4 * i + 1] = four.y, rows[4 * i + 2] = four.z, rows[4 * i + 3] = four.w;
      }
    }
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const float2 columns = *reinterpret_cast<const float2*>(
          from.columns + ((array * TileStage::kPanels + panel) * kBlocks + block) * TileStage::kPanelRows);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) add(panel, tile, i, rows[2 * tile + i % 2], i / 2 ? columns.y : columns.x);
    }
  }

  __device__ __forceinline__ void promote(const Operands& from, int block, const Products& products) {
    for_each_result(from, block, 0, [&](int panel, int tile, int i, float row, float column) {
      float& y = y_[panel][tile][i];
      y = numerics::add_float_product(y, to_float<kBits>(products[panel][tile][i]), row, column);
    });
    if constexpr (kTerms != Terms::products)
      if (kTerms == Terms::weight_offsets || a_.w.offsets)
        for_each_result(from, block, 1, [&](int panel, int tile, int i, float row, float column) {
          float& y = y_[panel][tile][i];
          y = numerics::add_weight_offset(y, row, column);
        });
    if constexpr (kTerms == Terms::all)
      for_each_result(from, block, 2, [&](int panel, int tile, int i, float row, float column) {
        float& y = y_[panel][tile][i];
        y = numerics::add_activation_offset(y, row, column);
      });
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
      finish_column.store(a_.y_row_stride ? m * a_.y_row_stride : a_.out.y.row_offset(m),
                          totals[row * kPitch + column]);
    }
  }

  const Arguments& a_;
  TileStage* stages_;
  Copier<kBits, kTerms, kSize> copier_;
  int lane_, group_, quad_;
  int first_panel_, first_row_;       // of the warp, in the tile
  int code_unit_, weight_at_;         // of the lane, in a stage's first block
  float y_[kPanels][kTiles][4] = {};  // [.., column 2*quad + i%2 of the tile's product, column 2*group + i/2 of n]
};

template <int kBits, Terms kTerms, Size kSize>
__global__ void __launch_bounds__(Tuning::shape(kSize).threads(), Tuning::resident(kSize))
    sm80_int8_mma16_kernel(const __grid_constant__ Arguments a) {
  ptx::wait_for_earlier_kernels();
  Gemm<kBits, kTerms, kSize>(a).run();
}

}  // namespace qcore::sm80_int8_mma16
