#include "linear/cuda/simt/simt_kernels.cuh"
#include "numerics/block_scale.h"
#include "runtime/cuda/cuda_launch.h"

namespace qcore::simt {
namespace {

// The rows' odd pitch spreads a column of a tile over the banks.
template <int kRows>
struct FloatTiles {
  float x[kRows * kEdge][kDepth + 1];
  float w[kPanels * kEdge][kDepth + 1];  // dequantized
  std::int64_t x_offsets[kRows * kEdge];
};

template <int kRows>
__device__ void load_x(FloatTiles<kRows>& tiles, const FloatArguments& a, std::int64_t first_row, std::int64_t first_k,
                       std::int64_t depth, int thread) {
  for (int i = thread; i < kRows * kEdge * kDepth; i += kThreads) {
    const int row = i / kDepth, k = i % kDepth;
    float value = 0.0f;
    if (first_row + row < a.rows && k < depth)
      value = load_float(a.x.data, a.x.dtype, tiles.x_offsets[row] + (first_k + k) * a.x.column_stride);
    tiles.x[row][k] = value;
  }
}

// Beyond the block's end the codes are 0 and the weights finite; x is zero there.
template <int kRows>
__device__ void load_w(FloatTiles<kRows>& tiles, const DeviceWeight& w, std::int64_t first_panel, std::int64_t p,
                       std::int64_t first_quad, int thread) {
  for (int i = thread; i < kPanels * kEdge * kQuads; i += kThreads) {
    const int row = i % kEdge, quad = i / kEdge % kQuads, panel = i / kEdge / kQuads;
    float* to = &tiles.w[panel * kEdge + row][4 * quad];
    std::uint32_t codes = 0;
    float scale = 0.0f, offset = 0.0f;
    if (first_panel + panel < w.panels) {
      const std::int64_t at = w.parameter_index(first_panel + panel, p, row);
      codes = load_codes(w, first_panel + panel, p, first_quad + quad, row);
      scale = w.scales[at];
      if (w.offsets) offset = w.offsets[at];
    }
    for (int j = 0; j < 4; ++j) to[j] = numerics::decode(static_cast<std::int8_t>(codes >> (8 * j)), scale, offset);
  }
}

template <int kRows>
__device__ __forceinline__ void multiply(const FloatTiles<kRows>& tiles, int tx, int ty,
                                         float (&sums)[kRows][kPanels]) {
#pragma unroll 4
  for (int k = 0; k < kDepth; ++k) {
    float w[kPanels];
#pragma unroll
    for (int j = 0; j < kPanels; ++j) w[j] = tiles.w[j * kEdge + tx][k];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float x = tiles.x[i * kEdge + ty][k];
#pragma unroll
      for (int j = 0; j < kPanels; ++j) sums[i][j] = numerics::fma_once(x, w[j], sums[i][j]);
    }
  }
}

// Each block's products are summed in the order of k, then added to the total, as the reference does.
// Two thread blocks per multiprocessor: without the number ptxas aims at more, and spills.
template <int kRows>
__global__ void __launch_bounds__(kThreads, 2) simt_float_kernel(const FloatArguments a) {
  FloatTiles<kRows>& tiles = block_shared<FloatTiles<kRows>>();
  const int thread = static_cast<int>(threadIdx.x), tx = thread % kEdge, ty = thread / kEdge;
  const TilePlace place = tile_place<kRows>(a.experts, a.w, a.out, a.first_row, a.rows);
  if (place.first_row >= place.end_row) return;
  const std::int64_t first_panel = place.first_panel, first_row = place.first_row;
  for (int row = thread; row < kRows * kEdge; row += kThreads)
    tiles.x_offsets[row] = first_row + row < a.rows ? a.x.row_offset(a.first_row + first_row + row) : 0;

  float y[kRows][kPanels] = {};
  for (std::int64_t p = 0; p < a.w.blocks; ++p) {
    float sums[kRows][kPanels] = {};
    const std::int64_t length = a.w.block_length(p);
    for (std::int64_t k = 0; k < length; k += kDepth) {
      __syncthreads();
      load_x(tiles, a, first_row, p * a.w.block_size + k, length - k, thread);
      load_w(tiles, a.w, first_panel, p, k / 4, thread);
      __syncthreads();
      multiply(tiles, tx, ty, sums);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kPanels; ++j) y[i][j] += sums[i][j];
  }

#pragma unroll
  for (int j = 0; j < kPanels; ++j) {
    const std::int64_t n = (first_panel + j) * kEdge + tx;
    if (n < place.begin || n >= place.end) continue;
    const Epilogue column(a.out, n - place.begin, place.bias_shift);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first_row + i * kEdge + ty;
      if (row < place.end_row) column.store(a.out.y.row_offset(a.first_row + row), y[i][j]);
    }
  }
}

}  // namespace

void run_float(const FloatArguments& a, cudaStream_t stream) {
  const auto kernel = rows_per_thread(a.rows, a.experts) == 1 ? simt_float_kernel<1> : simt_float_kernel<4>;
  launch("simt_float", kernel, {grid_of(a.rows, a.w, a.experts), dim3(kThreads)}, stream, a);
}

}  // namespace qcore::simt
