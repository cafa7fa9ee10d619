#include <algorithm>

#include "embedding/problem.h"
#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/encoded/expand_weight.cuh"
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

struct EncodedArguments {
  DeviceEncoded w;
  RowView indices, y;
  bool wide_indices;
  std::int64_t count, quads_per_block, quads;
};

__global__ void __launch_bounds__(kThreads) embedding_encoded_kernel(const __grid_constant__ EncodedArguments a) {
  const std::int64_t quad = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (quad >= a.quads) return;
  const PackedLayout& layout = a.w.layout;
  const std::int64_t p = quad / a.quads_per_block, in_block = quad % a.quads_per_block;
  const std::int64_t left = layout.block_length(p) - kQuad * in_block;
  for (std::int64_t i = blockIdx.y; i < a.count; i += gridDim.y) {
    const std::int64_t row = EmbeddingProblem::index(a.indices, a.wide_indices, i);
    const bool is_row = row >= 0 && row < layout.n;
    const std::int64_t from = is_row ? row : 0;
    const std::uint32_t stored =
        left > 0 ? a.w.stored_codes(from / PackedLayout::kPanelRows, layout.block_first_step(p) + in_block,
                                    static_cast<int>(from % PackedLayout::kPanelRows))
                 : 0;
    const int shift = a.w.encoded.code_shift(from, p);
    const float scale = is_row ? a.w.encoded.scale(from, p) : numerics::nan_block().scale;
    const bool offsets = a.w.encoded.encoding.offsets != ParameterType::none && shift == 0;
    const float offset = offsets ? a.w.encoded.offset(from, p) : 0.0f;
    const std::int64_t out = a.y.row_offset(i);
    for (int j = 0; j < kQuad && j < left; ++j) {
      const int code = static_cast<int>(stored >> (8 * j) & 0xffu) - 128 + shift;
      store_float(const_cast<void*>(a.y.data), a.y.dtype,
                  out + (p * layout.block_size + kQuad * in_block + j) * a.y.column_stride,
                  numerics::decode(code, scale, offset));
    }
  }
}

}  // namespace

void run_embedding_cuda(const EmbeddingProblem& problem) {
  DeviceGuard guard(problem.device.index);
  constexpr std::int64_t kMaxGridRows = 65535;
  const PackedLayout& layout = problem.weight.layout;
  const std::int64_t quads_per_block = ceil_div(std::min(layout.k, layout.block_size), kQuad);
  const std::int64_t quads = layout.blocks() * quads_per_block;
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(quads, kThreads)),
                               static_cast<unsigned>(std::min(problem.count, kMaxGridRows))),
                          dim3(kThreads)};
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  if (problem.weight.encoded)
    launch("embedding_encoded", embedding_encoded_kernel, shape, stream,
           EncodedArguments{DeviceEncoded(problem.weight), problem.indices, problem.y, problem.wide_indices,
                            problem.count, quads_per_block, quads});
  else
    launch("embedding", embedding_kernel, shape, stream,
           Arguments{device_weight(problem.weight), problem.indices, problem.y, problem.wide_indices, problem.count,
                     quads_per_block, quads});
}

}  // namespace qcore
