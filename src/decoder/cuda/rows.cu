#include <algorithm>

#include "decoder/cuda/kernels.h"
#include "decoder/cuda/rows.cuh"
#include "numerics/attention.h"

// RMSNorm with the addition of the residual, gated activations and soft caps. The norm and the gate have two kernels
// each: one for aligned rows of one dtype, which a decoder has, and one for rows of any strides and dtypes.
namespace qcore {
namespace {

using numerics::ScalarLanes;

__device__ __forceinline__ float load(const RowView& view, std::int64_t row, std::int64_t i) {
  return load_float(view.data, view.dtype, row + i * view.column_stride);
}
__device__ __forceinline__ void store(const RowView& view, std::int64_t row, std::int64_t i, float value) {
  store_float(const_cast<void*>(view.data), view.dtype, row + i * view.column_stride, value);
}

// Returns what view.row_offset(row) returns, by a loop that is not unrolled: 64-bit divisions are long.
__device__ __forceinline__ std::int64_t offset_of(const RowView& view, std::int64_t row) {
  std::int64_t offset = 0;
#pragma unroll 1
  for (int axis = view.leading - 1; axis > 0; --axis) {
    const std::int64_t quotient = row / view.shape[axis];
    offset += (row - quotient * view.shape[axis]) * view.strides[axis];
    row = quotient;
  }
  return view.leading > 0 ? offset + row * view.strides[0] : offset;
}

template <DType kDType, bool kWarpRows>
__global__ void __launch_bounds__(kThreads, kNormThreadBlocks<kDType, kWarpRows>)
    norm_vectors_kernel(const __grid_constant__ NormVectors a) {
  using Some = Elements<kDType, kVector>;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const RowTeam<kWarpRows> team;
  if (team.row >= a.rows) return;
  NormRowVectors<kDType, kWarpRows> row(a, team);
  if (!a.y.data) return;
#pragma unroll 1
  for (int v = team.thread; v < row.vectors; v += team.kSize) {
    const Some y = row.normalized(v);
    y.store(a.y.data + team.row * a.y.stride + v * Some::kBytes);
  }
}

struct NormArguments {
  RowView x, y, residual;
  const void* weight;  // null for none
  DType weight_dtype;
  std::int64_t weight_stride, rows, count;
  float eps, offset, multiplier;
  bool round_normalized, normalize;
  bool kept;  // a row is kept in shared memory
};

struct NormRow {
  std::int64_t x, y, residual;  // offsets in elements
};

// Returns element i after the multiplication and the addition.
__device__ __forceinline__ float added(const NormArguments& a, const NormRow& at, std::int64_t i) {
  const float value = load(a.x, at.x, i) * a.multiplier;
  if (!a.residual.data) return value;
  return rounded(value + load(a.residual, at.residual, i), a.residual.dtype);
}

// Returns what added() returned for an element; since then it has been written to the residual.
__device__ __forceinline__ float again(const NormArguments& a, const NormRow& at, std::int64_t i) {
  return a.residual.data ? load(a.residual, at.residual, i) : load(a.x, at.x, i) * a.multiplier;
}

// The loops are not unrolled: they would be long with the choice between dtypes.
template <bool kWarpRows>
__global__ void __launch_bounds__(kThreads) norm_strided_kernel(const __grid_constant__ NormArguments a) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const RowTeam<kWarpRows> team;
  if (team.row >= a.rows) return;
  float* values = team.values(a.count);
  const NormRow at{offset_of(a.x, team.row), a.y.data ? offset_of(a.y, team.row) : 0,
                   a.residual.data ? offset_of(a.residual, team.row) : 0};
#pragma unroll 1
  for (std::int64_t i = team.thread; i < a.count; i += team.kSize) {
    const float value = added(a, at, i);
    if (a.residual.data) store(a.residual, at.residual, i, value);
    if (a.kept) values[i] = value;
  }
  team.wait();
  float factor = 1.0f;
  if (a.normalize) {
    factor = a.kept ? team.template factor<16>(static_cast<int>(a.count), a.eps, [&](int i) { return values[i]; })
                    : team.template factor<1>(a.count, a.eps, [&](std::int64_t i) { return again(a, at, i); });
  }
  if (!a.y.data) return;
#pragma unroll 1
  for (std::int64_t i = team.thread; i < a.count; i += team.kSize) {
    float value = a.kept ? values[i] : again(a, at, i);
    if (a.normalize) {
      value *= factor;
      if (a.round_normalized) value = rounded(value, a.y.dtype);
      if (a.weight) {
        const float weight = load_float(a.weight, a.weight_dtype, i * a.weight_stride);
        value *= a.offset != 0.0f ? weight + a.offset : weight;
      }
    }
    store(a.y, at.y, i, value);
  }
}

struct GatePairs {
  VectorRows x, y;
  std::int64_t rows;
  int count;  // elements of a row of y
};

// A thread has two neighboring elements: few instructions and many threads.
template <DType kDType, int kActivation>
__global__ void __launch_bounds__(kThreads) gate_pairs_kernel(const __grid_constant__ GatePairs a) {
  using Pair = Elements<kDType, 2>;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const int pair = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (pair >= a.count / 2) return;
#pragma unroll 1
  for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const char* from = a.x.data + row * a.x.stride + pair * Pair::kBytes;
    Pair gate, up, y;
    gate.load(from);
    up.load(from + a.count / 2 * Pair::kBytes);
    float gates[2], factors[2];
    gate.widen(gates);
    up.widen(factors);
#pragma unroll
    for (int i = 0; i < 2; ++i) gates[i] = numerics::gate<ScalarLanes, kActivation>(gates[i]) * factors[i];
    y.narrow(gates);
    y.store(a.y.data + row * a.y.stride + pair * Pair::kBytes);
  }
}

struct GateArguments {
  RowView x, y;
  std::int64_t rows, count;
};

template <int kActivation>
__global__ void __launch_bounds__(kThreads) gate_kernel(const __grid_constant__ GateArguments a) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const std::int64_t x = offset_of(a.x, row), y = offset_of(a.y, row);
#pragma unroll 1
    for (std::int64_t i = first; i < a.count; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
      store(a.y, y, i, numerics::gate<ScalarLanes, kActivation>(load(a.x, x, i)) * load(a.x, x, a.count + i));
  }
}

struct CapArguments {
  RowView x, y;
  std::int64_t rows, count;
  float multiplier, soft_cap;
};

__global__ void __launch_bounds__(kThreads) cap_kernel(const __grid_constant__ CapArguments a) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const std::int64_t x = offset_of(a.x, row), y = offset_of(a.y, row);
#pragma unroll 1
    for (std::int64_t i = first; i < a.count; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
      store(a.y, y, i, numerics::attention_score<ScalarLanes>(load(a.x, x, i), a.multiplier, a.soft_cap));
  }
}

template <DType kDType>
void launch_norm_vectors(const NormVectors& a, bool by_warps, const LaunchShape& shape, cudaStream_t stream) {
  launch("decoder_norm", by_warps ? norm_vectors_kernel<kDType, true> : norm_vectors_kernel<kDType, false>, shape,
         stream, a);
}

template <DType kDType>
void launch_gate_pairs(const GatePairs& a, GateActivation activation, const LaunchShape& shape, cudaStream_t stream) {
  constexpr void (*kKernels[])(GatePairs) = {
      gate_pairs_kernel<kDType, numerics::kGateSilu>, gate_pairs_kernel<kDType, numerics::kGateGelu>,
      gate_pairs_kernel<kDType, numerics::kGateGeluTanh>, gate_pairs_kernel<kDType, numerics::kGateRelu>};
  launch("decoder_gate", kKernels[static_cast<int>(activation)], shape, stream, a);
}

}  // namespace

void run_norm_cuda(const NormProblem& p) {
  if (p.rows == 0 || p.count == 0) return;
  DeviceGuard guard(p.device.index);
  const auto stream = static_cast<cudaStream_t>(p.stream);
  const bool by_warps = p.count <= kMaxWarpRow, kept = p.count <= kMaxSharedRow;
  const LaunchShape shape = norm_shape(p, by_warps, kept);

  NormVectors vectors{};
  if (in_vectors(p, vectors)) {
    if (p.x.dtype == DType::f16) return launch_norm_vectors<DType::f16>(vectors, by_warps, shape, stream);
    if (p.x.dtype == DType::bf16) return launch_norm_vectors<DType::bf16>(vectors, by_warps, shape, stream);
    return launch_norm_vectors<DType::f32>(vectors, by_warps, shape, stream);
  }
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
  a.kept = kept;
  launch("decoder_norm", by_warps ? norm_strided_kernel<true> : norm_strided_kernel<false>, shape, stream, a);
}

void run_gate_cuda(const GateProblem& p) {
  constexpr void (*kKernels[])(GateArguments) = {gate_kernel<numerics::kGateSilu>, gate_kernel<numerics::kGateGelu>,
                                                 gate_kernel<numerics::kGateGeluTanh>,
                                                 gate_kernel<numerics::kGateRelu>};
  if (p.rows == 0 || p.count == 0) return;
  DeviceGuard guard(p.device.index);
  const auto stream = static_cast<cudaStream_t>(p.stream);
  GatePairs pairs{};
  pairs.rows = p.rows;
  pairs.count = static_cast<int>(p.count);
  const std::int64_t bytes = 2 * item_size(p.x.dtype);
  if (p.count % 2 == 0 && p.count <= kMaxPairs && in_pieces(p.x, p.x.dtype, bytes, pairs.x) &&
      in_pieces(p.y, p.x.dtype, bytes, pairs.y)) {
    const LaunchShape shape = shape_of(ceil_div(p.count / 2, kPointThreads), p.rows, kPointThreads, p.device.index);
    if (p.x.dtype == DType::f16) return launch_gate_pairs<DType::f16>(pairs, p.activation, shape, stream);
    if (p.x.dtype == DType::bf16) return launch_gate_pairs<DType::bf16>(pairs, p.activation, shape, stream);
    return launch_gate_pairs<DType::f32>(pairs, p.activation, shape, stream);
  }
  launch("decoder_gate", kKernels[static_cast<int>(p.activation)],
         shape_of(ceil_div(p.count, kPointThreads), p.rows, kPointThreads, p.device.index), stream,
         GateArguments{p.x, p.y, p.rows, p.count});
}

void run_cap_cuda(const CapProblem& p) {
  if (p.rows == 0 || p.count == 0) return;
  DeviceGuard guard(p.device.index);
  launch("decoder_cap", cap_kernel, shape_of(ceil_div(p.count, kPointThreads), p.rows, kPointThreads, p.device.index),
         static_cast<cudaStream_t>(p.stream), CapArguments{p.x, p.y, p.rows, p.count, p.multiplier, p.soft_cap});
}

}  // namespace qcore
