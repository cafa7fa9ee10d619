#include <algorithm>
#include <type_traits>

#include "gemm/cuda/sm80_float_mma/decode.cuh"
#include "linear/cuda/sm80_float_mma/few_rows.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

namespace qcore::sm80_float_mma {
namespace {

using gemv::kChunk;
using gemv::kColumns;

// Every warp multiplies neighboring chunks of k, whose weights were on their way before the kernel in front of this one
// has ended. Sums of blocks are scaled in registers; those of all warps are added once, in the order of the warps.
//
// kSumChunks: chunks whose products are summed before they are scaled, of one block.
template <ptx::Half kHalf, int kBits, int kSumChunks>
class FewRowsProduct {
 public:
  __device__ __forceinline__ explicit FewRowsProduct(const FewRows& arguments)
      : a_(arguments), memory_(dynamic_shared()), weights_(memory_, a_.weights) {}

  __device__ __forceinline__ void run() {
    weights_.start(a_.w, reinterpret_cast<const uint4*>(a_.w.words), a_.w.scales);
    ptx::let_next_kernel_start();
    weights_.fetch(0, lane_);
    ptx::wait_for_earlier_kernels();
    copy_rows();
    ptx::copy_wait<0>();
    __syncthreads();
    const int rounds = a_.weights.rounds;
#pragma unroll 1
    for (int group = 0;; ++group) {
      weights_.wait_for_scales(group);
#pragma unroll 1
      for (int round = 0;; ++round) {
        multiply(group, (round * FewRows::kWarps + lane_.warp) * kChunks);
        if (round + 1 == rounds) break;
        if (weights_.turns()) {
          __syncthreads();
          weights_.refill(group * rounds + round);
        }
        weights_.fetch(group * rounds + round + 1, lane_);
      }
      leave_totals(group);
      __syncthreads();
      const bool last = group + 1 == weights_.groups();
      if (!last) weights_.refill((group + 1) * rounds - 1);
      store(group);
      if (last) break;
      weights_.ask_for_scales(group + 2);
      weights_.fetch((group + 1) * rounds, lane_);
      if (a_.totals_stride == 0) __syncthreads();  // the totals may be overwritten
    }
  }

 private:
  using Weights = gemv::StagedWeights<kBits, kBits == 8 ? 1 : 2>;
  using Decode = Decoder<kHalf, kBits>;
  static constexpr int kChunks = Weights::kChunks, kLoads = Weights::kLoads;
  static_assert(kChunks % kSumChunks == 0, "a round has whole sums");

  // Zeros behind a row's end, up to the last chunk.
  __device__ __forceinline__ void copy_rows() const {
    constexpr int kThreads = FewRows::kWarps * kWarpSize;
    const int units = a_.chunks * (kChunk / FewRows::kUnit), existing = a_.k / FewRows::kUnit;
    const auto* x = static_cast<const std::uint16_t*>(a_.x);
#pragma unroll 1
    for (int row = 0; row < a_.rows; ++row) {
      const std::uint16_t* from = x + a_.row_at[row];
      char* to = memory_ + row * a_.x_stride;
#pragma unroll 1
      for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kThreads)
        ptx::copy_async(to + unit * 16, unit < existing ? from + unit * FewRows::kUnit : from, unit < existing);
    }
    ptx::copy_commit();
  }

  // Products of the round's chunks from `chunk` on: [half][i] is row 2*quad + i%2, column 4*group + 2*half + i/2.
  __device__ __forceinline__ void multiply(int group, int chunk) {
    // Rows that do not exist repeat the last one.
    const int row = lane_.group < a_.rows ? lane_.group : a_.rows - 1;
    const char* x = memory_ + row * a_.x_stride + (chunk * kChunk + (kBits == 8 ? 4 : 8) * lane_.quad) * 2;
    const auto* scales = reinterpret_cast<const float4*>(weights_.scales(group, lane_.group / 4)) + lane_.group % 4;
    const int block_chunks = static_cast<int>(a_.w.block_size) / kChunk;
    const auto shift = Decode::shift(1u << (kBits - 1));  // of signed codes
    int block = chunk / block_chunks, left = (block + 1) * block_chunks - chunk;
#pragma unroll
    for (int first = 0; first < kChunks; first += kSumChunks) {
      if (chunk + first >= a_.chunks) break;
      float sums[2][4] = {};
#pragma unroll
      for (int i = first; i < first + kSumChunks; ++i) {
        uint4 words[kLoads];
        weights_.get(i, words);
        if (kSumChunks > 1 && chunk + i >= a_.chunks) continue;
        const char* from = x + i * (kChunk * 2);
        uint4 values;
        if constexpr (kBits == 8) {
          const uint2 first_values = *reinterpret_cast<const uint2*>(from);
          const uint2 last_values = *reinterpret_cast<const uint2*>(from + kChunk);
          values = {first_values.x, first_values.y, last_values.x, last_values.y};
        } else {
          values = *reinterpret_cast<const uint4*>(from);
        }
        add_products(words, values, shift, sums);
      }
      const float4 four = scales[block * 4];
      const float scale[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          totals_[half][i] = numerics::fma_once(sums[half][i], scale[2 * half + i / 2], totals_[half][i]);
      left -= kSumChunks;
      if (left <= 0) {
        ++block;
        left = block_chunks;
      }
    }
  }

  template <class Shift>
  __device__ __forceinline__ static void add_products(const uint4 (&words)[kLoads], const uint4& x, const Shift& shift,
                                                      float (&sums)[2][4]) {
    const std::uint32_t first[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
    const uint4& last = words[kLoads - 1];
    const std::uint32_t second[4] = {last.x, last.y, last.z, last.w};
    std::uint32_t a[2][2][4];  // [j][half]: columns 4*group + 2*half and the next one, 4 neighboring k each
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t pairs[4];
      Decode::template decode<false>(pairs, first[i], second[i], shift);
#pragma unroll
      for (int k = 0; k < 4; ++k) a[k / 2][i / 2][i % 2 + 2 * (k % 2)] = pairs[k];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) ptx::mma_half<kHalf>(sums[half], a[0][half], x.x, x.y);
#pragma unroll
    for (int half = 0; half < 2; ++half) ptx::mma_half<kHalf>(sums[half], a[1][half], x.z, x.w);
  }

  __device__ __forceinline__ float* totals(int group) const {
    return reinterpret_cast<float*>(memory_ + a_.totals_at + group % 2 * a_.totals_stride);
  }

  // And begins new ones.
  __device__ __forceinline__ void leave_totals(int group) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * lane_.quad + j;
      if (row < a_.rows)
        *reinterpret_cast<float4*>(totals(group) + (lane_.warp * a_.rows + row) * kColumns + 4 * lane_.group) =
            make_float4(totals_[0][j], totals_[0][j + 2], totals_[1][j], totals_[1][j + 2]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) totals_[i / 4][i % 4] = 0.0f;
  }

  // Thread (warp, lane) owns column `lane` of row `warp`.
  __device__ __forceinline__ void store(int group) const {
    const std::int64_t n = weights_.column(group) + lane_.lane;
    if (lane_.warp >= a_.rows || n >= a_.w.n) return;
    const float* from = totals(group) + lane_.warp * kColumns + lane_.lane;
    float y = 0.0f;
#pragma unroll
    for (int warp = 0; warp < FewRows::kWarps; ++warp) y += from[warp * a_.rows * kColumns];
    store_epilogue(a_.out, a_.y_at[lane_.warp], n, y);
  }

  const FewRows& a_;
  char* memory_;
  gemv::Lane lane_;
  Weights weights_;
  float totals_[2][4] = {};
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kResidentBlocks = 1;
#else
constexpr int kResidentBlocks = 2;  // of this kernel and of the one behind it
#endif

template <ptx::Half kHalf, int kBits, int kSumChunks>
__global__ void __launch_bounds__(FewRows::kWarps* kWarpSize, kResidentBlocks)
    sm80_float_gemv_kernel(const __grid_constant__ FewRows a) {
  FewRowsProduct<kHalf, kBits, kSumChunks>(a).run();
}

template <ptx::Half kHalf, int kBits>
void launch_bits(const FewRows& a, const LaunchShape& shape, cudaStream_t stream) {
  constexpr int kLongSum = 4;  // chunks: a block of 128
  const auto kernel = a.w.block_size % (kLongSum * kChunk) == 0 || a.w.blocks == 1
                          ? sm80_float_gemv_kernel<kHalf, kBits, kLongSum>
                          : sm80_float_gemv_kernel<kHalf, kBits, 1>;
  launch("sm80_float_gemv", kernel, shape, stream, a);
}

}  // namespace

bool few_rows(const LinearProblem& problem, const DeviceWeight& w, std::int64_t multiprocessors, FewRows& few) {
  constexpr std::int64_t kMaxK = 1 << 20;
  if (problem.m > FewRows::kMaxRows || w.offsets || problem.x.dtype == DType::f32 || w.k == 0 || w.k % FewRows::kUnit ||
      w.k > kMaxK || problem.x.column_stride != 1 || reinterpret_cast<std::uintptr_t>(problem.x.data) % 16)
    return false;
  few.w = w;
  few.w.block_size = w.blocks == 1 ? round_up(w.k, kChunk) : w.block_size;
  few.out = device_output(problem);
  few.x = problem.x.data;
  few.dtype = problem.x.dtype;
  few.rows = static_cast<int>(problem.m);
  few.k = static_cast<int>(w.k);
  few.chunks = static_cast<int>(ceil_div(w.k, kChunk));
  for (int row = 0; row < few.rows; ++row) {
    few.row_at[row] = problem.x.row_offset(row);
    few.y_at[row] = problem.y.row_offset(row);
    if (few.row_at[row] % FewRows::kUnit) return false;
  }
  // Rows that lie 64 bytes more than whole 128 apart take different banks.
  few.x_stride = static_cast<int>(round_up(few.chunks * kChunk * 2, 128)) + 64;
  few.totals_at = few.rows * few.x_stride;
  const int totals_bytes = FewRows::kWarps * few.rows * kColumns * 4;
  const auto fill = [&](int totals) {
    few.totals_stride = (totals - 1) * totals_bytes;
    few.weights = gemv::StagedLayout(w, FewRows::kWarps, few.totals_at + totals * totals_bytes);
    return few.weights.fill(w, multiprocessors, most_shared_bytes(problem.device.index));
  };
  if (!fill(1)) return false;
  // Without slots for two rounds the kernel for more rows is faster with 8 bits, and with several groups of columns.
  const bool several_groups = few.weights.blocks < ceil_div(w.panels, 2);
  if (few.weights.lacks_slots() && (w.bits == 8 || several_groups) && compute_capability(problem.device.index) >= 90)
    return false;
  // Thread blocks with several groups of columns begin the next one while totals are added.
  return !several_groups || fill(2) || fill(1);
}

void run_few_rows(const FewRows& a, bool overlap, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(a.weights.blocks)), dim3(FewRows::kWarps * kWarpSize),
                    static_cast<std::size_t>(a.weights.bytes)};
  shape.overlap = overlap;
  const auto launch_half = [&](auto half) {
    constexpr ptx::Half kHalf = decltype(half)::value;
    a.w.bits == 8 ? launch_bits<kHalf, 8>(a, shape, stream) : launch_bits<kHalf, 4>(a, shape, stream);
  };
  if (a.dtype == DType::f16)
    launch_half(std::integral_constant<ptx::Half, ptx::Half::f16>{});
  else
    launch_half(std::integral_constant<ptx::Half, ptx::Half::bf16>{});
}

}  // namespace qcore::sm80_float_mma
