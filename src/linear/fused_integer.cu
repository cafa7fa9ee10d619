#include "linear/fused_stage.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda_launch.h"
#include "runtime/cuda_warp.cuh"
#include "runtime/memory.h"

namespace qcore::fused {
namespace {

// How a stage relates to a block of k, and what enters a total besides the product.
//   whole    a stage is a block: at most 128 k, symmetric activations
//   part     a stage is 32 k of a block of any length; either operand may have offsets
enum class Blocks { whole, part };

// Products of a whole block stay below 2^22, so they become floats without a conversion: an integer that starts at the
// bits of 1.5 * 2^23 counts in the lowest bits of that float.
constexpr std::int32_t kThreeHalvesBits = 0x4b400000;
constexpr float kThreeHalves = 12582912.0f;

template <int kBits, int kChunks, Blocks kBlocks, bool kOffsets, Size kSize>
class Gemm {
 public:
  static constexpr Shape kShape = Tuning::shape(kSize);
  static constexpr int kPairs = kShape.pairs, kTiles = kShape.tiles;
  static constexpr int kStages = Tuning::stages(kBits, kChunks);
  static constexpr int kArrays = kBlocks == Blocks::part ? 3 : 2;
  using TileStage = Stage<kBits, kChunks, kArrays, kShape.columns(), kShape.rows()>;
  static constexpr std::size_t kStageBytes = kStages * sizeof(TileStage);
  static constexpr std::size_t kTotalBytes = sizeof(float) * kShape.threads() * 8 * kTiles;
  static constexpr std::size_t kSharedBytes = kStageBytes > kTotalBytes ? kStageBytes : kTotalBytes;
  static_assert(kSharedBytes <= 99 << 10, "what every device since sm_80 grants");

  __device__ explicit Gemm(const Arguments& a)
      : a_(a),
        block_stages_(static_cast<int>(a.x.padded_block / (kChunk * kChunks))),
        copier_(a, block_stages_),
        stages_(reinterpret_cast<TileStage*>(dynamic_shared())),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        group_(static_cast<int>(threadIdx.x) % kWarpSize / 4),
        quad_(static_cast<int>(threadIdx.x) % 4),
        first_column_(warp_ % kShape.warps_n * (32 * kPairs)),
        first_row_(warp_ / kShape.warps_n * (8 * kTiles)) {}

  __device__ void run() {
    const int count = static_cast<int>(a_.w.blocks) * block_stages_;
    for (int i = 0; i + 1 < kStages; ++i) copy(i, i < count);
    int chunk = 0, stage = 0;
    for (int i = 0; i < count; ++i) {
      ptx::copy_wait<kStages - 2>();
      // Behind it everybody's copies of this stage are there, and nobody reads the one before it any more.
      __syncthreads();
      copy(stage == 0 ? kStages - 1 : stage - 1, i + kStages - 1 < count);
      multiply(stages_[stage], chunk == 0, chunk + 1 == block_stages_);
      if (++chunk == block_stages_) chunk = 0;
      if (++stage == kStages) stage = 0;
    }
    ptx::copy_wait<0>();
    __syncthreads();
    store();
  }

 private:
  // The next stage, one group of copies whether there is one or not.
  __device__ void copy(int stage, bool exists) {
    if (exists) copier_.copy(stages_[stage]);
    ptx::copy_commit();
  }

  // Operands a of two products per chunk: row `group` of them is column 4*group + word of n.
  struct Weights {
    std::uint32_t first[kChunks][4], second[kChunks][4];

    __device__ void load(const TileStage& stage, int panel, int quad, int unit) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if constexpr (kBits == 8) {
          const uint4 low = stage.weights[TileStage::weight_unit(panel, chunk, 2 * quad, unit)];
          const uint4 high = stage.weights[TileStage::weight_unit(panel, chunk, 2 * quad + 1, unit)];
          set(first[chunk], low.x, low.y, high.x, high.y);
          set(second[chunk], low.z, low.w, high.z, high.w);
        } else {
          constexpr std::uint32_t kLow = 0x0f0f0f0fu;
          const uint4 both = stage.weights[TileStage::weight_unit(panel, chunk, quad, unit)];
          set(first[chunk], both.x & kLow, both.y & kLow, both.x >> 4 & kLow, both.y >> 4 & kLow);
          set(second[chunk], both.z & kLow, both.w & kLow, both.z >> 4 & kLow, both.w >> 4 & kLow);
        }
      }
    }
    __device__ static void set(std::uint32_t (&to)[4], std::uint32_t a, std::uint32_t b, std::uint32_t c,
                               std::uint32_t d) {
      to[0] = a, to[1] = b, to[2] = c, to[3] = d;
    }
  };

  // One pair of panels after the other, so that the operands of only one are in registers.
  __device__ void multiply(const TileStage& stage, bool first, bool last) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      Weights w;
      w.load(stage, first_column_ / 16 + 2 * pair + group_ / 4, quad_, group_ % 4);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = first_row_ + 8 * tile + 2 * quad_;
        if constexpr (kBlocks == Blocks::whole) {
          std::int32_t products[2][4];
          start(products, stage.terms[row].shift + kThreeHalvesBits, stage.terms[row + 1].shift + kThreeHalvesBits);
          add_chunks(products, stage, w, tile);
          promote(stage, pair, tile, products);
        } else {
          static_assert(kPairs == 1, "products of a block that is not complete take as many registers as its totals");
          if (first) start(products_[tile], stage.terms[row].shift, stage.terms[row + 1].shift);
          add_chunks(products_[tile], stage, w, tile);
          if (last) promote(stage, pair, tile, products_[tile]);
        }
      }
    }
  }

  __device__ static void start(std::int32_t (&products)[2][4], std::int32_t even, std::int32_t odd) {
    for (int half = 0; half < 2; ++half) {
      products[half][0] = products[half][2] = even;
      products[half][1] = products[half][3] = odd;
    }
  }

  __device__ void add_chunks(std::int32_t (&products)[2][4], const TileStage& stage, const Weights& w, int tile) const {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4* row = &stage.codes[TileStage::code_unit(chunk, first_row_ + 8 * tile + group_, 0)];
      const uint2 codes = reinterpret_cast<const uint2*>(row)[quad_];
      const std::uint32_t x[2] = {codes.x, codes.y};
      ptx::mma_u8s8(products[0], w.first[chunk], x, products[0]);
      ptx::mma_u8s8(products[1], w.second[chunk], x, products[1]);
    }
  }

  __device__ static float to_float(std::int32_t product) {
    if constexpr (kBlocks == Blocks::whole)
      return numerics::bits_float(static_cast<std::uint32_t>(product)) - kThreeHalves;
    else
      return static_cast<float>(product);
  }

  __device__ void promote(const TileStage& stage, int pair, int tile, const std::int32_t (&products)[2][4]) {
    const int column = first_column_ + 32 * pair + 4 * group_, row = first_row_ + 8 * tile + 2 * quad_;
    const float4 scales = stage.scales(column);
    const float scale[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float row_scale = stage.terms[row + j].scale;
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

  // Through shared memory, so that a warp writes 32 neighbouring columns of a row at once.
  __device__ void store() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    float* totals = reinterpret_cast<float*>(dynamic_shared()) + warp_ * (8 * kTiles * 32);  // [8*kTiles, 32]
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kShape.rows() + first_row_;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      __syncwarp();
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float (&y)[4] = y_[pair][tile][j];
          *reinterpret_cast<float4*>(&totals[(8 * tile + 2 * quad_ + j) * 32 + 4 * group_]) =
              make_float4(y[0], y[1], y[2], y[3]);
        }
      __syncwarp();
      const std::int64_t n =
          static_cast<std::int64_t>(blockIdx.x) * kShape.columns() + first_column_ + 32 * pair + lane;
#pragma unroll 1
      for (int row = 0; row < 8 * kTiles; ++row) {
        if (first + row >= a_.x.rows) break;
        if (n < a_.w.n) finish(a_.out, a_.out.y.row_offset(a_.first_row + first + row), n, totals[row * 32 + lane]);
      }
    }
  }

  const Arguments& a_;
  int block_stages_;
  Copier<kShape.threads(), kBits, kChunks, kArrays, kShape.columns(), kShape.rows()> copier_;
  TileStage* stages_;
  int warp_, group_, quad_;
  int first_column_, first_row_;                                       // of the warp, in the tile
  float y_[kPairs][kTiles][2][4] = {};                                 // [.., row 2*quad + j, column 4*group + i]
  std::int32_t products_[kBlocks == Blocks::part ? kTiles : 1][2][4];  // of a block that is not complete
};

template <int kBits, int kChunks, Blocks kBlocks, bool kOffsets, Size kSize>
__global__ void __launch_bounds__(Tuning::shape(kSize).threads(), Tuning::blocks_per_sm(kSize, kChunks))
    fused_integer_kernel(const Arguments a) {
  Gemm<kBits, kChunks, kBlocks, kOffsets, kSize>(a).run();
}

template <int kBits, int kChunks, Blocks kBlocks, bool kOffsets, Size kSize>
void launch_kernel(const Arguments& a, cudaStream_t stream) {
  using Kernel = Gemm<kBits, kChunks, kBlocks, kOffsets, kSize>;
  constexpr Shape kShape = Kernel::kShape;
  launch("fused_integer", fused_integer_kernel<kBits, kChunks, kBlocks, kOffsets, kSize>,
         {dim3(static_cast<unsigned>(ceil_div(a.w.n, kShape.columns())),
               static_cast<unsigned>(ceil_div(a.x.rows, kShape.rows()))),
          dim3(static_cast<unsigned>(kShape.threads())), Kernel::kSharedBytes},
         stream, a);
}

template <int kBits, bool kOffsets, Size kSize>
void launch_whole(const Arguments& a, cudaStream_t stream) {
  switch (a.x.padded_block) {
    case 32:
      return launch_kernel<kBits, 1, Blocks::whole, kOffsets, kSize>(a, stream);
    case 64:
      return launch_kernel<kBits, 2, Blocks::whole, kOffsets, kSize>(a, stream);
    default:
      return launch_kernel<kBits, 4, Blocks::whole, kOffsets, kSize>(a, stream);
  }
}

bool whole_blocks(const Arguments& a) {
  const std::int64_t length = a.x.padded_block;
  return !a.w.sums && (length == 32 || length == 64 || length == 128);
}

template <int kBits, Size kSize>
void launch_size(const Arguments& a, cudaStream_t stream) {
  if (!whole_blocks(a))
    launch_kernel<kBits, 1, Blocks::part, true, kSize>(a, stream);
  else if (a.w.offsets)
    launch_whole<kBits, true, kSize>(a, stream);
  else
    launch_whole<kBits, false, kSize>(a, stream);
}

template <int kBits>
void launch_bits(const Arguments& a, cudaStream_t stream) {
  constexpr Shape kLarge = Tuning::shape(Size::large);
  if (ceil_div(a.w.n, kLarge.columns()) * ceil_div(a.x.rows, kLarge.rows()) >= a.enough_tiles)
    launch_size<kBits, Size::large>(a, stream);
  else
    launch_size<kBits, Size::small>(a, stream);
}

}  // namespace

void run(const Arguments& a, cudaStream_t stream) {
  if (a.w.bits == 8)
    launch_bits<8>(a, stream);
  else
    launch_bits<4>(a, stream);
}

}  // namespace qcore::fused
