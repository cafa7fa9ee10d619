#include "formats/compute_mode.h"
#include "formats/element.h"
#include "formats/row_stride.h"
#include "gemm/cuda/quantize_activations.cuh"
#include "numerics/activation_block.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_convert.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

using numerics::BlockScale;

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr int kRun = 16;  // neighboring codes that are stored together

template <class Code>
struct Arguments {
  RowView x;
  std::int64_t first_row, k, block_size;
  int mode;
  QuantizedRows<Code> out;
};

// A block's largest 8-bit sum fits in int32 wherever its products do; 16-bit codes may exceed it.
template <class Code>
struct SumOf {
  using Type = std::int32_t;
};
template <>
struct SumOf<std::int16_t> {
  using Type = long long;
};

// Statistics from which a block's parameters are computed.
struct Extremes {
  std::uint32_t magnitude = 0;
  float lo = numerics::kFloatMax, hi = -numerics::kFloatMax;

  // Values first, first + step .. of a block of x that begins there.
  template <class Code>
  __device__ __forceinline__ void add(const Arguments<Code>& a, std::int64_t begin, std::int64_t length, int first,
                                      int step) {
    for (std::int64_t i = first; i < length; i += step) {
      const float value = load_float(a.x.data, a.x.dtype, begin + i * a.x.column_stride);
      const std::uint32_t bits = numerics::magnitude_bits(value);
      magnitude = bits > magnitude ? bits : magnitude;
      lo = value < lo ? value : lo;
      hi = value > hi ? value : hi;
    }
  }
  __device__ BlockScale scale(int mode) const { return numerics::activation_scale(mode, lo, hi, magnitude); }
};

// The block's parameters, the same in every lane.
template <class Code>
__device__ BlockScale block_scale(const Arguments<Code>& a, std::int64_t begin, std::int64_t length, int lane) {
  Extremes of;
  of.add(a, begin, length, lane, kWarpSize);
  of.magnitude = warp_max(of.magnitude);
  if (a.mode == numerics::kActivationInt8Asym) {
    of.lo = warp_min(of.lo);
    of.hi = warp_max(of.hi);
  }
  return of.scale(a.mode);
}

template <class Code>
__device__ std::int64_t code_at(const QuantizedRows<Code>& out, std::int64_t row, std::int64_t p, std::int64_t i) {
  if (out.tiled.shift) return out.tiled.code(row, p * out.padded_block + i);
  const bool nibbles = out.tiled.order == TiledRows::Order::nibbles;
  return (row * out.blocks + p) * out.padded_block + (nibbles ? TiledRows::nibble_order(static_cast<int>(i)) : i);
}

template <class Code, class Sum>
__device__ void store_terms(const QuantizedRows<Code>& out, std::int64_t row, std::int64_t p, const BlockScale& scale,
                            Sum sum) {
  const float scaled_sum = scale.scale * static_cast<float>(sum);
  if (out.tiled.shift) {
    float* parameters = out.tiled.parameters + out.tiled.parameter(row, p, out.blocks, 0);
    parameters[0] = scale.scale;
    if (out.tiled.arrays > 1) {
      parameters[out.tiled.rows()] = scaled_sum;
      parameters[2 * out.tiled.rows()] = scale.offset;
    }
    return;
  }
  const std::int64_t at = p * out.rows + row;
  if (out.terms) {
    out.terms[at] = {scale.scale, static_cast<std::int32_t>(-out.zero_code * sum), scaled_sum, scale.offset};
    return;
  }
  out.scales[at] = scale.scale;
  if (out.scaled_sums) out.scaled_sums[at] = scaled_sum;
  if (out.offsets) out.offsets[at] = scale.offset;
}

// Codes first .. first + kRun - 1 of a block.
__device__ __forceinline__ void store_run(const QuantizedRows<std::int8_t>& out, std::int64_t row, std::int64_t p,
                                          std::int64_t first, const std::uint32_t (&words)[kRun / 4]) {
  const std::int64_t at = code_at(out, row, p, first);
  if (out.tiled.order == TiledRows::Order::nibbles) {
    *reinterpret_cast<uint2*>(out.codes + at) = {words[0], words[2]};
    *reinterpret_cast<uint2*>(out.codes + code_at(out, row, p, first + 4)) = {words[1], words[3]};
  } else {
    *reinterpret_cast<uint4*>(out.codes + at) = {words[0], words[1], words[2], words[3]};
  }
}

// One warp per row and block. The second pass over the values finds them in the L1 cache.
template <class Code>
__global__ void __launch_bounds__(kThreads) quantize_activations_kernel(const Arguments<Code> a) {
  using Sum = typename SumOf<Code>::Type;
  const QuantizedRows<Code>& out = a.out;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t tasks = out.rows * out.blocks, stride = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; task < tasks; task += stride) {
    const std::int64_t row = task / out.blocks, p = task % out.blocks, first_k = p * a.block_size;
    const std::int64_t length = a.k - first_k < a.block_size ? a.k - first_k : a.block_size;
    const std::int64_t begin = a.x.row_offset(a.first_row + row) + first_k * a.x.column_stride;
    const BlockScale scale = block_scale(a, begin, length, lane);

    Sum sum = 0;
    for (std::int64_t i = lane; i < out.padded_block; i += kWarpSize) {
      int code = 0;
      if (i < length) {
        const float value = load_float(a.x.data, a.x.dtype, begin + i * a.x.column_stride);
        code = numerics::activation_code(value, scale, a.mode);
      }
      out.codes[code_at(out, row, p, i)] = static_cast<Code>(code);
      sum += code;
    }
    sum = warp_sum(sum);
    if (lane == 0) store_terms(out, row, p, scale, sum);
  }
}

// Aligned rows: a lane takes kRun neighboring values with loads of 16 bytes and keeps them, a few lanes share a block.
constexpr int kColumnThreads = 128;
constexpr std::int64_t kMaxThreadBlocks = 65535;  // of a grid's second axis
constexpr std::int64_t kLongestBlock = kRun * kWarpSize;

__device__ __forceinline__ void load_run(const RowView& x, std::int64_t at, float (&values)[kRun]) {
  if (x.dtype == DType::f32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(x.data) + at);
#pragma unroll
    for (int i = 0; i < kRun / 4; ++i) {
      const float4 four = from[i];
      values[4 * i] = four.x, values[4 * i + 1] = four.y, values[4 * i + 2] = four.z, values[4 * i + 3] = four.w;
    }
    return;
  }
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(x.data) + at);
  std::uint32_t words[kRun / 2];
#pragma unroll
  for (int i = 0; i < kRun / 8; ++i) {
    const uint4 four = from[i];
    words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
  }
  if (x.dtype == DType::f16) {
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      values[i] = numerics::half_to_float(static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2))));
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      values[i] = numerics::bfloat_to_float(static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2))));
  }
}

// Over the `lanes` lanes that share a block, a power of two.
template <class T, class Combine>
__device__ __forceinline__ T group_reduce(T value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

template <int kMode>
__device__ __forceinline__ BlockScale run_scale(const float (&values)[kRun], bool valid, int lanes) {
  std::uint32_t magnitude = 0;
  float lo = numerics::kFloatMax, hi = -numerics::kFloatMax;
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const std::uint32_t bits = numerics::magnitude_bits(values[i]);
    magnitude = bits > magnitude ? bits : magnitude;
  }
  magnitude = group_reduce(magnitude, lanes, [](std::uint32_t a, std::uint32_t b) { return a < b ? b : a; });
  if constexpr (kMode == numerics::kActivationInt8Asym) {
    if (valid) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        lo = values[i] < lo ? values[i] : lo;
        hi = values[i] > hi ? values[i] : hi;
      }
    }
    lo = group_reduce(lo, lanes, [](float a, float b) { return b < a ? b : a; });
    hi = group_reduce(hi, lanes, [](float a, float b) { return a < b ? b : a; });
  }
  return numerics::activation_scale(kMode, lo, hi, magnitude);
}

// A thread block takes 1 << row_shift threads' runs of a row, and as many rows as it has threads for.
template <int kMode>
__global__ void __launch_bounds__(kThreads)
    quantize_aligned_kernel(const Arguments<std::int8_t> a, int row_shift, int lanes_shift) {
  ptx::let_next_kernel_start();
  const QuantizedRows<std::int8_t>& out = a.out;
  const int thread = static_cast<int>(threadIdx.x), row_threads = 1 << row_shift, lanes = 1 << lanes_shift;
  const std::int64_t run = static_cast<std::int64_t>(blockIdx.x) * row_threads + (thread & (row_threads - 1));
  const std::int64_t p = run >> lanes_shift;
  const int first = kRun * static_cast<int>(run & (lanes - 1));  // in the block
  const std::int64_t k = p * a.block_size + first;
  const bool valid = p < out.blocks && k < a.k;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.y) * (kThreads >> row_shift);
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * (kThreads >> row_shift) + (thread >> row_shift);
       row < out.rows; row += stride) {
    float values[kRun] = {};
    if (valid) load_run(a.x, a.x.row_offset(a.first_row + row) + k, values);
    const BlockScale scale = run_scale<kMode>(values, valid, lanes);
    std::uint32_t words[kRun / 4] = {};
    std::int32_t sum = 0;
    if (valid && scale.inverse != 0.0f) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const int code = numerics::activation_code(values[i], scale, kMode);
        words[i / 4] |= (static_cast<std::uint32_t>(code) & 0xffu) << (8 * (i % 4));
      }
#pragma unroll
      for (const std::uint32_t word : words) sum = ptx::add_signed_bytes(word, sum);
    }
    sum = group_reduce(sum, lanes, [](std::int32_t x, std::int32_t y) { return x + y; });
    if (p >= out.blocks) continue;
    store_run(out, row, p, first, words);
    if (first == 0) store_terms(out, row, p, scale, sum);
  }
}

bool aligned_rows(const Arguments<std::int8_t>& a) {
  const std::int64_t length = a.out.padded_block, size = item_size(a.x.dtype);
  if (length < kRun || length > kLongestBlock || (length & (length - 1))) return false;
  if (a.out.blocks > 1 && length != a.block_size) return false;
  return a.k % kRun == 0 && columns_lie_together(a.x, 16 / static_cast<int>(size));
}

void launch_aligned(const Arguments<std::int8_t>& a, cudaStream_t stream) {
  int lanes_shift = 0, row_shift = 5;
  while (kRun << lanes_shift < a.out.padded_block) ++lanes_shift;
  const std::int64_t runs = a.out.blocks << lanes_shift;
  while (1 << row_shift < kThreads && 1 << row_shift < runs) ++row_shift;
  const std::int64_t thread_blocks = ceil_div(a.out.rows, kThreads >> row_shift);
  const auto kernel = a.mode == numerics::kActivationInt8Asym ? quantize_aligned_kernel<numerics::kActivationInt8Asym>
                                                              : quantize_aligned_kernel<numerics::kActivationInt8>;
  launch("quantize_aligned", kernel,
         {dim3(static_cast<unsigned>(ceil_div(runs, 1 << row_shift)),
               static_cast<unsigned>(thread_blocks < kMaxThreadBlocks ? thread_blocks : kMaxThreadBlocks)),
          dim3(kThreads)},
         stream, a, row_shift, lanes_shift);
}

// Columns that lie apart: one thread per row and block. Neighboring threads are neighboring rows, such as pixels, so
// that a warp reads a channel of 32 of them at once; the second pass finds the values in a cache.
__global__ void __launch_bounds__(kColumnThreads) quantize_columns_kernel(const Arguments<std::int8_t> a) {
  const QuantizedRows<std::int8_t>& out = a.out;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x, p = blockIdx.y;
  if (row >= out.rows) return;
  const std::int64_t first_k = p * a.block_size;
  const std::int64_t length = a.k - first_k < a.block_size ? a.k - first_k : a.block_size;
  const std::int64_t begin = a.x.row_offset(a.first_row + row) + first_k * a.x.column_stride;
  Extremes of;
  of.add(a, begin, length, 0, 1);
  const BlockScale scale = of.scale(a.mode);
  std::int32_t sum = 0;
  for (std::int64_t first = 0; first < out.padded_block; first += kRun) {
    std::uint32_t words[kRun / 4];
#pragma unroll
    for (int word = 0; word < kRun / 4; ++word) {
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
    store_run(out, row, p, first, words);
  }
  store_terms(out, row, p, scale, sum);
}

bool rows_lie_together(const Arguments<std::int8_t>& a) {
  return a.x.column_stride != 1 && a.out.blocks <= kMaxThreadBlocks && a.out.padded_block % kRun == 0 &&
         a.out.tiled.shift == 0;
}

void launch_columns(const Arguments<std::int8_t>& a, cudaStream_t stream) {
  launch("quantize_columns", quantize_columns_kernel,
         {dim3(static_cast<unsigned>(ceil_div(a.out.rows, kColumnThreads)), static_cast<unsigned>(a.out.blocks)),
          dim3(kColumnThreads)},
         stream, a);
}

}  // namespace

template <class Code>
void quantize_activations(const RowView& x, std::int64_t first_row, std::int64_t k, std::int64_t block_size,
                          ComputeMode compute, const QuantizedRows<Code>& out, cudaStream_t stream) {
  const std::int64_t thread_blocks = ceil_div(out.rows * out.blocks, kWarps);
  if (thread_blocks == 0) return;
  constexpr std::int64_t kMostBlocks = 1 << 20;
  const Arguments<Code> arguments{x, first_row, k, block_size, activation_mode(compute), out};
  if constexpr (sizeof(Code) == 1) {
    if (aligned_rows(arguments)) return launch_aligned(arguments, stream);
    if (rows_lie_together(arguments)) return launch_columns(arguments, stream);
  }
  launch("quantize_activations", quantize_activations_kernel<Code>,
         {dim3(static_cast<unsigned>(thread_blocks < kMostBlocks ? thread_blocks : kMostBlocks)), dim3(kThreads)},
         stream, arguments);
}

template void quantize_activations(const RowView&, std::int64_t, std::int64_t, std::int64_t, ComputeMode,
                                   const QuantizedRows<std::int8_t>&, cudaStream_t);
template void quantize_activations(const RowView&, std::int64_t, std::int64_t, std::int64_t, ComputeMode,
                                   const QuantizedRows<std::int16_t>&, cudaStream_t);

}  // namespace qcore
