#include "formats/element.h"
#include "gemm/cuda/row_sums.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;
constexpr int kValues = 8;  // per thread: one 16-byte load

// Whole 128 k, of which the last ones may be zeros.
__host__ __device__ std::int64_t row_units(const RowSums& a) { return (a.k + 127) / 128 * (128 / a.unit); }

// A few neighboring lanes share a unit, and neighboring units are of one row.
__global__ void __launch_bounds__(kThreads) row_sums_kernel(const RowSums a) {
  ptx::let_next_kernel_start();
  const int lanes = a.unit / kValues;
  const std::int64_t row_threads = row_units(a) * lanes;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = thread / row_threads, at = thread % row_threads, k = at * kValues;
  const bool valid = row < a.rows;
  float sum = 0.0f;
  if (valid && k < a.k) {
    const std::uint16_t* from = a.values + row * a.row_stride + k;
    if (k + kValues <= a.k) {
      const uint4 four = *reinterpret_cast<const uint4*>(from);
      const std::uint32_t words[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const auto half = static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)));
        sum += a.dtype == DType::f16 ? numerics::half_to_float(half) : numerics::bfloat_to_float(half);
      }
    } else {
      for (int i = 0; k + i < a.k; ++i) sum += load_float(from, a.dtype, i);
    }
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  if (valid && at % lanes == 0) a.sums[at / lanes * a.stride + row] = sum;
}

}  // namespace

void add_row_sums(const RowSums& a, cudaStream_t stream) {
  const std::int64_t threads = a.rows * row_units(a) * (a.unit / kValues);
  if (threads == 0) return;
  launch("row_sums", row_sums_kernel, {dim3(static_cast<unsigned>(ceil_div(threads, kThreads))), dim3(kThreads)},
         stream, a);
}

}  // namespace qcore
