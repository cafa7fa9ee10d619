#include "formats/compute_mode.h"
#include "formats/element.h"
#include "formats/row_stride.h"
#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/quantized_block.cuh"
#include "numerics/activation_block.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_convert.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

using namespace quantization;

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;

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

// Kernels know the mode, unless x holds codes or has a given scale, which take no range.
template <int kMode>
__device__ __forceinline__ BlockTerms terms_of(const Arguments<std::int8_t>& a, std::int64_t row, std::int64_t p,
                                               const Extremes& of) {
  if (a.mode == kMode) return BlockTerms(of.scale(kMode));
  Extremes magnitude;
  magnitude.magnitude = of.magnitude;
  return BlockTerms(a, row, p, magnitude);
}

// Rows of 16-bit values whose blocks are whole, each of a power of two of runs. A thread takes kDenseRuns
// runs of a block, which have those of the block's other lanes between them, and no more: what only some calls need,
// and a loop, would double its instructions and registers.
constexpr int kDenseRuns = 2;

template <int kMode>
class DenseRows {
 public:
  __device__ __forceinline__ DenseRows(const Arguments<std::int8_t>& a, int row_shift, int lanes_shift)
      : a_(a), lanes_(1 << lanes_shift) {
    const int thread = static_cast<int>(threadIdx.x), row_threads = 1 << row_shift;
    const int lane = static_cast<int>(blockIdx.x) * row_threads + (thread & (row_threads - 1));
    p_ = lane >> lanes_shift;
    lane_ = lane & (lanes_ - 1);
    row_ = static_cast<int>(blockIdx.y) * (kThreads >> row_shift) + (thread >> row_shift);
    exists_ = p_ < static_cast<int>(a.out.blocks) && row_ < static_cast<int>(a.out.rows);
  }

  __device__ __forceinline__ void run() const {
    const int k = p_ * static_cast<int>(a_.out.padded_block) + kRun * lane_;
    const auto* from = static_cast<const std::uint16_t*>(a_.x.data) + ((a_.first_row + row_) * a_.x.strides[0] + k);
    uint4 units[2 * kDenseRuns] = {};
    if (exists_) {
#pragma unroll
      for (int i = 0; i < 2 * kDenseRuns; ++i)
        units[i] = reinterpret_cast<const uint4*>(from + i / 2 * kRun * lanes_)[i % 2];
    }
    a_.x.dtype == DType::f16 ? encode<DType::f16>(units) : encode<DType::bf16>(units);
  }

 private:
  template <DType dtype>
  __device__ __forceinline__ void encode(const uint4 (&units)[2 * kDenseRuns]) const {
    const QuantizedRows<std::int8_t>& out = a_.out;
    std::uint32_t words[4 * 2 * kDenseRuns];
#pragma unroll
    for (int i = 0; i < 2 * kDenseRuns; ++i)
      words[4 * i] = units[i].x, words[4 * i + 1] = units[i].y, words[4 * i + 2] = units[i].z,
                words[4 * i + 3] = units[i].w;
    Extremes of;
    of.magnitude = largest_magnitude<dtype>(words);
    if constexpr (kMode == numerics::kActivationInt8Asym) {
#pragma unroll
      for (int i = 0; i < kDenseRuns; ++i) {
        float values[kRun];
        StoredRun<dtype>{units[2 * i], units[2 * i + 1]}.widen(values);
        add_run<kMode>(of, values, 0);
      }
    }
    reduce<kMode>(of, lanes_);
    const BlockTerms terms(of.scale(kMode));
    ptx::wait_for_earlier_kernels();  // see QuantizedRows::overlap
    std::int32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kDenseRuns; ++i) {
      float values[kRun];
      std::uint32_t codes[kRun / 4] = {};
      StoredRun<dtype>{units[2 * i], units[2 * i + 1]}.widen(values);
      if (terms.block.inverse != 0.0f) sum += encode_run<kMode>(values, terms.block, codes);
      if (exists_) store_run(out, inner_code_at(out, row_, p_, kRun * (lane_ + i * lanes_)), codes);
    }
    if (needs_sums(out)) sum = group_reduce(sum, lanes_, [](std::int32_t x, std::int32_t y) { return x + y; });
    if (exists_ && lane_ == 0) store_inner_terms(out, row_, p_, terms, sum);
  }

  const Arguments<std::int8_t>& a_;
  int lanes_, lane_, p_, row_;  // that share a block; which of them this is; the block and the row
  bool exists_;
};

template <int kMode>
__global__ void __launch_bounds__(kThreads, 6)
    quantize_dense_kernel(const __grid_constant__ Arguments<std::int8_t> a, int row_shift, int lanes_shift) {
  ptx::let_next_kernel_start();
  if (a.out.starts_early) ptx::wait_for_earlier_kernels();
  DenseRows<kMode>(a, row_shift, lanes_shift).run();
}

// Whether DenseRows takes a call. Its lanes have twice the values of others. That is slower where they are fewer than
// four warps for each multiprocessor (products behind it came up to 1.4 us later on an H100), but faster again where
// its thread blocks fit beside those of a product on multiprocessors that these leave free.
bool dense_rows(const Arguments<std::int8_t>& a) {
  constexpr std::int64_t kMostK = 1 << 28;  // an int counts them, and those of lanes behind them
  const std::int64_t block = a.out.padded_block;
  if (a.mode > numerics::kActivationInt8Asym || (a.x.dtype != DType::f16 && a.x.dtype != DType::bf16) ||
      a.x.leading > 1 || a.out.plain.codes.data || a.out.tiled.places || a.k % block || block < kRun * kDenseRuns ||
      (block & (block - 1)) != 0 || a.k > kMostK)
    return false;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "quantize_activations");
  const std::int64_t lanes = a.out.rows * a.k / (kRun * kDenseRuns);
  constexpr std::int64_t kFreeThreadBlocks = 4;
  return lanes <= kFreeThreadBlocks * kThreads || lanes >= std::int64_t{4} * kWarpSize * multiprocessors(device);
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
  const int rows_at_once = static_cast<int>(blockDim.x) >> row_shift;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * rows_at_once + (thread >> row_shift);
       row - (thread >> row_shift) < out.rows; row += static_cast<std::int64_t>(gridDim.y) * rows_at_once) {
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

// Launches a kernel whose lanes take `run` values each; false if its grid would not have all rows.
bool launch_rows(const char* name, void (*kernel)(Arguments<std::int8_t>, int, int), bool loops, std::int64_t run,
                 int threads, const Arguments<std::int8_t>& a, cudaStream_t stream) {
  int lanes_shift = 0, row_shift = 0;
  while (run << lanes_shift < a.out.padded_block) ++lanes_shift;
  const std::int64_t lanes = a.out.blocks << lanes_shift;
  while (1 << row_shift < threads && 1 << row_shift < lanes) ++row_shift;
  const std::int64_t thread_blocks = ceil_div(a.out.rows, threads >> row_shift);
  if (thread_blocks > kMaxThreadBlocks && !loops) return false;
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(lanes, 1 << row_shift)),
                         static_cast<unsigned>(thread_blocks < kMaxThreadBlocks ? thread_blocks : kMaxThreadBlocks)),
                    dim3(static_cast<unsigned>(threads))};
  shape.overlap = a.out.overlap || a.out.starts_early;
  launch(name, kernel, shape, stream, a, row_shift, lanes_shift);
  return true;
}

void launch_aligned(const Arguments<std::int8_t>& a, cudaStream_t stream) {
  const bool clamped = clamps(a.mode);
  if (dense_rows(a) && launch_rows("quantize_dense",
                                   clamped ? quantize_dense_kernel<numerics::kActivationInt8Asym>
                                           : quantize_dense_kernel<numerics::kActivationInt8>,
                                   false, kRun * kDenseRuns, kThreads, a, stream))
    return;
  launch_rows("quantize_aligned",
              clamped ? quantize_aligned_kernel<numerics::kActivationInt8Asym>
                      : quantize_aligned_kernel<numerics::kActivationInt8>,
              true, kRun, a.out.small_thread_blocks ? kThreads / 2 : kThreads, a, stream);
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
  if (a.out.starts_early) ptx::wait_for_earlier_kernels();
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
  LaunchShape shape{dim3(static_cast<unsigned>(a.out.rows), static_cast<unsigned>(a.out.blocks / blocks)),
                    dim3(static_cast<unsigned>(threads < kLongThreads ? threads : kLongThreads)), shared_sums(a)};
  shape.overlap = a.out.starts_early;
  launch("quantize_long", kernel, shape, stream, a);
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
  add_values(of, a, begin, length, 0, 1);
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
