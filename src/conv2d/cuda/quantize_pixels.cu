#include "conv2d/cuda/pixel_rows.cuh"
#include "formats/compute_mode.h"
#include "formats/element.h"
#include "numerics/activation_block.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_convert.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 128;

struct Arguments {
  RowView x;
  std::int64_t first_row, k, block_size;
  int mode;
  QuantizedRows<std::int8_t> out;
};

// One thread per row and block. Neighboring threads are neighboring pixels, so that a warp reads a channel of 32 of
// them at once where channels lie apart; the second pass finds the values in a cache.
__global__ void __launch_bounds__(kThreads) quantize_pixels_kernel(const Arguments a) {
  const QuantizedRows<std::int8_t>& out = a.out;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, p = blockIdx.y;
  if (row >= out.rows) return;
  const std::int64_t first_k = p * a.block_size;
  const std::int64_t length = a.k - first_k < a.block_size ? a.k - first_k : a.block_size;
  const std::int64_t begin = a.x.row_offset(a.first_row + row) + first_k * a.x.column_stride;
  std::uint32_t magnitude = 0;
  float lo = numerics::kFloatMax, hi = -numerics::kFloatMax;
  for (std::int64_t i = 0; i < length; ++i) {
    const float value = load_float(a.x.data, a.x.dtype, begin + i * a.x.column_stride);
    const std::uint32_t bits = numerics::magnitude_bits(value);
    magnitude = bits > magnitude ? bits : magnitude;
    lo = value < lo ? value : lo;
    hi = value > hi ? value : hi;
  }
  const numerics::BlockScale scale = numerics::activation_scale(a.mode, lo, hi, magnitude);
  auto* to = reinterpret_cast<uint4*>(out.codes + (row * out.blocks + p) * out.padded_block);
  std::int32_t sum = 0;
  for (std::int64_t first = 0; first < out.padded_block; first += 16) {
    std::uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      std::uint32_t codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t k = first + 4 * word + i;
        int code = 0;
        if (k < length)
          code =
              numerics::activation_code(load_float(a.x.data, a.x.dtype, begin + k * a.x.column_stride), scale, a.mode);
        sum += code;
        codes[i] = static_cast<std::uint32_t>(code);
      }
      words[word] = ptx::lowest_bytes(codes[0], codes[1], codes[2], codes[3]);
    }
    to[first / 16] = {words[0], words[1], words[2], words[3]};
  }
  out.terms[p * out.rows + row] = {scale.scale, -out.zero_code * sum, scale.scale * static_cast<float>(sum),
                                   scale.offset};
}

}  // namespace

void quantize_pixels(const Conv2dProblem& problem, std::int64_t first_row, const QuantizedRows<std::int8_t>& out,
                     cudaStream_t stream) {
  const PackedLayout& layout = problem.weight->layout;
  if (out.rows * out.blocks == 0) return;
  const RowView x = pixel_rows(problem);
  constexpr std::int64_t kMaxBlocks = 65535;  // of a grid's second axis
  if (x.column_stride == 1 || out.blocks > kMaxBlocks)
    return quantize_activations(x, first_row, layout.k, layout.block_size, problem.compute, out, stream);
  const Arguments arguments{x, first_row, layout.k, layout.block_size, activation_mode(problem.compute), out};
  launch("quantize_pixels", quantize_pixels_kernel,
         {dim3(static_cast<unsigned>(ceil_div(out.rows, kThreads)), static_cast<unsigned>(out.blocks)), dim3(kThreads)},
         stream, arguments);
}

}  // namespace qcore
