#include "formats/element.h"
#include "linear/cuda/gather_rows.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;

struct Arguments {
  RowView x;
  std::int64_t first_row, k, block_size;
  GatheredRows out;
};

__global__ void __launch_bounds__(kThreads) gather_rows_kernel(const Arguments a) {
  const std::int64_t row_length = a.out.blocks * a.out.padded_block;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= a.out.rows * row_length) return;
  const std::int64_t row = at / row_length, p = at % row_length / a.out.padded_block, i = at % a.out.padded_block;
  const std::int64_t k = p * a.block_size + i;
  float value = 0.0f;
  if (i < a.block_size && k < a.k)
    value = load_float(a.x.data, a.x.dtype, a.x.row_offset(a.first_row + row) + k * a.x.column_stride);
  a.out.values[at] = a.out.bits == 8 ? value : value * (1.0f / nibble_weight(static_cast<int>(i % 8)));
}

}  // namespace

void gather_rows(const RowView& x, std::int64_t first_row, std::int64_t k, std::int64_t block_size,
                 const GatheredRows& out, cudaStream_t stream) {
  const std::int64_t count = out.rows * out.blocks * out.padded_block;
  if (count == 0) return;
  launch("gather_rows", gather_rows_kernel, {dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads)},
         stream, Arguments{x, first_row, k, block_size, out});
}

}  // namespace qcore
