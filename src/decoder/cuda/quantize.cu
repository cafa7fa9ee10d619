#include "decoder/cuda/kernels.h"
#include "decoder/cuda/rows.cuh"
#include "numerics/activation_block.h"
#include "numerics/attention.h"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_convert.cuh"

// The norm and the gate with codes as their results: aligned rows of one dtype, int8 in blocks that some lanes of a
// warp share, or one per row. Bits are those of the two operators.
namespace qcore {
namespace {

using numerics::BlockScale;
using numerics::ScalarLanes;

// Where codes and scales go.
struct CodeRows {
  VectorRows codes;
  float* scales;
  std::int64_t scale_stride, scale_step;  // from row to row and from block to block
  int lanes;                              // that share a block, a power of two; 0: all of a row is one
  float fixed;                            // scale; 0: each block's own
};

__device__ __forceinline__ std::uint32_t largest_of_lanes(std::uint32_t largest, int lanes) {
  for (int distance = 1; distance < lanes; distance *= 2) {
    const std::uint32_t other = __shfl_xor_sync(kAllLanes, largest, distance);
    largest = other > largest ? other : largest;
  }
  return largest;
}

__device__ __forceinline__ BlockScale scale_of(const CodeRows& out, std::uint32_t largest) {
  const int mode = out.fixed != 0.0f ? numerics::kActivationInt8Fixed : numerics::kActivationInt8;
  return numerics::activation_scale(mode, 0.0f, 0.0f, largest, out.fixed);
}

__device__ __forceinline__ void store_codes(const CodeRows& out, std::int64_t row, int v,
                                            const float (&values)[kVector], const BlockScale& scale) {
  std::uint32_t codes[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    codes[i] =
        out.fixed != 0.0f ? numerics::encode_clamped(values[i], scale) : numerics::encode_symmetric(values[i], scale);
  uint2 words{ptx::lowest_bytes(codes[0], codes[1], codes[2], codes[3]),
              ptx::lowest_bytes(codes[4], codes[5], codes[6], codes[7])};
  if (scale.inverse == 0.0f) words = {0, 0};
  *reinterpret_cast<uint2*>(out.codes.data + row * out.codes.stride + v * kVector) = words;
}

__device__ __forceinline__ void store_scale(const CodeRows& out, std::int64_t row, int p, const BlockScale& scale) {
  out.scales[row * out.scale_stride + p * out.scale_step] = scale.scale;
}

// Stores a vector whose block neighboring lanes of the warp share. Whole warps call it, whose last lanes may have none.
template <DType kDType>
__device__ __forceinline__ void store_block(const CodeRows& out, std::int64_t row, int v, bool exists,
                                            const Elements<kDType, kVector>& y) {
  const BlockScale scale = scale_of(out, largest_of_lanes(exists ? y.magnitude() : 0, out.lanes));
  if (!exists) return;
  float values[kVector];
  y.widen(values);
  store_codes(out, row, v, values, scale);
  if (v % out.lanes == 0) store_scale(out, row, v / out.lanes, scale);
}

// Combines what the threads of a row found. `mail` has one place for each warp of a thread block.
template <bool kWarpRows>
__device__ __forceinline__ std::uint32_t largest_of_row(std::uint32_t largest, std::uint32_t* mail) {
  largest = largest_of_lanes(largest, kWarpSize);
  if constexpr (kWarpRows) return largest;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if (lane == 0) mail[warp] = largest;
  __syncthreads();
  return largest_of_lanes(lane < kWarps ? mail[lane] : 0, kWarpSize);
}

struct WarpMail {
  std::uint32_t largest[kWarps];
};

template <DType kDType, bool kWarpRows>
__global__ void __launch_bounds__(kThreads, kNormThreadBlocks<kDType, kWarpRows>)
    norm_quantize_kernel(const __grid_constant__ NormVectors a, const __grid_constant__ CodeRows out) {
  using Some = Elements<kDType, kVector>;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const RowTeam<kWarpRows> team;
  if (team.row >= a.rows) return;
  NormRowVectors<kDType, kWarpRows> row(a, team);
  const int lane = team.thread % kWarpSize;
  std::uint32_t largest = 0;
#pragma unroll 1
  for (int v = team.thread; v - lane < row.vectors; v += team.kSize) {
    const bool exists = v < row.vectors;
    Some y{};
    if (exists) y = row.normalized(v);
    if (out.lanes) {
      store_block(out, team.row, v, exists, y);
    } else if (exists) {
      y.store(row.place(v));
      const std::uint32_t own = y.magnitude();
      largest = own > largest ? own : largest;
    }
  }
  if (out.lanes) return;
  const BlockScale scale = scale_of(out, largest_of_row<kWarpRows>(largest, block_shared<WarpMail>().largest));
#pragma unroll 1
  for (int v = team.thread; v < row.vectors; v += team.kSize) {
    Some y;
    float values[kVector];
    y.load(row.place(v));
    y.widen(values);
    store_codes(out, team.row, v, values, scale);
  }
  if (team.thread == 0) store_scale(out, team.row, 0, scale);
}

struct GateVectors {
  VectorRows x;
  std::int64_t rows;
  int count;  // elements of a row of the result
};

template <DType kDType, int kActivation>
__device__ __forceinline__ Elements<kDType, kVector> gated(const GateVectors& a, std::int64_t row, int v) {
  using Some = Elements<kDType, kVector>;
  const char* from = a.x.data + row * a.x.stride + v * Some::kBytes;
  Some gate, up;
  gate.load(from);
  up.load(from + a.count / kVector * Some::kBytes);
  float gates[kVector], factors[kVector];
  gate.widen(gates);
  up.widen(factors);
#pragma unroll
  for (int i = 0; i < kVector; ++i) gates[i] = numerics::gate<ScalarLanes, kActivation>(gates[i]) * factors[i];
  gate.narrow(gates);
  return gate;
}

// Blocks: each thread has a vector. One scale per row: a thread block has the row, which waits in shared memory.
template <DType kDType, int kActivation, bool kByRow>
__global__ void __launch_bounds__(kThreads)
    gate_quantize_kernel(const __grid_constant__ GateVectors a, const __grid_constant__ CodeRows out) {
  using Some = Elements<kDType, kVector>;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const int vectors = a.count / kVector, thread = static_cast<int>(threadIdx.x);
  if constexpr (!kByRow) {
    const int v = static_cast<int>(blockIdx.x * blockDim.x) + thread;
#pragma unroll 1
    for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
      Elements<kDType, kVector> y{};
      if (v < vectors) y = gated<kDType, kActivation>(a, row, v);
      store_block(out, row, v, v < vectors, y);
    }
  } else {
    const std::int64_t row = blockIdx.x;
    std::uint32_t largest = 0;
#pragma unroll 1
    for (int v = thread; v < vectors; v += kThreads) {
      const Some y = gated<kDType, kActivation>(a, row, v);
      const std::uint32_t own = y.magnitude();
      largest = own > largest ? own : largest;
      y.store(dynamic_shared() + v * Some::kBytes);
    }
    const BlockScale scale = scale_of(out, largest_of_row<false>(largest, block_shared<WarpMail>().largest));
#pragma unroll 1
    for (int v = thread; v < vectors; v += kThreads) {
      Some y;
      float values[kVector];
      y.load(dynamic_shared() + v * Some::kBytes);
      y.widen(values);
      store_codes(out, row, v, values, scale);
    }
    if (thread == 0) store_scale(out, row, 0, scale);
  }
}

// Returns whether the kernels take the codes of rows of `count` elements.
bool code_rows(const ActivationsProblem& codes, std::int64_t count, CodeRows& out) {
  if (codes.mode != ComputeMode::int8 || count % kVector || codes.scales.leading > 1) return false;
  const std::int64_t lanes = codes.block_size / kVector;
  const bool one_block = codes.block_size >= count;
  const bool blocks = codes.block_size % kVector == 0 && lanes <= kWarpSize && (lanes & (lanes - 1)) == 0 &&
                      count % codes.block_size == 0;
  if ((!one_block && !blocks) || !in_pieces(codes.codes, DType::i8, kVector, out.codes)) return false;
  out.scales = static_cast<float*>(const_cast<void*>(codes.scales.data));
  out.scale_stride = codes.scales.row_stride();
  out.scale_step = codes.scales.column_stride;
  out.lanes = one_block ? 0 : static_cast<int>(lanes);
  out.fixed = codes.fixed_scale;
  return true;
}

template <DType kDType>
void launch_norm(const NormVectors& a, const CodeRows& out, bool by_warps, const LaunchShape& shape,
                 cudaStream_t stream) {
  launch("decoder_norm_quantize", by_warps ? norm_quantize_kernel<kDType, true> : norm_quantize_kernel<kDType, false>,
         shape, stream, a, out);
}

template <DType kDType, bool kByRow>
void launch_gate(const GateVectors& a, const CodeRows& out, GateActivation activation, const LaunchShape& shape,
                 cudaStream_t stream) {
  constexpr void (*kKernels[])(GateVectors, CodeRows) = {gate_quantize_kernel<kDType, numerics::kGateSilu, kByRow>,
                                                         gate_quantize_kernel<kDType, numerics::kGateGelu, kByRow>,
                                                         gate_quantize_kernel<kDType, numerics::kGateGeluTanh, kByRow>,
                                                         gate_quantize_kernel<kDType, numerics::kGateRelu, kByRow>};
  launch("decoder_gate_quantize", kKernels[static_cast<int>(activation)], shape, stream, a, out);
}

// Whether one thread block for each long row takes longer than two kernels, of which the first spreads a row over many
// thread blocks. With 14336 elements it does at 0.97 rows per multiprocessor, and does not at 1.94.
bool too_few_rows(std::int64_t rows, std::int64_t vectors, int device) {
  return vectors > kThreads && 2 * rows < 3 * std::int64_t{multiprocessors(device)};
}

}  // namespace

bool run_quantizing_cuda(const NormProblem& p, const ActivationsProblem& codes) {
  NormVectors vectors{};
  CodeRows out{};
  // A row in shared memory leaves room for WarpMail.
  if (p.count > kMaxSharedRow - kWarps || !in_vectors(p, vectors) || !code_rows(codes, p.count, out)) return false;
  DeviceGuard guard(p.device.index);
  const bool by_warps = p.count <= kMaxWarpRow;
  const LaunchShape shape = norm_shape(p, by_warps, true);
  const auto stream = static_cast<cudaStream_t>(p.stream);
  if (p.x.dtype == DType::f16)
    launch_norm<DType::f16>(vectors, out, by_warps, shape, stream);
  else if (p.x.dtype == DType::bf16)
    launch_norm<DType::bf16>(vectors, out, by_warps, shape, stream);
  else
    launch_norm<DType::f32>(vectors, out, by_warps, shape, stream);
  return true;
}

bool run_quantizing_cuda(const GateProblem& p, const ActivationsProblem& codes) {
  GateVectors a{};
  CodeRows out{};
  a.rows = p.rows;
  a.count = static_cast<int>(p.count);
  constexpr std::int64_t kSharedRowBytes = 40 << 10;
  const std::int64_t row_bytes = p.count * item_size(p.x.dtype);
  if (p.count > kMaxPairs || !in_pieces(p.x, p.x.dtype, 16, a.x) || row_bytes % 16 || !code_rows(codes, p.count, out))
    return false;
  const bool by_row = out.lanes == 0;
  const std::int64_t vectors = p.count / kVector;
  if (by_row && (row_bytes > kSharedRowBytes || too_few_rows(p.rows, vectors, p.device.index))) return false;
  DeviceGuard guard(p.device.index);
  LaunchShape shape = by_row ? shape_of(p.rows, 1, kThreads, p.device.index)
                             : shape_of(ceil_div(vectors, kPointThreads), p.rows, kPointThreads, p.device.index);
  if (by_row) shape.shared_bytes = static_cast<std::size_t>(row_bytes);
  const auto run = [&](auto row_kernel, auto block_kernel) {
    (by_row ? row_kernel : block_kernel)(a, out, p.activation, shape, static_cast<cudaStream_t>(p.stream));
  };
  if (p.x.dtype == DType::f16)
    run(launch_gate<DType::f16, true>, launch_gate<DType::f16, false>);
  else if (p.x.dtype == DType::bf16)
    run(launch_gate<DType::bf16, true>, launch_gate<DType::bf16, false>);
  else
    run(launch_gate<DType::f32, true>, launch_gate<DType::f32, false>);
  return true;
}

}  // namespace qcore
