#include <algorithm>

#include "decoder/cuda/elements.cuh"
#include "decoder/cuda/kernels.h"
#include "numerics/attention.h"
#include "numerics/rms_norm.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

// RMSNorm with the addition of the residual, gated activations and soft caps. The norm and the gate have two kernels
// each: one for aligned rows of one dtype, which a decoder has, and one for rows of any strides and dtypes.
namespace qcore {
namespace {

using numerics::ScalarLanes;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr std::int64_t kMaxWarpRow = 512;      // elements that a warp norms by itself
constexpr std::int64_t kMaxSharedRow = 12284;  // elements that a thread block keeps in shared memory
constexpr int kMailFloats = 4;                 // in front of them

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

static_assert(numerics::kNormSums == kWarpSize);

// The threads that share a row: a warp or all of a thread block. One warp adds up the squares, lane l those of the
// elements i with i mod 32 = l.
template <bool kWarpRows>
struct RowTeam {
  static constexpr int kSize = kWarpRows ? kWarpSize : kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kSize;
  const std::int64_t row =
      kWarpRows ? static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize : blockIdx.x;

  // Memory for `count` elements of the row.
  __device__ __forceinline__ float* values(std::int64_t count) const {
    float* shared = reinterpret_cast<float*>(dynamic_shared());
    return kWarpRows ? shared + static_cast<int>(threadIdx.x) / kWarpSize * static_cast<int>(count)
                     : shared + kMailFloats;
  }
  __device__ __forceinline__ void wait() const {
    if constexpr (kWarpRows)
      __syncwarp();
    else
      __syncthreads();
  }
  // Returns the factor of the row for all threads. get(i) is element i.
  template <int kUnroll, class Index, class Get>
  __device__ __forceinline__ float factor(Index count, float eps, const Get& get) const {
    float* mail = reinterpret_cast<float*>(dynamic_shared());
    float result = 0.0f;
    if (thread < kWarpSize) {
      float sum = 0.0f;
#pragma unroll kUnroll
      for (Index i = thread; i < count; i += kWarpSize) {
        const float value = get(i);
        sum = numerics::fma_once(value, value, sum);
      }
      result = numerics::norm_factor(warp_sum(sum), count, eps);
      if (!kWarpRows && thread == 0) mail[0] = result;
    }
    if constexpr (kWarpRows) return result;
    __syncthreads();
    return mail[0];
  }
};

// Rows of one dtype that lie in whole vectors; strides are in bytes.
struct VectorRows {
  char* data;  // null for none
  std::int64_t stride;
};

struct NormVectors {
  VectorRows x, y, residual;
  const char* weight;  // null for none
  std::int64_t rows;
  int count;
  float eps, offset, multiplier;
  bool wide_weight, round_normalized, normalize;  // wide_weight: it is fp32, otherwise it has the rows' dtype
};

constexpr int kVector = 8;

// A vector of the weight, which is widened only when it is used: until then its load is under way.
template <DType kDType>
class WeightVector {
 public:
  __device__ __forceinline__ void load(const NormVectors& a, int vector) {
    const auto* from = reinterpret_cast<const uint4*>(a.weight) + (a.wide_weight ? kWideVectors : kVectors) * vector;
#pragma unroll
    for (int i = 0; i < kWideVectors; ++i) {
      if (i >= kVectors && !a.wide_weight) break;
      const uint4 four = from[i];
      words_[4 * i] = four.x, words_[4 * i + 1] = four.y, words_[4 * i + 2] = four.z, words_[4 * i + 3] = four.w;
    }
  }
  __device__ __forceinline__ void widen(const NormVectors& a, float (&weight)[kVector]) const {
    if (a.wide_weight) {
      Elements<DType::f32, kVector> wide;
      wide.take(words_);
      wide.widen(weight);
    } else {
      Elements<kDType, kVector> narrow;
      narrow.take(words_);
      narrow.widen(weight);
    }
  }

 private:
  static constexpr int kVectors = Elements<kDType, kVector>::kWords / 4;
  static constexpr int kWideVectors = Elements<DType::f32, kVector>::kWords / 4;
  std::uint32_t words_[4 * kWideVectors];
};

template <DType kDType, bool kWarpRows>
__global__ void __launch_bounds__(kThreads) norm_vectors_kernel(const __grid_constant__ NormVectors a) {
  using Some = Elements<kDType, kVector>;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const RowTeam<kWarpRows> team;
  if (team.row >= a.rows) return;
  float* values = team.values(a.count);
  const int vectors = a.count / kVector;
  const bool has_weight = a.weight && a.normalize;
  WeightVector<kDType> next_weight;
  if (has_weight && team.thread < vectors) next_weight.load(a, team.thread);
#pragma unroll 1
  for (int v = team.thread; v < vectors; v += team.kSize) {
    Some x, residual;
    float row[kVector];
    char* residual_at = a.residual.data + team.row * a.residual.stride + v * Some::kBytes;
    x.load(a.x.data + team.row * a.x.stride + v * Some::kBytes);
    if (a.residual.data) residual.load(residual_at);
    x.widen(row);
#pragma unroll
    for (float& value : row) value *= a.multiplier;
    if (a.residual.data) {
      float old[kVector];
      residual.widen(old);
#pragma unroll
      for (int i = 0; i < kVector; ++i) row[i] += old[i];
      residual.narrow(row);
      residual.store(residual_at);
      residual.widen(row);
    }
    Elements<DType::f32, kVector> kept;
    kept.narrow(row);
    kept.store(reinterpret_cast<char*>(values + v * kVector));
  }
  team.wait();
  float factor = 1.0f;
  if (a.normalize) factor = team.template factor<16>(a.count, a.eps, [&](int i) { return values[i]; });
  if (!a.y.data) return;
#pragma unroll 1
  for (int v = team.thread; v < vectors; v += team.kSize) {
    Elements<DType::f32, kVector> kept;
    Some y;
    float row[kVector];
    kept.load(reinterpret_cast<const char*>(values + v * kVector));
    kept.widen(row);
#pragma unroll
    for (float& value : row) value *= factor;
    if (a.round_normalized) {
      y.narrow(row);
      y.widen(row);
    }
    if (has_weight) {
      float weight[kVector];
      next_weight.widen(a, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i) row[i] *= a.offset != 0.0f ? weight[i] + a.offset : weight[i];
      if (v + team.kSize < vectors) next_weight.load(a, v + team.kSize);
    }
    y.narrow(row);
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

constexpr std::int64_t kMaxGridY = 65535, kMaxGridX = 0x7fffffff;
constexpr int kPointThreads = 256;           // of kernels that treat each element by itself
constexpr std::int64_t kMaxPairs = 1 << 27;  // elements of a row of pairs: their bytes are counted by ints

LaunchShape shape_of(std::int64_t x, std::int64_t y, int threads, int device) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min(x, kMaxGridX)), static_cast<unsigned>(std::min(y, kMaxGridY)));
  shape.block = dim3(static_cast<unsigned>(threads));
  shape.overlap = compute_capability(device) >= 90;
  return shape;
}

// Whether the rows of a view lie evenly and in pieces of `bytes`; `rows` is then where.
bool in_pieces(const RowView& view, DType dtype, std::int64_t bytes, VectorRows& rows) {
  const std::int64_t stride = view.leading > 0 ? view.strides[0] * item_size(view.dtype) : 0;
  rows = {static_cast<char*>(const_cast<void*>(view.data)), stride};
  return !view.data || (view.dtype == dtype && view.leading <= 1 && view.column_stride == 1 && stride % bytes == 0 &&
                        reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) == 0);
}

bool in_vectors(const NormProblem& p, NormVectors& a) {
  constexpr std::int64_t kBytes = 16;
  a.weight = p.weight.rank ? static_cast<const char*>(p.weight.data) : nullptr;
  a.rows = p.rows;
  a.count = static_cast<int>(p.count);
  a.eps = p.eps;
  a.offset = p.offset;
  a.multiplier = p.multiplier;
  a.wide_weight = p.weight.dtype == DType::f32;
  a.round_normalized = p.round_normalized;
  a.normalize = p.normalize;
  const bool weight = !a.weight || ((a.wide_weight || p.weight.dtype == p.x.dtype) && p.weight.strides[0] == 1 &&
                                    reinterpret_cast<std::uintptr_t>(a.weight) % kBytes == 0);
  return weight && p.count % kVector == 0 && p.count <= kMaxSharedRow && in_pieces(p.x, p.x.dtype, kBytes, a.x) &&
         in_pieces(p.y, p.x.dtype, kBytes, a.y) && in_pieces(p.residual, p.x.dtype, kBytes, a.residual);
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
  LaunchShape shape = shape_of(by_warps ? ceil_div(p.rows, kWarps) : p.rows, 1, kThreads, p.device.index);
  const std::int64_t floats = by_warps ? kWarps * p.count : (kept ? p.count : 0) + kMailFloats;
  shape.shared_bytes = static_cast<std::size_t>(floats) * sizeof(float);

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
