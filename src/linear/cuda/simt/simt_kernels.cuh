#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/quantize_activations.cuh"

// A block of 256 threads computes a tile of y: thread (tx, ty) of 16 x 16 the rows ty + 16*i and the columns tx + 16*j,
// so that tx is also the row within each of the tile's panels. Blocks of k go through shared memory, 32 k at a time.
namespace qcore::simt {

constexpr int kThreads = 256;
constexpr int kEdge = 16;
constexpr int kPanels = 4;  // of a tile: 64 columns
constexpr int kDepth = 32;
constexpr int kQuads = kDepth / 4;

struct FloatArguments {
  RowView x;
  std::int64_t first_row, rows;
  DeviceWeight w;
  DeviceOutput out;
};

struct IntegerArguments {
  QuantizedRows<std::int16_t> x;
  std::int64_t first_row;  // of x's rows in out.y
  DeviceWeight w;
  DeviceOutput out;
};

// y = act(x W^T + bias) for the rows given; a grid takes up to 2^20 of them.
void run_float(const FloatArguments& arguments, cudaStream_t stream);
void run_integer(const IntegerArguments& arguments, cudaStream_t stream);

// Few rows take the shallow tile, 16 x 64, others 64 x 64.
inline int rows_per_thread(std::int64_t rows) { return rows <= kEdge ? 1 : 4; }
inline dim3 grid_of(std::int64_t rows, const DeviceWeight& w) {
  const std::int64_t tile_rows = kEdge * rows_per_thread(rows);
  return dim3(static_cast<unsigned>((w.panels + kPanels - 1) / kPanels),
              static_cast<unsigned>((rows + tile_rows - 1) / tile_rows));
}

}  // namespace qcore::simt
