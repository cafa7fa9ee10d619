#include "decoder/cuda/kernels.h"
#include "formats/element.h"
#include "numerics/attention.h"
#include "numerics/rms_norm.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_launch.h"
#include "runtime/cuda_warp.cuh"
#include "runtime/memory.h"
#include "runtime/ptx_launch.cuh"

// RMSNorm with the addition of the residual, gated activations and soft caps: rows of any strides and dtypes.
namespace qcore {
namespace {

using numerics::ScalarLanes;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr std::int64_t kMaxWarpRow = 512;      // elements that a warp norms by itself
constexpr std::int64_t kMaxSharedRow = 12288;  // elements that a thread block keeps in shared memory

__device__ __forceinline__ float load(const RowView& view, std::int64_t row, std::int64_t i) {
  return load_float(view.data, view.dtype, row + i * view.column_stride);
}
__device__ __forceinline__ void store(const RowView& view, std::int64_t row, std::int64_t i, float value) {
  store_float(const_cast<void*>(view.data), view.dtype, row + i * view.column_stride, value);
}

__device__ __forceinline__ float rounded(float value, DType dtype) {
  if (dtype == DType::f16) return numerics::half_to_float(numerics::float_to_half(value));
  if (dtype == DType::bf16) return numerics::bfloat_to_float(numerics::float_to_bfloat(value));
  return value;
}

struct NormArguments {
  RowView x, y, residual;
  const void* weight;  // null for none
  DType weight_dtype;
  std::int64_t weight_stride, rows, count;
  float eps, offset, multiplier;
  bool round_normalized, normalize;
};

struct NormRow {
  std::int64_t x, y, residual;  // offsets in elements
};

__device__ __forceinline__ NormRow norm_row(const NormArguments& a, std::int64_t row) {
  return {a.x.row_offset(row), a.y.data ? a.y.row_offset(row) : 0, a.residual.data ? a.residual.row_offset(row) : 0};
}

// Returns element i after the multiplication and the addition, and writes it to the residual.
__device__ __forceinline__ float added(const NormArguments& a, const NormRow& at, std::int64_t i) {
  float value = load(a.x, at.x, i);
  if (a.multiplier != 1.0f) value *= a.multiplier;
  if (a.residual.data) {
    value = rounded(value + load(a.residual, at.residual, i), a.residual.dtype);
    store(a.residual, at.residual, i, value);
  }
  return value;
}

// Returns what added() returned for an element.
__device__ __forceinline__ float again(const NormArguments& a, const NormRow& at, std::int64_t i) {
  if (a.residual.data) return load(a.residual, at.residual, i);
  const float value = load(a.x, at.x, i);
  return a.multiplier != 1.0f ? value * a.multiplier : value;
}

__device__ __forceinline__ void finish(const NormArguments& a, const NormRow& at, std::int64_t i, float value,
                                       float factor) {
  if (a.normalize) {
    value *= factor;
    if (a.round_normalized) value = rounded(value, a.y.dtype);
    if (a.weight) {
      float weight = load_float(a.weight, a.weight_dtype, i * a.weight_stride);
      if (a.offset != 0.0f) weight += a.offset;
      value *= weight;
    }
  }
  store(a.y, at.y, i, value);
}

static_assert(numerics::kNormSums == kWarpSize);

// A warp for each row. A lane reads and writes the elements of its partial sum.
__global__ void __launch_bounds__(kThreads) norm_warps_kernel(const __grid_constant__ NormArguments a) {
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_start();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const NormRow at = norm_row(a, row);
  float values[kMaxWarpRow / kWarpSize], sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kMaxWarpRow / kWarpSize; ++j) {
    const std::int64_t i = lane + j * kWarpSize;
    values[j] = i < a.count ? added(a, at, i) : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kMaxWarpRow / kWarpSize; ++j)
    if (lane + j * kWarpSize < a.count) sum = numerics::fma_once(values[j], values[j], sum);
  const float factor = numerics::norm_factor(warp_sum(sum), a.count, a.eps);
  if (!a.y.data) return;
#pragma unroll
  for (int j = 0; j < kMaxWarpRow / kWarpSize; ++j)
    if (lane + j * kWarpSize < a.count) finish(a, at, lane + j * kWarpSize, values[j], factor);
}

// A thread block for each row, which waits in shared memory if `kShared`. The first warp adds the squares.
template <bool kShared>
__global__ void __launch_bounds__(kThreads) norm_blocks_kernel(const __grid_constant__ NormArguments a) {
  // Elements in flight; more of them don't fit into registers where x is read again.
  constexpr int kTogether = kShared ? 8 : 4, kSquares = kShared ? 16 : 4;
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_start();
  float* mail = reinterpret_cast<float*>(dynamic_shared());
  float* values = mail + 4;
  const NormRow at = norm_row(a, blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll kTogether
  for (std::int64_t i = thread; i < a.count; i += kThreads) {
    const float value = added(a, at, i);
    if constexpr (kShared) values[i] = value;
  }
  __syncthreads();
  float factor = 0.0f;
  if (a.normalize) {
    if (thread < kWarpSize) {
      float sum = 0.0f;
#pragma unroll kSquares
      for (std::int64_t i = thread; i < a.count; i += kWarpSize) {
        const float value = kShared ? values[i] : again(a, at, i);
        sum = numerics::fma_once(value, value, sum);
      }
      sum = warp_sum(sum);
      if (thread == 0) mail[0] = numerics::norm_factor(sum, a.count, a.eps);
    }
    __syncthreads();
    factor = mail[0];
  }
  if (!a.y.data) return;
#pragma unroll kTogether
  for (std::int64_t i = thread; i < a.count; i += kThreads)
    finish(a, at, i, kShared ? values[i] : again(a, at, i), factor);
}

struct GateArguments {
  RowView x, y;
  std::int64_t rows, count;
};

template <int kActivation>
__global__ void __launch_bounds__(kThreads) gate_kernel(const __grid_constant__ GateArguments a) {
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_start();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const std::int64_t x = a.x.row_offset(row), y = a.y.row_offset(row);
    for (std::int64_t i = first; i < a.count; i += static_cast<std::int64_t>(gridDim.x) * kThreads)
      store(a.y, y, i, numerics::gate<ScalarLanes, kActivation>(load(a.x, x, i)) * load(a.x, x, a.count + i));
  }
}

struct CapArguments {
  RowView x, y;
  std::int64_t rows, count;
  float multiplier, soft_cap;
};

__global__ void __launch_bounds__(kThreads) cap_kernel(const __grid_constant__ CapArguments a) {
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_start();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const std::int64_t x = a.x.row_offset(row), y = a.y.row_offset(row);
    for (std::int64_t i = first; i < a.count; i += static_cast<std::int64_t>(gridDim.x) * kThreads)
      store(a.y, y, i, numerics::attention_score<ScalarLanes>(load(a.x, x, i), a.multiplier, a.soft_cap));
  }
}

constexpr std::int64_t kMaxGridY = 65535, kMaxGridX = 0x7fffffff;

LaunchShape shape_of(std::int64_t x, std::int64_t y, int device) {
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(x < kMaxGridX ? x : kMaxGridX), static_cast<unsigned>(y < kMaxGridY ? y : kMaxGridY));
  shape.block = dim3(kThreads);
  shape.overlap = compute_capability(device) >= 90;
  return shape;
}

}  // namespace

void run_norm_cuda(const NormProblem& p) {
  if (p.rows == 0 || p.count == 0) return;
  NormArguments a{};
  a.x = p.x;
  a.y = p.y;
  a.residual = p.residual;
  a.weight = p.weight.rank ? p.weight.data : nullptr;
  a.weight_dtype = p.weight.dtype;
  a.weight_stride = p.weight.rank ? p.weight.strides[0] : 0;
  a.rows = p.rows;
  a.count = p.count;
  a.eps = p.eps;
  a.offset = p.offset;
  a.multiplier = p.multiplier;
  a.round_normalized = p.round_normalized;
  a.normalize = p.normalize;
  DeviceGuard guard(p.device.index);
  const auto stream = static_cast<cudaStream_t>(p.stream);
  const bool by_warps = p.count <= kMaxWarpRow;
  LaunchShape shape = shape_of(by_warps ? ceil_div(p.rows, kWarps) : p.rows, 1, p.device.index);
  if (by_warps) return launch("decoder_norm", norm_warps_kernel, shape, stream, a);
  const bool shared = p.count <= kMaxSharedRow - 4;
  shape.shared_bytes = static_cast<std::size_t>((shared ? p.count + 4 : 4) * sizeof(float));
  launch("decoder_norm", shared ? norm_blocks_kernel<true> : norm_blocks_kernel<false>, shape, stream, a);
}

void run_gate_cuda(const GateProblem& p) {
  constexpr void (*kKernels[])(GateArguments) = {gate_kernel<numerics::kGateSilu>, gate_kernel<numerics::kGateGelu>,
                                                 gate_kernel<numerics::kGateGeluTanh>,
                                                 gate_kernel<numerics::kGateRelu>};
  if (p.rows == 0 || p.count == 0) return;
  DeviceGuard guard(p.device.index);
  launch("decoder_gate", kKernels[static_cast<int>(p.activation)],
         shape_of(ceil_div(p.count, kThreads), p.rows, p.device.index), static_cast<cudaStream_t>(p.stream),
         GateArguments{p.x, p.y, p.rows, p.count});
}

void run_cap_cuda(const CapProblem& p) {
  if (p.rows == 0 || p.count == 0) return;
  DeviceGuard guard(p.device.index);
  launch("decoder_cap", cap_kernel, shape_of(ceil_div(p.count, kThreads), p.rows, p.device.index),
         static_cast<cudaStream_t>(p.stream), CapArguments{p.x, p.y, p.rows, p.count, p.multiplier, p.soft_cap});
}

}  // namespace qcore
