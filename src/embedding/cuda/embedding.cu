#include <algorithm>

#include "embedding/problem.h"
#include "gemm/cuda/device_operands.cuh"
#include "numerics/block_scale.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 128;
constexpr int kQuad = 4;  // codes per thread

struct Arguments {
  DeviceWeight w;
  RowView indices, y;
  bool wide_indices;
  std::int64_t count, quads_per_block, quads;  // of indices; of a block; of a row
};

__global__ void __launch_bounds__(kThreads) embedding_kernel(const __grid_constant__ Arguments a) {
  const std::int64_t quad = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (quad >= a.quads) return;
  const std::int64_t p = quad / a.quads_per_block, in_block = quad % a.quads_per_block;
  const std::int64_t length = a.w.block_length(p);
  for (std::int64_t i = blockIdx.y; i < a.count; i += gridDim.y) {
    const std::int64_t row = EmbeddingProblem::index(a.indices, a.wide_indices, i);
    const bool is_row = row >= 0 && row < a.w.n;
    const std::int64_t panel = is_row ? row / PackedLayout::kPanelRows : 0;
    const int lane = static_cast<int>(is_row ? row % PackedLayout::kPanelRows : 0);
    const std::int64_t at = a.w.parameter_index(panel, p, lane);
    const std::uint32_t codes = is_row ? load_codes(a.w, panel, p, in_block, lane) : 0;
    const float scale = is_row ? a.w.scales[at] : numerics::nan_block().scale;
    const float offset = is_row && a.w.offsets ? a.w.offsets[at] : 0.0f;
    const std::int64_t out = a.y.row_offset(i);
    for (int j = 0; j < kQuad; ++j) {
      const std::int64_t k = kQuad * in_block + j;
      if (k >= length) break;
      const auto code = static_cast<std::int8_t>(codes >> (8 * j) & 0xffu);
      store_float(const_cast<void*>(a.y.data), a.y.dtype, out + (p * a.w.block_size + k) * a.y.column_stride,
                  numerics::decode(code, scale, offset));
    }
  }
}

}  // namespace

void run_embedding_cuda(const EmbeddingProblem& problem) {
  DeviceGuard guard(problem.device.index);
  constexpr std::int64_t kMaxGridRows = 65535;
  const DeviceWeight w = device_weight(problem.weight);
  const std::int64_t block = std::min(w.k, w.block_size), quads_per_block = ceil_div(block, kQuad);
  const std::int64_t quads = w.blocks * quads_per_block;
  launch("embedding", embedding_kernel,
         {dim3(static_cast<unsigned>(ceil_div(quads, kThreads)),
               static_cast<unsigned>(std::min(problem.count, kMaxGridRows))),
          dim3(kThreads)},
         static_cast<cudaStream_t>(problem.stream),
         Arguments{w, problem.indices, problem.y, problem.wide_indices, problem.count, quads_per_block, quads});
}

}  // namespace qcore
