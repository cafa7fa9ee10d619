#include "runtime/cuda_launch.h"
#include "runtime/memory.h"
#include "static/gemm_operands.cuh"

namespace qcore::static_gemm {
namespace {

constexpr int kThreads = 256, kWords = 4;

// A thread makes 16 bytes of a row; 16 rows of a panel are read together.
__global__ void __launch_bounds__(kThreads) static_unpack_kernel(const Unpacking a) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int units = a.depth / 16, row = static_cast<int>(at % 16), unit = static_cast<int>(at / 16 % units);
  const std::int64_t panel = at / 16 / units;
  if (panel * 16 >= a.rows) return;
  std::uint32_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int step = kWords * unit + i;
    words[i] = step < a.steps ? a.words[(panel * a.steps + step) * 16 + row] : 0;
  }
  *reinterpret_cast<uint4*>(a.to + (panel * 16 + row) * a.depth + 16 * unit) = {words[0], words[1], words[2], words[3]};
}

// A thread takes 16 channels of a pixel.
__global__ void __launch_bounds__(kThreads) static_rows_kernel(const RowPacking a) {
  // Fewer than 2^32 threads: rows and units are bounded by scratch memory.
  const std::uint32_t at = blockIdx.x * kThreads + threadIdx.x, units = static_cast<std::uint32_t>(a.depth / 16);
  const int row = static_cast<int>(at / units);
  if (row >= a.results) return;
  const std::int64_t first = at % units * 16;
  const ResultPlace place(a.window, a.first, row);
  const auto* from =
      static_cast<const std::uint8_t*>(a.x.data) + a.x.offset(place.image, first, place.row, place.column);
  std::uint32_t words[kWords] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (first + i < a.k) words[i / 4] |= static_cast<std::uint32_t>(from[i * a.x.channel]) << (8 * (i % 4));
  *reinterpret_cast<uint4*>(a.to + static_cast<std::int64_t>(row) * a.depth + first) = {words[0], words[1], words[2],
                                                                                        words[3]};
}

}  // namespace

void unpack(const Unpacking& a, cudaStream_t stream) {
  const std::int64_t units = a.rows * (a.depth / 16);
  if (units == 0) return;
  launch("static_unpack", static_unpack_kernel,
         {dim3(static_cast<unsigned>(ceil_div(units, kThreads))), dim3(kThreads)}, stream, a);
}

void pack_rows(const RowPacking& a, cudaStream_t stream) {
  launch("static_rows", static_rows_kernel,
         {dim3(static_cast<unsigned>(ceil_div(std::int64_t{a.results} * (a.depth / 16), kThreads))), dim3(kThreads)},
         stream, a);
}

}  // namespace qcore::static_gemm
