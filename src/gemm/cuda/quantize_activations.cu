#include "formats/compute_mode.h"
#include "formats/element.h"
#include "formats/row_stride.h"
#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/stored_run.cuh"
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

template <class Code>
struct Arguments {
  RowView x;
  ActivationScales scales;
  std::int64_t first_row, k, block_size;
  int mode;
  QuantizedRows<Code> out;

  __host__ __device__ bool per_row() const { return scales.source == ActivationScales::Source::per_row; }
};

// Rows whose leading axes don't merge into one, by divisions of 64 bits: out of line, because a copy of them at each
// use would be most of a kernel's instructions, which take time to fetch.
__device__ __attribute__((noinline)) std::int64_t uneven_row_offset(const RowView& view, std::int64_t row) {
  return view.row_offset(row);
}
__device__ __forceinline__ std::int64_t row_offset(const RowView& view, std::int64_t row) {
  if (view.leading > 1) return uneven_row_offset(view, row);
  return view.leading ? row * view.strides[0] : 0;
}

// A value of x, or a code that it holds.
__device__ __forceinline__ float load_value(const RowView& x, std::int64_t at) {
  return x.dtype == DType::i8 || x.dtype == DType::i16 ? static_cast<float>(load_code(x.data, x.dtype, at))
                                                       : load_float(x.data, x.dtype, at);
}

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

  __device__ __forceinline__ void add(float value) {
    const std::uint32_t bits = numerics::magnitude_bits(value);
    magnitude = bits > magnitude ? bits : magnitude;
    lo = value < lo ? value : lo;
    hi = value > hi ? value : hi;
  }
  // Values first, first + step .. of a block of x that begins there.
  template <class Code>
  __device__ __forceinline__ void add(const Arguments<Code>& a, std::int64_t begin, std::int64_t length, int first,
                                      int step) {
    for (std::int64_t i = first; i < length; i += step) add(load_value(a.x, begin + i * a.x.column_stride));
  }
  __device__ BlockScale scale(int mode) const { return numerics::activation_scale(mode, lo, hi, magnitude); }
};

// A block's scale, how its values become codes, and its offset, which codes that x holds have without being shifted.
struct BlockTerms {
  BlockScale block;
  float offset;

  __device__ __forceinline__ explicit BlockTerms(const BlockScale& of) : block(of), offset(of.offset) {}
  template <class Code>
  __device__ BlockTerms(const Arguments<Code>& a, std::int64_t row, std::int64_t p, const Extremes& of) {
    if (a.mode != numerics::kActivationCodes) {
      block = numerics::activation_scale(a.mode, of.lo, of.hi, of.magnitude, a.scales.fixed);
      offset = block.offset;
      return;
    }
    const auto parameter = [&](const RowView& from) {
      const std::int64_t column = p / a.scales.blocks_per_scale;
      return static_cast<const float*>(from.data)[row_offset(from, a.first_row + row) + column * from.column_stride];
    };
    block = {parameter(a.scales.scales), 1.0f, 0.0f};
    offset = a.scales.offsets.data ? parameter(a.scales.offsets) : 0.0f;
  }
};

// Extremes of values, the same in every lane.
template <class Code>
__device__ Extremes warp_extremes(const Arguments<Code>& a, std::int64_t begin, std::int64_t length, int lane) {
  Extremes of;
  if (a.mode == numerics::kActivationCodes) return of;
  of.add(a, begin, length, lane, kWarpSize);
  of.magnitude = warp_max(of.magnitude);
  if (a.mode == numerics::kActivationInt8Asym) {
    of.lo = warp_min(of.lo);
    of.hi = warp_max(of.hi);
  }
  return of;
}

// `row` is its place, here and below.
template <class Code>
__device__ std::int64_t code_at(const QuantizedRows<Code>& out, std::int64_t row, std::int64_t p, std::int64_t i) {
  if (out.plain.codes.data)
    return row_offset(out.plain.codes, row) + (p * out.padded_block + i) * out.plain.codes.column_stride;
  if (out.tiled.shift) return out.tiled.code(row, p * out.padded_block + i);
  const bool nibbles = out.tiled.order == TiledRows::Order::nibbles;
  return (row * out.blocks + p) * out.padded_block + (nibbles ? TiledRows::nibble_order(static_cast<int>(i)) : i);
}

template <class Code, class Sum>
__device__ void store_terms(const QuantizedRows<Code>& out, std::int64_t row, std::int64_t p, const BlockTerms& terms,
                            Sum sum) {
  const float scale = terms.block.scale;
  if (out.plain.codes.data) {
    const auto store = [&](const RowView& to, float value) {
      static_cast<float*>(const_cast<void*>(to.data))[row_offset(to, row) + p * to.column_stride] = value;
    };
    store(out.plain.scales, scale);
    if (out.plain.offsets.data) store(out.plain.offsets, terms.offset);
    return;
  }
  const float scaled_sum = scale * static_cast<float>(sum);
  if (out.tiled.shift) {
    float* parameters = out.tiled.parameters + out.tiled.parameter(row, p, out.blocks, 0);
    parameters[0] = scale;
    if (out.tiled.arrays > 1) {
      parameters[out.tiled.rows()] = scaled_sum;
      if (out.tiled.arrays > 2) parameters[2 * out.tiled.rows()] = terms.offset;
    }
    return;
  }
  const std::int64_t at = p * out.rows + row;
  if (out.terms) {
    out.terms[at] = {scale, static_cast<std::int32_t>(-out.zero_code * sum), scaled_sum, terms.offset};
    return;
  }
  out.scales[at] = scale;
  if (out.scaled_sums) out.scaled_sums[at] = scaled_sum;
  if (out.offsets) out.offsets[at] = terms.offset;
}

// Codes first .. first + kRun - 1 of a block.
__device__ __forceinline__ void store_run(const QuantizedRows<std::int8_t>& out, std::int64_t row, std::int64_t p,
                                          std::int64_t first, const std::uint32_t (&words)[kRun / 4]) {
  const std::int64_t at = code_at(out, row, p, first);
  if (out.tiled.order == TiledRows::Order::nibbles) {
    *reinterpret_cast<uint2*>(out.codes + at) = {words[0], words[2]};
    // nibble_order(first + 4), and units of 16 bytes are exclusive-or'ed where rows are tiled.
    *reinterpret_cast<uint2*>(out.codes + (at ^ 16)) = {words[1], words[3]};
  } else {
    *reinterpret_cast<uint4*>(out.codes + at) = {words[0], words[1], words[2], words[3]};
  }
}

// One warp per row and block, or per row if that has one scale. The second pass over the values finds them in the L1
// cache.
template <class Code>
__global__ void __launch_bounds__(kThreads, 2) quantize_activations_kernel(const __grid_constant__ Arguments<Code> a) {
  using Sum = typename SumOf<Code>::Type;
  const QuantizedRows<Code>& out = a.out;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t row_tasks = a.per_row() ? 1 : out.blocks, blocks = a.per_row() ? out.blocks : 1;
  const std::int64_t tasks = out.rows * row_tasks, stride = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; task < tasks; task += stride) {
    const std::int64_t row = task / row_tasks, first = task % row_tasks, first_k = first * a.block_size;
    const std::int64_t left = a.k - first_k, reach = blocks * a.block_size;
    const std::int64_t row_begin = row_offset(a.x, a.first_row + row) + first_k * a.x.column_stride;
    const BlockTerms terms(a, row, first, warp_extremes(a, row_begin, left < reach ? left : reach, lane));
    const std::int64_t place = out.tiled.place(row);
    for (std::int64_t p = first; p < first + blocks; ++p) {
      const std::int64_t p_left = a.k - p * a.block_size, length = p_left < a.block_size ? p_left : a.block_size;
      const std::int64_t begin = row_begin + (p - first) * a.block_size * a.x.column_stride;
      Sum sum = 0;
      for (std::int64_t i = lane; i < (out.plain.codes.data ? length : out.padded_block); i += kWarpSize) {
        int code = 0;
        if (i < length)
          code = numerics::activation_code(load_value(a.x, begin + i * a.x.column_stride), terms.block, a.mode);
        out.codes[code_at(out, place, p, i)] = static_cast<Code>(code);
        sum += code;
      }
      sum = warp_sum(sum);
      if (lane == 0) store_terms(out, place, p, terms, sum);
    }
  }
}

// Aligned rows: a thread takes runs of kRun neighboring values with loads of 16 bytes and keeps them.
constexpr int kColumnThreads = 128;
constexpr std::int64_t kMaxThreadBlocks = 65535;  // of a grid's second axis
constexpr std::int64_t kWarpValues = kRun * kWarpSize;
constexpr std::int64_t kMaxAlignedRow = std::int64_t{1} << 34;  // runs are counted by ints

// Adds a run whose largest magnitude is known. Only codes with offsets need the range.
template <int kMode>
__device__ __forceinline__ void add_run(Extremes& of, const float (&values)[kRun], std::uint32_t magnitude) {
  of.magnitude = magnitude > of.magnitude ? magnitude : of.magnitude;
  if constexpr (kMode == numerics::kActivationInt8Asym) {
#pragma unroll
    for (const float value : values) {
      of.lo = value < of.lo ? value : of.lo;
      of.hi = value > of.hi ? value : of.hi;
    }
  }
}

// Kernels know the mode, unless x holds codes or has a given scale, which take no range.
template <int kMode>
__device__ __forceinline__ BlockTerms terms_of(const Arguments<std::int8_t>& a, std::int64_t row, std::int64_t p,
                                               const Extremes& of) {
  if (a.mode == kMode) return BlockTerms(of.scale(kMode));
  Extremes magnitude;
  magnitude.magnitude = of.magnitude;
  return BlockTerms(a, row, p, magnitude);
}

// Returns the sum of the codes, four of which are in a word.
template <int kMode>
__device__ __forceinline__ std::int32_t encode_run(const float (&values)[kRun], const BlockScale& scale,
                                                   std::uint32_t (&words)[kRun / 4]) {
  std::int32_t sum = 0;
#pragma unroll
  for (int word = 0; word < kRun / 4; ++word) {
    std::uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = values[4 * word + i];
      if constexpr (kMode == numerics::kActivationInt8)
        codes[i] = numerics::encode_symmetric(value, scale);
      else
        codes[i] = static_cast<std::uint32_t>(numerics::activation_code(value, scale, kMode));
    }
    words[word] = ptx::lowest_bytes(codes[0], codes[1], codes[2], codes[3]);
    sum = ptx::add_signed_bytes(words[word], sum);
  }
  return sum;
}

// Over the `lanes` lanes that share a block, a power of two.
template <class T, class Combine>
__device__ __forceinline__ T group_reduce(T value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

template <int kMode>
__device__ __forceinline__ void reduce(Extremes& of, int lanes) {
  of.magnitude = group_reduce(of.magnitude, lanes, [](std::uint32_t a, std::uint32_t b) { return a < b ? b : a; });
  if constexpr (kMode == numerics::kActivationInt8Asym) {
    of.lo = group_reduce(of.lo, lanes, [](float a, float b) { return b < a ? b : a; });
    of.hi = group_reduce(of.hi, lanes, [](float a, float b) { return a < b ? b : a; });
  }
}

// Whether sums of codes are stored, other than those of values as they lie.
__host__ __device__ inline bool needs_sums(const QuantizedRows<std::int8_t>& out) {
  return out.tiled.shift ? out.tiled.arrays > 1 : out.terms || out.scaled_sums;
}

// Short blocks: a few lanes share one, a power of two of which the last ones may have nothing to do. A thread block
// takes 1 << row_shift threads' runs of a row, and as many rows as it has threads for: several in a warp if they are
// short.
template <int kMode>
__global__ void __launch_bounds__(kThreads, 4)
    quantize_aligned_kernel(const __grid_constant__ Arguments<std::int8_t> a, int row_shift, int lanes_shift) {
  ptx::let_next_kernel_start();
  if (a.out.starts_early) ptx::wait_for_earlier_kernels();
  const QuantizedRows<std::int8_t>& out = a.out;
  const int thread = static_cast<int>(threadIdx.x), row_threads = 1 << row_shift, lanes = 1 << lanes_shift;
  const int run = static_cast<int>(blockIdx.x) * row_threads + (thread & (row_threads - 1));
  const int p = run >> lanes_shift, first = kRun * (run & (lanes - 1));  // in the block
  const std::int64_t k = p * a.block_size + first;
  const bool exists = p < out.blocks && first < out.padded_block;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * (kThreads >> row_shift) + (thread >> row_shift);
       row - (thread >> row_shift) < out.rows; row += static_cast<std::int64_t>(gridDim.y) * (kThreads >> row_shift)) {
    // All lanes of a warp go on to the end, for they reduce together.
    const bool valid = exists && k < a.k && row < out.rows;
    const bool stored = out.plain.codes.data ? valid : exists && row < out.rows;
    float values[1][kRun];
    const std::uint32_t magnitude = load_runs(a.x, row_offset(a.x, a.first_row + row) + k, 0, valid ? 1 : 0, values);
    Extremes of;
    if (valid) add_run<kMode>(of, values[0], magnitude);
    reduce<kMode>(of, lanes);
    const BlockTerms terms = terms_of<kMode>(a, row < out.rows ? row : 0, p < out.blocks ? p : 0, of);
    ptx::wait_for_earlier_kernels();  // see QuantizedRows::overlap; behind the loop it would cost registers
    std::uint32_t words[kRun / 4] = {};
    std::int32_t sum = 0;
    if (valid && terms.block.inverse != 0.0f) sum = encode_run<kMode>(values[0], terms.block, words);
    if (needs_sums(out)) sum = group_reduce(sum, lanes, [](std::int32_t x, std::int32_t y) { return x + y; });
    if (!stored) continue;
    const std::int64_t place = out.tiled.place(row);
    if (first == 0) store_terms(out, place, p, terms, sum);  // first: their registers are free for the run's places
    store_run(out, place, p, first, words);
  }
}

// Codes of a given scale are clamped, as those with offsets.
bool clamps(int mode) { return mode == numerics::kActivationInt8Asym || mode == numerics::kActivationInt8Fixed; }

void launch_aligned(const Arguments<std::int8_t>& a, cudaStream_t stream) {
  int lanes_shift = 0, row_shift = 0;
  while (kRun << lanes_shift < a.out.padded_block) ++lanes_shift;
  const std::int64_t runs = a.out.blocks << lanes_shift;
  while (1 << row_shift < kThreads && 1 << row_shift < runs) ++row_shift;
  const std::int64_t thread_blocks = ceil_div(a.out.rows, kThreads >> row_shift);
  const auto kernel = clamps(a.mode) ? quantize_aligned_kernel<numerics::kActivationInt8Asym>
                                     : quantize_aligned_kernel<numerics::kActivationInt8>;
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(runs, 1 << row_shift)),
                         static_cast<unsigned>(thread_blocks < kMaxThreadBlocks ? thread_blocks : kMaxThreadBlocks)),
                    dim3(kThreads)};
  shape.overlap = a.out.overlap || a.out.starts_early;
  launch("quantize_aligned", kernel, shape, stream, a, row_shift, lanes_shift);
}

// Long blocks, and rows of blocks that share a scale: a thread block for each, whose threads keep kRuns runs. What is
// beyond, in the longest ones, is read twice. Sums of a row's blocks are made in shared memory.
constexpr int kLongThreads = 512, kLongWarps = kLongThreads / kWarpSize, kMostRuns = 4;

// Holds each warp's extremes and sum, for the reductions over a thread block.
struct WarpResults {
  Extremes extremes[kLongWarps];
  std::int32_t sums[kLongWarps];
};

template <int kMode>
__device__ __forceinline__ void thread_block_reduce(Extremes& of, WarpResults& results, int lane, int warp, int warps) {
  reduce<kMode>(of, kWarpSize);
  if (lane == 0) results.extremes[warp] = of;
  __syncthreads();
  const int other = lane % kLongWarps;
  of = results.extremes[other < warps ? other : 0];
  reduce<kMode>(of, kLongWarps);
}

template <int kMode, int kRuns>
class LongBlock {
 public:
  __device__ __forceinline__ explicit LongBlock(const Arguments<std::int8_t>& a)
      : a_(a), out_(a.out), thread_(static_cast<int>(threadIdx.x)), threads_(static_cast<int>(blockDim.x)) {
    const std::int64_t first_k = p() * a.block_size, left = a.k - first_k;
    const std::int64_t length = a.per_row() ? a.k : a.block_size;
    begin_ = row_offset(a.x, a.first_row + row()) + first_k;
    full_ = static_cast<int>((left < length ? left : length) / kRun);
    block_runs_ = static_cast<int>(out_.padded_block / kRun);
    runs_ = out_.plain.codes.data ? full_ : a.per_row() ? block_runs_ * static_cast<int>(out_.blocks) : block_runs_;
  }

  __device__ __forceinline__ void run() {
    auto& results = block_shared<WarpResults>();
    const int lane = thread_ % kWarpSize, warp = thread_ / kWarpSize, warps = threads_ / kWarpSize;
    const bool sums_of_blocks = a_.per_row() && needs_sum();
    if (sums_of_blocks)
      for (int p = thread_; p < static_cast<int>(out_.blocks); p += threads_) block_sums()[p] = 0;
    float values[kRuns][kRun];
    const int left = full_ - thread_;
    const std::uint32_t magnitude =
        load_runs(a_.x, begin_ + std::int64_t{kRun} * thread_, std::int64_t{kRun} * threads_,
                  left > 0 ? (left - 1) / threads_ + 1 : 0, values);
    Extremes of;
#pragma unroll
    for (int i = 0; i < kRuns; ++i)
      if (run_of(i) < full_) add_run<kMode>(of, values[i], magnitude);
    if constexpr (kRuns == kMostRuns) {
      for (int run = run_of(kRuns); run < full_; run += threads_) {
        float again[1][kRun];
        const std::uint32_t largest = load_runs(a_.x, begin_ + std::int64_t{kRun} * run, 0, 1, again);
        add_run<kMode>(of, again[0], largest);
      }
    }
    thread_block_reduce<kMode>(of, results, lane, warp, warps);
    const BlockTerms terms = terms_of<kMode>(a_, row(), p(), of);

    std::int32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i)
      if (run_of(i) < runs_) sum += store(run_of(i), values[i], terms.block);
    if constexpr (kRuns == kMostRuns) {
      for (int run = run_of(kRuns); run < runs_; run += threads_) {
        float again[1][kRun];
        load_runs(a_.x, begin_ + std::int64_t{kRun} * run, 0, run < full_ ? 1 : 0, again);
        sum += store(run, again[0], terms.block);
      }
    }
    if (a_.per_row()) {
      __syncthreads();
      for (int p = thread_; p < static_cast<int>(out_.blocks); p += threads_)
        store_terms(out_, place(), p, terms, sums_of_blocks ? block_sums()[p] : 0);
      return;
    }
    if (needs_sum()) {
      sum = warp_sum(sum);
      if (lane == 0) results.sums[warp] = sum;
      __syncthreads();
      if (warp > 0) return;
      sum = warp_sum(lane < warps ? results.sums[lane] : 0);
    }
    if (thread_ == 0) store_terms(out_, place(), p(), terms, sum);
  }

 private:
  // The grid's axes, not members: all of the 64 registers are in use.
  __device__ __forceinline__ static std::int64_t row() { return blockIdx.x; }
  __device__ __forceinline__ static std::int64_t p() { return blockIdx.y; }  // 0 if a row has one scale
  __device__ __forceinline__ std::int64_t place() const { return out_.tiled.place(row()); }
  __device__ __forceinline__ int run_of(int i) const { return thread_ + i * threads_; }
  __device__ __forceinline__ bool needs_sum() const { return needs_sums(out_); }
  __device__ __forceinline__ static std::int32_t* block_sums() {  // [P]
    return reinterpret_cast<std::int32_t*>(dynamic_shared());
  }
  __device__ __forceinline__ std::int32_t store(int run, const float (&values)[kRun], const BlockScale& scale) const {
    std::uint32_t words[kRun / 4] = {};
    std::int32_t sum = 0;
    if (run < full_ && scale.inverse != 0.0f) sum = encode_run<kMode>(values, scale, words);
    if (a_.per_row()) {
      const int p = run / block_runs_;
      store_run(out_, place(), p, std::int64_t{kRun} * (run - p * block_runs_), words);
      if (needs_sum()) atomicAdd(&block_sums()[p], sum);
    } else if (out_.plain.codes.data) {
      const std::int64_t begin = row_offset(out_.plain.codes, row()) + p() * a_.block_size;
      *reinterpret_cast<uint4*>(out_.codes + begin + std::int64_t{kRun} * run) = {words[0], words[1], words[2],
                                                                                  words[3]};
    } else {
      store_run(out_, place(), p(), std::int64_t{kRun} * run, words);
    }
    return sum;
  }

  const Arguments<std::int8_t>& a_;
  const QuantizedRows<std::int8_t>& out_;
  int thread_, threads_;
  std::int64_t begin_;            // of the block, in x
  int full_, runs_, block_runs_;  // of the values; of their codes, padded; of a block's codes
};

template <int kMode, int kRuns>
__global__ void __launch_bounds__(kLongThreads, kRuns == 1 ? 2 : 1)
    quantize_long_kernel(const __grid_constant__ Arguments<std::int8_t> a) {
  ptx::let_next_kernel_start();
  LongBlock<kMode, kRuns>(a).run();
}

std::size_t shared_sums(const Arguments<std::int8_t>& a) {
  return a.per_row() && needs_sums(a.out) ? static_cast<std::size_t>(a.out.blocks) * sizeof(std::int32_t) : 0;
}

template <int kMode>
void launch_long(const Arguments<std::int8_t>& a, cudaStream_t stream) {
  const std::int64_t blocks = a.per_row() ? a.out.blocks : 1, runs = blocks * a.out.padded_block / kRun;
  int each = 1;
  while (each < kMostRuns && ceil_div(runs, each) > kLongThreads) each *= 2;
  const std::int64_t threads = round_up(ceil_div(runs, each), kWarpSize);
  const auto kernel = each == 1   ? quantize_long_kernel<kMode, 1>
                      : each == 2 ? quantize_long_kernel<kMode, 2>
                                  : quantize_long_kernel<kMode, kMostRuns>;
  // 2^31 rows would be a terabyte of codes.
  launch("quantize_long", kernel,
         {dim3(static_cast<unsigned>(a.out.rows), static_cast<unsigned>(a.out.blocks / blocks)),
          dim3(static_cast<unsigned>(threads < kLongThreads ? threads : kLongThreads)), shared_sums(a)},
         stream, a);
}

bool aligned_rows(const Arguments<std::int8_t>& a) {
  const std::int64_t length = a.out.padded_block, size = item_size(a.x.dtype);
  if (length < kRun || length % kRun || (a.out.blocks > 1 && length != a.block_size)) return false;
  constexpr std::size_t kSharedSums = 32 << 10;  // together with WarpResults less than any device grants
  if (shared_sums(a) > kSharedSums || a.k > kMaxAlignedRow) return false;
  if (!a.per_row() && length > kWarpValues && a.out.blocks > kMaxThreadBlocks) return false;
  const RowView& plain = a.out.plain.codes;
  if (plain.data && !columns_lie_together(plain, 16)) return false;
  return a.k % kRun == 0 && columns_lie_together(a.x, 16 / static_cast<int>(size));
}

// Columns that lie apart: one thread per row and block. Neighboring threads are neighboring rows, such as pixels, so
// that a warp reads a channel of 32 of them at once; the second pass finds the values in a cache.
__global__ void __launch_bounds__(kColumnThreads)
    quantize_columns_kernel(const __grid_constant__ Arguments<std::int8_t> a) {
  const QuantizedRows<std::int8_t>& out = a.out;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x, p = blockIdx.y;
  if (row >= out.rows) return;
  const std::int64_t place = out.tiled.place(row);
  const std::int64_t first_k = p * a.block_size;
  const std::int64_t length = a.k - first_k < a.block_size ? a.k - first_k : a.block_size;
  const std::int64_t begin = row_offset(a.x, a.first_row + row) + first_k * a.x.column_stride;
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
    store_run(out, place, p, first, words);
  }
  store_terms(out, place, p, BlockTerms(scale), sum);
}

bool rows_lie_together(const Arguments<std::int8_t>& a) {
  return a.scales.source == ActivationScales::Source::per_block && !a.out.plain.codes.data && a.x.column_stride != 1 &&
         a.out.blocks <= kMaxThreadBlocks && a.out.padded_block % kRun == 0 && a.out.tiled.shift == 0;
}

void launch_columns(const Arguments<std::int8_t>& a, cudaStream_t stream) {
  launch("quantize_columns", quantize_columns_kernel,
         {dim3(static_cast<unsigned>(ceil_div(a.out.rows, kColumnThreads)), static_cast<unsigned>(a.out.blocks)),
          dim3(kColumnThreads)},
         stream, a);
}

}  // namespace

template <class Code>
void quantize_activations(const RowView& x, const ActivationScales& scales, std::int64_t first_row, std::int64_t k,
                          std::int64_t block_size, ComputeMode compute, const QuantizedRows<Code>& out,
                          cudaStream_t stream) {
  const std::int64_t thread_blocks = ceil_div(out.rows * out.blocks, kWarps);
  if (thread_blocks == 0) return;
  constexpr std::int64_t kMostBlocks = 1 << 20;
  const int mode = scales.given() ? numerics::kActivationCodes
                                  : activation_mode(compute, scales.source == ActivationScales::Source::fixed);
  const Arguments<Code> arguments{x, scales, first_row, k, block_size, mode, out};
  if constexpr (sizeof(Code) == 1) {
    if (aligned_rows(arguments)) {
      if (!arguments.per_row() && out.padded_block <= kWarpValues) return launch_aligned(arguments, stream);
      return clamps(mode) ? launch_long<numerics::kActivationInt8Asym>(arguments, stream)
                          : launch_long<numerics::kActivationInt8>(arguments, stream);
    }
    if (rows_lie_together(arguments)) return launch_columns(arguments, stream);
  }
  launch("quantize_activations", quantize_activations_kernel<Code>,
         {dim3(static_cast<unsigned>(thread_blocks < kMostBlocks ? thread_blocks : kMostBlocks)), dim3(kThreads)},
         stream, arguments);
}

template void quantize_activations(const RowView&, const ActivationScales&, std::int64_t, std::int64_t, std::int64_t,
                                   ComputeMode, const QuantizedRows<std::int8_t>&, cudaStream_t);
template void quantize_activations(const RowView&, const ActivationScales&, std::int64_t, std::int64_t, std::int64_t,
                                   ComputeMode, const QuantizedRows<std::int16_t>&, cudaStream_t);

}  // namespace qcore
