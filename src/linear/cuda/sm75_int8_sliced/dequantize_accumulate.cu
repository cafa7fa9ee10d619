#include "linear/cuda/sm75_int8_sliced/dequantize_accumulate.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreadColumns = 4;
constexpr int kBlockX = 32, kBlockY = 8;
constexpr int kRowsPerThread = 4;
constexpr int kTileRows = kBlockY * kRowsPerThread;

struct Arguments {
  DeviceWeight w;
  Accumulation block;
  DeviceOutput out;
};

// The weight's parameters of four neighboring columns.
struct ColumnParameters {
  float4 scales, offsets, sums;
};

__device__ ColumnParameters load_parameters(const Arguments& a, std::int64_t n) {
  ColumnParameters columns{};
  if (!a.block.products) return columns;
  const std::int64_t at =
      a.w.parameter_index(n / PackedLayout::kPanelRows, a.block.p, static_cast<int>(n % PackedLayout::kPanelRows));
  columns.scales = *reinterpret_cast<const float4*>(a.w.scales + at);
  if (a.block.scaled_sums) columns.offsets = *reinterpret_cast<const float4*>(a.w.offsets + at);
  if (a.block.offsets) columns.sums = *reinterpret_cast<const float4*>(a.w.sums + at);
  return columns;
}

struct RowParameters {
  float scale, scaled_sum, offset;
};

__device__ __forceinline__ float accumulate(const Arguments& a, const RowParameters& row, float y, std::int32_t product,
                                            float scale, float offset, float sum) {
  y = numerics::add_product(y, product, row.scale, scale);
  if (a.block.scaled_sums) y = numerics::add_weight_offset(y, row.scaled_sum, offset);
  if (a.block.offsets) y = numerics::add_activation_offset(y, row.offset, sum);
  return y;
}

__device__ __forceinline__ void process_row(const Arguments& a, const ColumnParameters& columns, std::int64_t row,
                                            std::int64_t n) {
  const Accumulation& block = a.block;
  float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float4* total = reinterpret_cast<float4*>(block.totals + row * block.row_length + n);
  if (!block.first) y = *total;
  if (block.products) {
    const int4 product = *reinterpret_cast<const int4*>(block.products + row * block.row_length + n);
    const RowParameters parameters{block.scales[row], block.scaled_sums ? block.scaled_sums[row] : 0.0f,
                                   block.offsets ? block.offsets[row] : 0.0f};
    y.x = accumulate(a, parameters, y.x, product.x, columns.scales.x, columns.offsets.x, columns.sums.x);
    y.y = accumulate(a, parameters, y.y, product.y, columns.scales.y, columns.offsets.y, columns.sums.y);
    y.z = accumulate(a, parameters, y.z, product.z, columns.scales.z, columns.offsets.z, columns.sums.z);
    y.w = accumulate(a, parameters, y.w, product.w, columns.scales.w, columns.offsets.w, columns.sums.w);
  }
  if (!block.last) {
    *total = y;
    return;
  }
  const std::int64_t row_offset = a.out.y.row_offset(block.first_row + row);
  store_epilogue(a.out, row_offset, n, y.x);
  if (n + 1 < a.w.n) store_epilogue(a.out, row_offset, n + 1, y.y);
  if (n + 2 < a.w.n) store_epilogue(a.out, row_offset, n + 2, y.z);
  if (n + 3 < a.w.n) store_epilogue(a.out, row_offset, n + 3, y.w);
}

__global__ void __launch_bounds__(kBlockX* kBlockY) dequantize_accumulate_kernel(const Arguments a) {
  const std::int64_t n = (static_cast<std::int64_t>(blockIdx.x) * kBlockX + threadIdx.x) * kThreadColumns;
  if (n >= a.w.n) return;
  const ColumnParameters columns = load_parameters(a, n);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kTileRows + threadIdx.y;
  for (int i = 0; i < kRowsPerThread; ++i) {
    const std::int64_t row = first + i * kBlockY;
    if (row < a.block.rows) process_row(a, columns, row, n);
  }
}

}  // namespace

void dequantize_accumulate(const DeviceWeight& w, const Accumulation& block, const DeviceOutput& out,
                           cudaStream_t stream) {
  if (block.rows == 0 || w.n == 0) return;
  launch("dequantize_accumulate", dequantize_accumulate_kernel,
         {dim3(static_cast<unsigned>(ceil_div(w.n, kBlockX * kThreadColumns)),
               static_cast<unsigned>(ceil_div(block.rows, kTileRows))),
          dim3(kBlockX, kBlockY)},
         stream, Arguments{w, block, out});
}

}  // namespace qcore
