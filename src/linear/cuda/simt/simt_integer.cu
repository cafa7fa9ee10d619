#include "linear/cuda/simt/simt_kernels.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx.cuh"

namespace qcore::simt {
namespace {

template <int kRows>
struct IntegerTiles {
  uint2 x[kRows * kEdge][kQuads];                // 4 codes of 16 bits
  std::uint32_t w[kPanels * kEdge][kQuads + 1];  // 4 codes of 8 bits; the odd pitch spreads a column over the banks
};

template <int kRows>
__device__ void load_tiles(IntegerTiles<kRows>& tiles, const IntegerArguments& a, std::int64_t first_row,
                           std::int64_t first_panel, std::int64_t p, std::int64_t first_quad, int thread) {
  const std::int64_t padded_quads = a.x.padded_block / 4;
  for (int i = thread; i < kRows * kEdge * kQuads; i += kThreads) {
    const int row = i / kQuads, quad = i % kQuads;
    uint2 codes{0, 0};
    if (first_row + row < a.x.rows && first_quad + quad < padded_quads)
      codes = reinterpret_cast<const uint2*>(
          a.x.codes)[((first_row + row) * a.x.blocks + p) * padded_quads + first_quad + quad];
    tiles.x[row][quad] = codes;
  }
  for (int i = thread; i < kPanels * kEdge * kQuads; i += kThreads) {
    const int row = i % kEdge, quad = i / kEdge % kQuads, panel = i / kEdge / kQuads;
    tiles.w[panel * kEdge + row][quad] =
        first_panel + panel < a.w.panels ? load_codes(a.w, first_panel + panel, p, first_quad + quad, row) : 0;
  }
}

// A tile's sums are at most 32 * 2^15 * 2^7 in magnitude: exact in int32. Sums over a block need 64 bits.
template <int kRows>
__device__ __forceinline__ void multiply(const IntegerTiles<kRows>& tiles, int tx, int ty,
                                         std::int64_t (&sums)[kRows][kPanels]) {
  std::int32_t tile_sums[kRows][kPanels] = {};
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    std::uint32_t w[kPanels];
    for (int j = 0; j < kPanels; ++j) w[j] = tiles.w[j * kEdge + tx][quad];
    for (int i = 0; i < kRows; ++i) {
      const uint2 x = tiles.x[i * kEdge + ty][quad];
      for (int j = 0; j < kPanels; ++j)
        tile_sums[i][j] = ptx::dot2_high(x.y, w[j], ptx::dot2_low(x.x, w[j], tile_sums[i][j]));
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kPanels; ++j) sums[i][j] += tile_sums[i][j];
}

template <int kRows>
__device__ __forceinline__ void add_block(const IntegerArguments& a, std::int64_t first_row, std::int64_t first_panel,
                                          std::int64_t p, int tx, int ty, const std::int64_t (&sums)[kRows][kPanels],
                                          float (&y)[kRows][kPanels]) {
  for (int j = 0; j < kPanels; ++j) {
    if (first_panel + j >= a.w.panels) break;
    const std::int64_t column = a.w.parameter_index(first_panel + j, p, tx);
    const float scale = a.w.scales[column];
    const float offset = a.w.offsets ? a.w.offsets[column] : 0.0f;
    const float weight_sum = a.w.sums ? a.w.sums[column] : 0.0f;
    for (int i = 0; i < kRows; ++i) {
      if (first_row + i * kEdge + ty >= a.x.rows) break;
      const std::int64_t row = p * a.x.rows + first_row + i * kEdge + ty;
      y[i][j] = numerics::add_product(y[i][j], sums[i][j], a.x.scales[row], scale);
      if (a.w.offsets) y[i][j] = numerics::add_weight_offset(y[i][j], a.x.scaled_sums[row], offset);
      if (a.w.sums) y[i][j] = numerics::add_activation_offset(y[i][j], a.x.offsets[row], weight_sum);
    }
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads) simt_integer_kernel(const IntegerArguments a) {
  IntegerTiles<kRows>& tiles = block_shared<IntegerTiles<kRows>>();
  const int thread = static_cast<int>(threadIdx.x), tx = thread % kEdge, ty = thread / kEdge;
  const TilePlace place = tile_place<kRows>(a.experts, a.w, a.out, a.first_row, a.x.rows);
  if (place.first_row >= place.end_row) return;
  const std::int64_t first_panel = place.first_panel, first_row = place.first_row;

  float y[kRows][kPanels] = {};
  for (std::int64_t p = 0; p < a.w.blocks; ++p) {
    std::int64_t sums[kRows][kPanels] = {};
    const std::int64_t length = a.w.block_length(p);
    for (std::int64_t k = 0; k < length; k += kDepth) {
      __syncthreads();
      load_tiles(tiles, a, first_row, first_panel, p, k / 4, thread);
      __syncthreads();
      multiply(tiles, tx, ty, sums);
    }
    add_block(a, first_row, first_panel, p, tx, ty, sums, y);
  }

#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first_row + i * kEdge + ty;
    if (row >= place.end_row) continue;
    const std::int64_t row_offset = a.out.y.row_offset(a.first_row + row);
#pragma unroll
    for (int j = 0; j < kPanels; ++j) {
      const std::int64_t n = (first_panel + j) * kEdge + tx;
      if (n >= place.begin && n < place.end)
        Epilogue(a.out, n - place.begin, place.bias_shift).store(row_offset, y[i][j]);
    }
  }
}

}  // namespace

void run_integer(const IntegerArguments& a, cudaStream_t stream) {
  const auto kernel = rows_per_thread(a.x.rows, a.experts) == 1 ? simt_integer_kernel<1> : simt_integer_kernel<4>;
  launch("simt_integer", kernel, {grid_of(a.x.rows, a.w, a.experts), dim3(kThreads)}, stream, a);
}

}  // namespace qcore::simt
