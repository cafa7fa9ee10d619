#include "formats/element.h"
#include "gemm/cuda/split_rows.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;  // values per thread: one 16-byte store per plane

struct Arguments {
  RowView x;
  std::int64_t first_row, k;
  SplitRows out;
};

struct Unit {
  std::uint32_t words[kUnit / 2] = {};
  __device__ __forceinline__ void set(int i, std::uint32_t half) { words[i / 2] |= half << (16 * (i % 2)); }
  __device__ __forceinline__ void store(std::uint16_t* to) const {
    uint4 four;
    four.x = words[0], four.y = words[1], four.z = words[2], four.w = words[3];
    *reinterpret_cast<uint4*>(to) = four;
  }
};

// The upper half of x, which is x without its last 16 bits; what is left is exact.
__device__ __forceinline__ std::uint32_t take_upper(float& x) {
  const std::uint32_t upper = numerics::float_bits(x) & 0xffff0000u;
  x = upper == numerics::float_bits(x) ? 0.0f : x - numerics::bits_float(upper);
  return upper >> 16;
}

__global__ void __launch_bounds__(kThreads) split_rows_kernel(const Arguments a) {
  const std::int64_t row_units = a.out.row_length / kUnit;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= a.out.rows * row_units) return;
  // Neighboring threads have neighboring values: of a row, or where those lie apart of a column.
  const bool along_rows = a.x.column_stride == 1;
  const std::int64_t row = along_rows ? at / row_units : at % a.out.rows;
  const std::int64_t k = (along_rows ? at % row_units : at / a.out.rows) * kUnit;
  const std::int64_t from = a.x.row_offset(a.first_row + row) + k * a.x.column_stride;
  const std::int64_t plane = a.out.rows * a.out.row_length;
  std::uint16_t* to = a.out.values + row * a.out.row_length + k;
  if (a.x.dtype == DType::f32) {
    Unit first, second, third;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      float x = k + i < a.k ? static_cast<const float*>(a.x.data)[from + i * a.x.column_stride] : 0.0f;
      first.set(i, take_upper(x));
      second.set(i, take_upper(x));
      third.set(i, take_upper(x));
    }
    first.store(to);
    second.store(to + plane);
    third.store(to + 2 * plane);
  } else {
    Unit unit;
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      unit.set(i, k + i < a.k ? static_cast<const std::uint16_t*>(a.x.data)[from + i * a.x.column_stride] : 0u);
    unit.store(to);
  }
}

}  // namespace

void split_rows(const RowView& x, std::int64_t first_row, std::int64_t k, const SplitRows& out, cudaStream_t stream) {
  const std::int64_t count = out.rows * (out.row_length / kUnit);
  if (count == 0) return;
  launch("split_rows", split_rows_kernel, {dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads)},
         stream, Arguments{x, first_row, k, out});
}

}  // namespace qcore
