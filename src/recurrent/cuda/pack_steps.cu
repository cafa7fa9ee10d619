#include <algorithm>

#include "recurrent/cuda/pack_steps.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 1 << 16;

// A thread makes a word of four codes in each plane.
__global__ void __launch_bounds__(kThreads) recurrent_pack_kernel(const __grid_constant__ PackPair pair) {
  ptx::let_next_kernel_start();
  const PackRows& p = pair.rows[blockIdx.y];
  const std::int64_t words = p.row_bytes / 4, threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < p.rows * words;
       i += threads) {
    const std::int64_t row = i / words, word = i - row * words;
    const std::int64_t b = row % p.batch, step = p.first + row / p.batch;
    const PackedWord packed = pack_word(p, b, step, word);
    auto* to = reinterpret_cast<std::uint32_t*>(p.to + row * p.row_bytes) + word;
    if (p.planes == 2) {
      *to = packed.high;
      to = reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(to) + p.plane_bytes);
    }
    *to = packed.low;
  }
}

}  // namespace

void pack_steps(const PackPair& pair, cudaStream_t stream) {
  std::int64_t words = 1;
  for (const PackRows& p : pair.rows) words = std::max(words, p.rows * p.row_bytes / 4);
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(words, kThreads), kMaxBlocks));
  launch("recurrent_pack", recurrent_pack_kernel, {dim3(blocks, 2), dim3(kThreads)}, stream, pair);
}

}  // namespace qcore
