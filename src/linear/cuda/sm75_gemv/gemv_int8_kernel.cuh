#pragma once

#include "linear/cuda/sm75_gemv/gemv_fragments.cuh"
#include "linear/cuda/sm75_gemv/gemv_int8.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/ptx_bytes.cuh"
#include "runtime/cuda/ptx_launch.cuh"

namespace qcore::gemv {

constexpr int kMaxWarps = 16;
// Thread blocks per multiprocessor that the registers must suffice for: where kernels overlap, also the next one's.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kResidentBlocks = 1;
#else
constexpr int kResidentBlocks = 2;
#endif

// Every warp multiplies round_chunks() neighboring chunks of k in a round. The weights need nothing that another kernel
// writes, and are asked for before the kernel in front of this one has ended. kBlockChunks == 0 means one block per
// row, whose sums of codes the warps keep in registers to the end.
//
// With kExperts a thread block has a single row, blockIdx.y, whose weight is that of its expert. Who that is, an
// earlier kernel writes.
// With kHasAdders, on 9.0, warps of their own add the sums of a round while the others multiply the next one.
template <int kBits, int kBlockChunks, bool kExperts = false, bool kHasAdders = false>
class Int8 {
 public:
  __device__ __forceinline__ explicit Int8(const Int8Arguments& arguments)
      : a_(arguments), layout_(arguments.layout), memory_(dynamic_shared()), weights_(memory_, layout_.weights) {}

  __device__ __forceinline__ void run() {
    if constexpr (kExperts) {
      ptx::let_next_kernel_start();
      ptx::wait_for_earlier_kernels();
      find_row();
      if (expert_row().expert == a_.experts.experts) return store_nothing();
    }
    if constexpr (kHasAdders) {
      if (threadIdx.x == 0) {
        for (int buffer = 0; buffer < 2; ++buffer) {
          ptx::barrier_init(summed(buffer), a_.warps);
          ptx::barrier_init(added(buffer), kAdders);
          ptx::barrier_init(refilled(buffer), 1);
        }
        ptx::barriers_are_ready();
      }
    }
    weights_.start(a_.w, first_words(), first_scales());
    if constexpr (!kExperts) ptx::let_next_kernel_start();
    if (!kHasAdders || lane_.warp < a_.warps) weights_.fetch(0, lane_);
    if constexpr (!kExperts) ptx::wait_for_earlier_kernels();
    const RowQuantizer& x = rows();
    auto* codes = reinterpret_cast<std::int8_t*>(memory_);
    auto* parts = reinterpret_cast<std::uint32_t*>(sums(0));
    if constexpr (kOneBlock) {
      clear_tails(x);
      x.template run_one_block<false>(codes, x_scales(0), nullptr, parts);
    } else {
      x.template run<kBlockChunks * kChunk, false>(codes, x_scales(0), nullptr, parts);
    }
    __syncthreads();
    if constexpr (kHasAdders) {
      return lane_.warp < a_.warps ? multiply_ahead() : add();
    }
#pragma unroll 1
    for (int group = 0;; ++group) {
      y_ = 0.0f;
      kOneBlock ? multiply_one_block(group) : multiply_blocks(group);
      if (lane_.warp < layout_.rows) store(weights_.column(group) + lane_.lane, lane_.warp);
      if (group + 1 == weights_.groups()) break;
      weights_.ask_for_scales(group + 2);
    }
  }

 private:
  __device__ __forceinline__ void store(std::int64_t n, int row) const {
    if (n >= a_.w.n) return;
    if constexpr (kExperts)
      Epilogue(a_.out, n, expert_row().expert * a_.experts.bias_stride).store(a_.y_at[blockIdx.y], y_);
    else
      store_epilogue(a_.out, a_.y_at[row], n, y_);
  }
  __device__ __forceinline__ void store_nothing() const {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kColumns;
    const auto row = static_cast<int>(blockIdx.y);
    store_nan(a_.out, 0, {a_.experts.experts, row, row + 1}, 1, first,
              first + kColumns < a_.w.n ? first + kColumns : a_.w.n);
  }
  // In shared memory: registers are scarce. The rows' copy begins with the thread block's.
  struct ExpertRow {
    RowQuantizer x;
    int expert;
    const uint4* words;  // of the expert's weight
    const float* scales;
  };
  __device__ __forceinline__ static ExpertRow& expert_row() { return block_shared<ExpertRow>(); }
  __device__ __forceinline__ void find_row() const {
    if (lane_.warp == 0) {
      const int expert = find_expert(a_.experts, static_cast<int>(gridDim.y), static_cast<int>(blockIdx.y));
      if (lane_.lane == 0) {
        ExpertRow& row = expert_row();
        row.x = a_.x;
        row.x.row_at[0] = a_.x.row_at[blockIdx.y];
        row.x.given_at[0] = a_.x.given_at[blockIdx.y];
        row.expert = expert;
        const std::int64_t panel = expert * a_.w.panels;
        row.words = reinterpret_cast<const uint4*>(a_.w.words) + panel * a_.w.steps * 4;
        row.scales = a_.w.scales + a_.w.parameter_index(panel, 0, 0);
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ const RowQuantizer& rows() const {
    if constexpr (kExperts)
      return expert_row().x;
    else
      return a_.x;
  }
  __device__ __forceinline__ const uint4* first_words() const {
    if constexpr (kExperts)
      return expert_row().words;
    else
      return reinterpret_cast<const uint4*>(a_.w.words);
  }
  __device__ __forceinline__ const float* first_scales() const {
    if constexpr (kExperts)
      return expert_row().scales;
    else
      return a_.w.scales;
  }

  static constexpr bool kOneBlock = kBlockChunks == 0;
  static_assert(!(kOneBlock && kHasAdders), "sums of blocks");
  static constexpr int kLoads = chunk_loads(kBits), kChunks = round_chunks(kBits);
  static constexpr int kSegmentChunks = kOneBlock ? kChunks : kBlockChunks, kSegments = kChunks / kSegmentChunks;

  // Both end with a barrier and the next group's first weights, if there is one.
  __device__ __forceinline__ void multiply_blocks(int group) {
    int round = group * layout_.weights.rounds;
#pragma unroll 1
    for (int segment = 0; segment < layout_.blocks;) {  // of the round's first warp
      multiply(segment + lane_.warp * kSegments, sums(0));
      __syncthreads();
      if (weights_.turns()) weights_.refill(round);
      if (lane_.warp < layout_.rows) accumulate(group, segment, lane_.warp, 0);
      segment += layout_.slots;
      ++round;
      if (segment >= layout_.blocks && group + 1 == weights_.groups()) break;
      weights_.fetch(round, lane_);
      __syncthreads();
    }
  }

  // By the warps that multiply, with places for the sums of two rounds.
  __device__ __forceinline__ void multiply_ahead() {
    const int all = weights_.groups() * layout_.weights.rounds;
    const bool turns = weights_.turns();
    int segment = 0;  // of the round's first warp
#pragma unroll 1
    for (int round = 0;; ++round) {
      const int buffer = round % 2;
      if (round >= 2) ptx::barrier_wait(added(buffer), (round / 2 + 1) % 2);
      multiply(segment + lane_.warp * kSegments, sums(0, buffer));
      arrive(summed(buffer));
      segment += layout_.slots;
      if (segment >= layout_.blocks) segment = 0;
      if (round + 1 == all) break;
      // A barrier tells only neighboring phases apart, so the one that fetch() waits for must have begun.
      const int refill = weights_.refill_of(round + 1);
      if (turns && refill >= 0 && refill + 1 >= round) ptx::barrier_wait(refilled(refill % 2), refill / 2 % 2);
      weights_.fetch(round + 1, lane_);
    }
  }
  // By the warps that add: each owns a row, and a lane of it a column. The last of them has the first row, because the
  // first one also asks for weights.
  __device__ __forceinline__ void add() {
    const int row = a_.warps + kAdders - 1 - lane_.warp;
    int round = 0;
#pragma unroll 1
    for (int group = 0; group < weights_.groups(); ++group) {
      y_ = 0.0f;
#pragma unroll 1
      for (int segment = 0; segment < layout_.blocks; segment += layout_.slots, ++round) {
        const int buffer = round % 2;
        ptx::barrier_wait(summed(buffer), round / 2 % 2);
        if (lane_.warp == a_.warps && weights_.turns()) {
          weights_.refill(round);
          arrive(refilled(buffer));
        }
        if (row < layout_.rows) accumulate(group, segment, row, buffer);
        arrive(added(buffer));
      }
      if (row < layout_.rows) store(weights_.column(group) + lane_.lane, row);
      // All lanes have read this group's scales.
      ptx::barrier_wait(added((round - 1) % 2), (round - 1) / 2 % 2);
      weights_.ask_for_scales(group + 2);
    }
  }

  __device__ __forceinline__ ptx::Barrier& summed(int buffer) const {
    return reinterpret_cast<ptx::Barrier*>(memory_ + layout_.barriers_at)[buffer];
  }
  __device__ __forceinline__ ptx::Barrier& added(int buffer) const { return summed(2 + buffer); }
  __device__ __forceinline__ ptx::Barrier& refilled(int buffer) const { return summed(4 + buffer); }
  __device__ __forceinline__ void arrive(ptx::Barrier& barrier) const {
    __syncwarp();
    if (lane_.lane == 0) ptx::barrier_arrive(barrier, 0);
  }

  __device__ __forceinline__ float* x_scales(int row) const {  // [P]
    return reinterpret_cast<float*>(memory_ + layout_.x_scales_at) + row * layout_.scale_stride;
  }
  // Sums of products, as floats.
  __device__ __forceinline__ float* sums(int slot, int buffer = 0) const {  // [rows, 32]
    return reinterpret_cast<float*>(memory_ + layout_.sums_at + buffer * layout_.sums_stride) +
           slot * layout_.rows * kColumns;
  }
  // The exact sum of a block's products, of which those of 4 bits are too large by a power of two, rounded to fp32.
  __device__ __forceinline__ static float rounded(std::int32_t products) {
    return static_cast<float>(products) * (1.0f / SignedFragments<kBits>::kTimes);
  }
  // Codes of x behind the end of a row of one block, up to the last chunk.
  __device__ __forceinline__ void clear_tails(const RowQuantizer& x) const {
    const int tail = (layout_.code_stride - x.k) / RowQuantizer::kUnit;
    for (int i = static_cast<int>(threadIdx.x); i < layout_.rows * tail; i += a_.warps * kWarpSize)
      *reinterpret_cast<uint2*>(memory_ + i / tail * layout_.code_stride + x.k + i % tail * RowQuantizer::kUnit) =
          uint2{0, 0};
  }

  // The lane's codes of x, from a segment on.
  __device__ __forceinline__ const char* codes_of(int segment) const {
    // Rows that do not exist repeat the last one.
    const int row = lane_.group < layout_.rows ? lane_.group : layout_.rows - 1;
    return memory_ + row * layout_.code_stride + segment * kSegmentChunks * kChunk + (kBits == 8 ? 4 : 8) * lane_.quad;
  }

  __device__ __forceinline__ void multiply_chunk(int i, const char* x, std::int32_t (&products)[2][4]) {
    uint4 words[kLoads];
    weights_.get(i, words);
    const SignedFragments<kBits> w(words);
    const auto* codes = reinterpret_cast<const std::uint32_t*>(x + i * kChunk);
    std::uint32_t pair[2];
    if constexpr (kBits == 8) {
      pair[0] = codes[0], pair[1] = codes[4];
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(codes);
      pair[0] = both.x, pair[1] = both.y;
    }
    ptx::mma_bytes<true, true>(products[0], w.first, pair);
    ptx::mma_bytes<true, true>(products[1], w.second, pair);
  }

  __device__ __forceinline__ void multiply_one_block(int group) {
    const int chunks = (a_.x.k + kChunk - 1) / kChunk;
    std::int32_t products[2][4] = {};
    const int rounds = layout_.weights.rounds, first_round = group * rounds;
#pragma unroll 1
    for (int round = 0;; ++round) {
      const int segment = round * a_.warps + lane_.warp;
      if (segment * kChunks < chunks) {
        const char* x = codes_of(segment);
#pragma unroll
        for (int i = 0; i < kChunks; ++i) multiply_chunk(i, x, products);
      }
      if (round + 1 == rounds) break;
      if (weights_.turns()) {
        __syncthreads();
        weights_.refill(first_round + round);
      }
      weights_.fetch(first_round + round + 1, lane_);
    }
    auto* to = reinterpret_cast<std::int32_t*>(sums(lane_.warp)) + 2 * lane_.quad * kColumns + 4 * lane_.group;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (2 * lane_.quad + j < layout_.rows)
        *reinterpret_cast<int4*>(to + j * kColumns) =
            int4{products[0][j], products[0][j + 2], products[1][j], products[1][j + 2]};
    __syncthreads();
    const bool last = group + 1 == weights_.groups();
    if (!last) weights_.refill(first_round + rounds - 1);
    if (lane_.warp < layout_.rows) {
      std::uint32_t sum = 0;
      for (int warp = 0; warp < a_.warps; ++warp)
        sum += reinterpret_cast<const std::uint32_t*>(sums(warp))[lane_.warp * kColumns + lane_.lane];
      weights_.wait_for_scales(group);
      y_ = numerics::add_float_product(y_, rounded(static_cast<std::int32_t>(sum)), x_scales(lane_.warp)[0],
                                       weights_.scales(group, lane_.lane / 16)[lane_.lane % 16]);
    }
    if (last) return;
    weights_.fetch(first_round + rounds, lane_);
    __syncthreads();
  }

  // `segment` is the warp's first block of this round, whose sums begin at `to`.
  __device__ __forceinline__ void multiply(int segment, float* to) {
    const char* x = codes_of(segment);
    float* sum_to = to + (lane_.warp * kSegments * layout_.rows + 2 * lane_.quad) * kColumns + 4 * lane_.group;
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      if (segment + s >= layout_.blocks) break;
      std::int32_t products[2][4] = {};
#pragma unroll
      for (int i = s * kSegmentChunks; i < (s + 1) * kSegmentChunks; ++i) multiply_chunk(i, x, products);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (2 * lane_.quad + j >= layout_.rows) break;
        *reinterpret_cast<float4*>(sum_to + j * kColumns) = make_float4(
            rounded(products[0][j]), rounded(products[0][j + 2]), rounded(products[1][j]), rounded(products[1][j + 2]));
      }
      sum_to += layout_.rows * kColumns;
    }
  }

  // The calling warp's lanes own a column each.
  __device__ __forceinline__ void accumulate(int group, int first, int row, int buffer) {
    weights_.wait_for_scales(group);
    const int left = layout_.blocks - first, used = left < layout_.slots ? left : layout_.slots;
    const int stride = layout_.rows * kColumns;
    const float* products = sums(0, buffer) + row * kColumns + lane_.lane;
    const float* x = x_scales(row) + first;
    const float* w = weights_.scales(group, lane_.lane / 16) + first * 16 + lane_.lane % 16;
    constexpr int kAtOnce = 8;  // whose loads are under way together
#pragma unroll 1
    for (int left_groups = used / kAtOnce; left_groups > 0; --left_groups) {
      const float4 x4[2] = {reinterpret_cast<const float4*>(x)[0], reinterpret_cast<const float4*>(x)[1]};
      const float x_scale[kAtOnce] = {x4[0].x, x4[0].y, x4[0].z, x4[0].w, x4[1].x, x4[1].y, x4[1].z, x4[1].w};
      float product[kAtOnce], scale[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) product[i] = products[i * stride], scale[i] = w[i * 16];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) y_ = numerics::add_float_product(y_, product[i], x_scale[i], scale[i]);
      products += kAtOnce * stride;
      x += kAtOnce;
      w += kAtOnce * 16;
    }
#pragma unroll 1
    for (int i = 0; i < used % kAtOnce; ++i)
      y_ = numerics::add_float_product(y_, products[i * stride], x[i], w[i * 16]);
  }

  const Int8Arguments& a_;
  const Int8Layout& layout_;
  char* memory_;
  Lane lane_;
  StagedWeights<kBits, kBits == 8 ? 1 : 3> weights_;
  float y_ = 0.0f;
};

}  // namespace qcore::gemv
