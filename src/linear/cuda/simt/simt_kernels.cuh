#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/expert_tiles.cuh"
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
  ExpertCounts experts;
};

struct IntegerArguments {
  QuantizedRows<std::int16_t> x;
  std::int64_t first_row;  // of x's rows in out.y
  DeviceWeight w;
  DeviceOutput out;
  ExpertCounts experts;
};

// y = act(x W^T + bias) for the rows given; a grid takes up to 2^20 of them.
void run_float(const FloatArguments& arguments, cudaStream_t stream);
void run_integer(const IntegerArguments& arguments, cudaStream_t stream);

// Few rows, or few per expert, take the shallow tile, 16 x 64, others 64 x 64.
inline int rows_per_thread(std::int64_t rows, const ExpertCounts& experts) {
  return rows <= kEdge * std::max(experts.experts, 1) ? 1 : 4;
}
inline dim3 grid_of(std::int64_t rows, const DeviceWeight& w, const ExpertCounts& experts) {
  const std::int64_t tile_rows = kEdge * rows_per_thread(rows, experts);
  if (!experts.counts)
    return dim3(static_cast<unsigned>(ceil_div(w.panels, kPanels)), static_cast<unsigned>(ceil_div(rows, tile_rows)));
  // An expert's rows of the weight may begin within a panel.
  const std::int64_t panels = ceil_div(experts.outputs, kEdge) + (experts.outputs % kEdge != 0);
  return dim3(static_cast<unsigned>(ceil_div(panels, kPanels)),
              static_cast<unsigned>(experts.most_tiles(rows, tile_rows)));
}

// What a thread block computes: rows [first_row, end_row) of a launch by the rows [begin, end) of the weight, from
// those of first_panel on, as columns of y; nothing if there are no rows.
struct TilePlace {
  std::int64_t first_row, end_row, first_panel, begin, end, bias_shift;
};

// By all threads. Fills rows that have no expert.
template <int kRows>
__device__ __forceinline__ TilePlace tile_place(const ExpertCounts& experts, const DeviceWeight& w,
                                                const DeviceOutput& out, std::int64_t first_row, std::int64_t rows) {
  const std::int64_t panel = static_cast<std::int64_t>(blockIdx.x) * kPanels;
  if (!experts.counts) return {static_cast<std::int64_t>(blockIdx.y) * (kRows * kEdge), rows, panel, 0, w.n, 0};
  const ExpertTile tile = find_expert_tile(experts, first_row, rows, kRows * kEdge, blockIdx.y);
  if (tile.expert == experts.experts) {
    const std::int64_t end = (panel + kPanels) * kEdge;
    store_nan(out, first_row, tile, kRows * kEdge, panel * kEdge, end < experts.outputs ? end : experts.outputs);
    return {};
  }
  const std::int64_t begin = tile.expert * experts.outputs, end = begin + experts.outputs;
  const std::int64_t first_panel = begin / kEdge + panel;
  if (first_panel * kEdge >= end) return {};
  return {tile.first, tile.end, first_panel, begin, end, tile.expert * experts.bias_stride};
}

}  // namespace qcore::simt
