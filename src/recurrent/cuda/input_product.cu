#include "recurrent/cuda/byte_product.cuh"
#include "recurrent/cuda/input_product.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kWarps = 4;

struct Arguments {
  ProductOutputs to;
  bool half_even, overlap;
  InputRows inputs;
};

// A row of weights' way from sums to codes.
struct Rescale {
  std::int64_t at, offset;  // in [gates, outputs]
  int shift;
};

__device__ __forceinline__ Rescale rescale_of(const Arguments& a, int tile, int within) {
  const std::int64_t at = tile % a.to.gates * a.to.outputs + tile / a.to.gates * kTileRows + within;
  return {at, a.to.product.offsets[at], a.to.product.shifts[at]};
}

__device__ __forceinline__ void store(const Arguments& a, const Rescale& by, std::int64_t row, std::int64_t total) {
  if (row >= a.inputs.count) return;
  a.to.codes[row * a.to.gates * a.to.outputs + by.at] =
      product_code(total + by.offset, by.shift, a.half_even, a.to.range);
}

__device__ __forceinline__ ByteOperands operands(const Arguments& a, int weight_planes, int tile, std::int64_t row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  ByteOperands from;
  from.steps = static_cast<int>(a.inputs.row_bytes / kStepK);
  from.weights = static_cast<const uint4*>(a.to.product.weights) +
                 static_cast<std::int64_t>(tile) * weight_planes * from.steps * 64 + lane;
  from.inputs = a.inputs.data + (row + lane / 4) * a.inputs.row_bytes + 16 * (lane % 4);
  from.input_plane = a.inputs.rows * a.inputs.row_bytes;
  from.input_tile = 8 * a.inputs.row_bytes;
  return from;
}

// A warp has kInputTiles tiles, of kColumns times 8 rows of inputs.
template <int kWeightPlanes, int kInputPlanes, int kColumns>
__global__ void __launch_bounds__(kWarps* kWarpSize) recurrent_input_kernel(const __grid_constant__ Arguments a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int tile = kInputTiles * static_cast<int>(blockIdx.y);
  const int tiles = static_cast<int>(a.to.gates * a.to.outputs / kTileRows) - tile;
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * kWarps + warp) * 8 * kColumns;
  if (row >= a.inputs.count) return;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  ByteProduct<kWeightPlanes, kInputPlanes, kInputTiles, kColumns> product;
  product.clear();
  const ByteOperands from = operands(a, kWeightPlanes, tile, row);
  product.add(from, 0, from.steps);
#pragma unroll
  for (int i = 0; i < kInputTiles; ++i) {
    if (i >= tiles) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Rescale by = rescale_of(a, tile + i, fragment_row(lane, 2 * half));
#pragma unroll
      for (int column = 0; column < kColumns; ++column)
#pragma unroll
        for (int element = 2 * half; element < 2 * half + 2; ++element)
          store(a, by, row + 8 * column + fragment_column(lane, element), product.total(i, column, element));
    }
  }
}

// More k than a sum in int32 takes.
template <int kWeightPlanes, int kInputPlanes>
__global__ void __launch_bounds__(kWarps* kWarpSize) recurrent_long_input_kernel(const __grid_constant__ Arguments a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int tile = static_cast<int>(blockIdx.y);
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * kWarps + warp) * 8;
  if (row >= a.inputs.count) return;
  const ByteOperands from = operands(a, kWeightPlanes, tile, row);
  std::int64_t totals[4] = {};
  for (int begin = 0; begin < from.steps; begin += kMaxSumSteps) {
    ByteProduct<kWeightPlanes, kInputPlanes, 1, 1> product;
    product.clear();
    product.add(from, begin, begin + kMaxSumSteps < from.steps ? begin + kMaxSumSteps : from.steps);
#pragma unroll
    for (int i = 0; i < 4; ++i) totals[i] += product.total(0, 0, i);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store(a, rescale_of(a, tile, fragment_row(lane, i)), row + fragment_column(lane, i), totals[i]);
}

template <int kWeightPlanes, int kInputPlanes>
void run(const Arguments& a, cudaStream_t stream) {
  constexpr int kColumns = kWeightPlanes + kInputPlanes == 2 ? 4 : 2;
  constexpr std::int64_t kFewRows = 1024;  // which leave multiprocessors without work
  const auto tiles = static_cast<unsigned>(a.to.gates * a.to.outputs / kTileRows);
  const auto blocks = [&](int columns) {
    return static_cast<unsigned>(ceil_div(a.inputs.count, std::int64_t{8} * columns * kWarps));
  };
  LaunchShape shape{dim3(blocks(1), ceil_div(tiles, kInputTiles)), dim3(kWarps * kWarpSize)};
  if (a.inputs.row_bytes / kStepK > kMaxSumSteps) {
    shape.grid.y = tiles;
    return launch("recurrent_long_input", recurrent_long_input_kernel<kWeightPlanes, kInputPlanes>, shape, stream, a);
  }
  shape.overlap = a.overlap;
  if (a.inputs.count <= kFewRows)
    return launch("recurrent_input", recurrent_input_kernel<kWeightPlanes, kInputPlanes, 1>, shape, stream, a);
  shape.grid.x = blocks(kColumns);
  launch("recurrent_input", recurrent_input_kernel<kWeightPlanes, kInputPlanes, kColumns>, shape, stream, a);
}

}  // namespace

void multiply_inputs(const RecurrentSteps& steps, const ProductOutputs& to, const InputRows& inputs,
                     cudaStream_t stream) {
  const Arguments a{to, steps.half_even, steps.overlap, inputs};
  if (to.weight_planes == 1)
    inputs.planes == 1 ? run<1, 1>(a, stream) : run<1, 2>(a, stream);
  else
    inputs.planes == 1 ? run<2, 1>(a, stream) : run<2, 2>(a, stream);
}

}  // namespace qcore
