#include <algorithm>

#include "decoder/cuda/attention_chunk.cuh"
#include "decoder/cuda/kernels.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_scratch.h"
#include "runtime/memory.h"
#include "runtime/ptx_launch.cuh"

// Attention's kernels (attention_chunk.cuh has their core) and how they are launched.
namespace qcore {
namespace {

// Merges a chunk into the totals in shared memory.
template <int kRows, int kPasses>
__device__ __forceinline__ void merge_chunk(const AttentionArguments& a, const Tile& tile, const Shared<kRows>& s,
                                            std::int64_t chunk, const float (&out)[kPasses][kRows]) {
  const int thread = static_cast<int>(threadIdx.x), size = static_cast<int>(a.head_size);
  if (thread < kRows) {
    float old_factor = 0.0f, new_factor = 0.0f;
    if (thread < tile.rows) {
      const std::int64_t start = chunk * kAttentionChunk;
      const numerics::KeyRange seen{s.seen[2 * thread], s.seen[2 * thread + 1]};
      float* terms = s.terms + 2 * thread;
      const float* other = s.chunk + 2 * thread;
      if (seen.begin >= seen.end || seen.end <= start || seen.begin >= start + kAttentionChunk) {
        old_factor = 1.0f;  // nothing of this chunk
      } else if (seen.begin >= start) {
        new_factor = 1.0f;  // the first
        terms[0] = other[0];
        terms[1] = other[1];
      } else {
        const auto merge = numerics::merge_factors(terms[0], other[0]);
        terms[0] = merge.largest;
        terms[1] = numerics::merged<ScalarLanes>(terms[1], other[1], merge);
        old_factor = merge.old_factor;
        new_factor = merge.new_factor;
      }
    }
    s.factors[2 * thread] = old_factor;
    s.factors[2 * thread + 1] = new_factor;
  }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int d = thread + pass * kThreads;
    if (d >= size) continue;
    float totals[kRows];
    get_rows(s.totals + d * kRows, totals);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      totals[r] = numerics::merged<ScalarLanes>(totals[r], out[pass][r],
                                                numerics::AttentionMerge{0.0f, s.factors[2 * r], s.factors[2 * r + 1]});
    put_rows(s.totals + d * kRows, totals);
  }
}

__device__ __forceinline__ void store_result(const AttentionArguments& a, std::int64_t b, std::int64_t t,
                                             std::int64_t head, int d, float value) {
  store_float(a.y, a.y_dtype, b * a.y_strides[0] + t * a.y_strides[1] + head * a.y_strides[2] + d * a.y_strides[3],
              value);
}

template <DType kDType, int kRows, int kPasses>
__global__ void __launch_bounds__(kThreads) attention_kernel(const __grid_constant__ AttentionArguments a) {
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_start();
  const int thread = static_cast<int>(threadIdx.x), size = static_cast<int>(a.head_size);
  const int tile_number = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.tiles));
  const std::int64_t pair = blockIdx.x / static_cast<unsigned>(a.tiles);
  Tile tile;
  tile.b = pair / a.kv_heads;
  tile.kv_head = pair - tile.b * a.kv_heads;
  tile.first_row = tile_number * kRows;
  const int all_rows = static_cast<int>(a.tokens) * a.group;
  tile.rows = all_rows - tile.first_row < kRows ? all_rows - tile.first_row : kRows;

  const std::int64_t begin = seen_by(a, tile.b, tile.first_row).begin;
  const std::int64_t end = seen_by(a, tile.b, tile.first_row + tile.rows - 1).end;
  const std::int64_t first = begin / kAttentionChunk, chunks = (end + kAttentionChunk - 1) / kAttentionChunk;
  std::int64_t chunk = first + blockIdx.y, last = chunks;
  if (a.split_chunks > 0) {
    if (chunk >= chunks || begin >= end) return;
    last = chunk + 1;
  }
  const Shared<kRows> s(dynamic_shared(), a.head_size);
  load_queries(a, tile, s);
  __syncthreads();

  ChunkStep<kDType, kRows, kPasses> step(a, tile, s);
  for (; chunk < last; ++chunk) {
    ChunkRange range;
    range.start = chunk * kAttentionChunk;
    range.begin = begin > range.start ? static_cast<int>(begin - range.start) : 0;
    range.end = end - range.start < kAttentionChunk ? static_cast<int>(end - range.start) : kAttentionChunk;
    float out[kPasses][kRows];
    step.run(range, out);
    __syncthreads();
    if (a.split_chunks == 0) {
      merge_chunk<kRows, kPasses>(a, tile, s, chunk, out);
      __syncthreads();
      continue;
    }
    const auto slot = [&](int r) {
      const int row = tile.first_row + r;
      const std::int64_t query = (tile.b * a.tokens + token_of(a, row)) * a.heads + head_of(a, tile, row);
      return query * a.split_chunks + blockIdx.y;
    };
    if (thread < 2 * tile.rows) a.partial_terms[2 * slot(thread / 2) + thread % 2] = s.chunk[thread];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= tile.rows) break;
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
        if (thread + pass * kThreads < size) a.partial_out[slot(r) * size + thread + pass * kThreads] = out[pass][r];
    }
  }
  if (a.split_chunks > 0) return;
  for (int i = thread; i < tile.rows * size; i += kThreads) {
    const int r = i / size, d = i - r * size, row = tile.first_row + r;
    const float sum = s.terms[2 * r + 1], factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    store_result(a, tile.b, token_of(a, row), head_of(a, tile, row), d, s.totals[d * kRows + r] * factor);
  }
}

// Merges the chunks of a query, one after the other. A thread block has a query.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ AttentionArguments a, const int tile_rows) {
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_start();
  const int thread = static_cast<int>(threadIdx.x), size = static_cast<int>(a.head_size);
  const std::int64_t query = blockIdx.x, token = query / a.heads, head = query - token * a.heads;
  const std::int64_t b = token / a.tokens, t = token - b * a.tokens;
  const int row = static_cast<int>(t) * a.group + static_cast<int>(head % a.group);
  const numerics::KeyRange seen = seen_by(a, b, row);
  const std::int64_t base = first_chunk(a, b, row / tile_rows, tile_rows);
  const std::int64_t first = seen.begin / kAttentionChunk - base;
  const std::int64_t last = seen.begin < seen.end ? (seen.end - 1) / kAttentionChunk - base : first - 1;
  const float* terms = a.partial_terms + 2 * query * a.split_chunks;
  const float* parts = a.partial_out + query * a.split_chunks * size;
  for (int d = thread; d < size; d += kThreads) {
    float largest = 0.0f, sum = 0.0f, out = 0.0f;
#pragma unroll 4
    for (std::int64_t chunk = first; chunk <= last; ++chunk) {
      const float new_largest = terms[2 * chunk], new_sum = terms[2 * chunk + 1], part = parts[chunk * size + d];
      if (chunk == first) {
        largest = new_largest;
        sum = new_sum;
        out = part;
        continue;
      }
      const auto merge = numerics::merge_factors(largest, new_largest);
      largest = merge.largest;
      sum = numerics::merged<ScalarLanes>(sum, new_sum, merge);
      out = numerics::merged<ScalarLanes>(out, part, merge);
    }
    store_result(a, b, t, head, d, out * (sum == 0.0f ? 0.0f : 1.0f / sum));
  }
}

using AttentionKernel = void (*)(AttentionArguments);

struct KernelChoice {
  AttentionKernel kernel;
  int rows;
  std::int64_t shared_bytes;
};

template <DType kDType, int kRows, int kPasses>
KernelChoice choice(std::int64_t head_size) {
  return {attention_kernel<kDType, kRows, kPasses>, kRows, Shared<kRows>::bytes(head_size)};
}

// The largest tile of queries that is not mostly empty and whose arrays fit in shared memory.
template <DType kDType>
KernelChoice choose(std::int64_t rows, std::int64_t head_size, std::int64_t shared_limit) {
  const auto takes = [&](std::int64_t tile, std::int64_t bytes) { return rows > tile / 2 && bytes <= shared_limit; };
  if (head_size > 2 * kThreads) return choice<kDType, 4, 4>(head_size);
  if (head_size > kThreads)
    return takes(8, Shared<8>::bytes(head_size)) ? choice<kDType, 8, 2>(head_size) : choice<kDType, 4, 2>(head_size);
  if (takes(16, Shared<16>::bytes(head_size))) return choice<kDType, 16, 1>(head_size);
  return takes(8, Shared<8>::bytes(head_size)) ? choice<kDType, 8, 1>(head_size) : choice<kDType, 4, 1>(head_size);
}

KernelChoice choose(DType dtype, std::int64_t rows, std::int64_t head_size, std::int64_t shared_limit) {
  switch (dtype) {
    case DType::f16:
      return choose<DType::f16>(rows, head_size, shared_limit);
    case DType::bf16:
      return choose<DType::bf16>(rows, head_size, shared_limit);
    case DType::i8:
      return choose<DType::i8>(rows, head_size, shared_limit);
    default:
      return choose<DType::f32>(rows, head_size, shared_limit);
  }
}

constexpr std::int64_t kMaxHeadSize = 4 * kThreads;
constexpr std::int64_t kMaxPartialBytes = std::int64_t{256} << 20;

CacheArray cache_array(const TensorView& array, const TensorView& scales) {
  CacheArray cache{};
  cache.data = static_cast<const char*>(array.data);
  cache.batch = array.strides[0];
  cache.head = array.strides[1];
  cache.position = array.strides[2];
  if (scales.rank) {
    cache.scales = static_cast<const float*>(scales.data);
    cache.scale_batch = scales.strides[0];
    cache.scale_head = scales.strides[1];
    cache.scale_position = scales.strides[2];
  }
  return cache;
}

bool in_vectors(const TensorView& array) {
  const std::int64_t bytes = item_size(array.dtype);
  bool even = reinterpret_cast<std::uintptr_t>(array.data) % 16 == 0 && array.shape[3] * bytes % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) even &= array.shape[axis] == 1 || array.strides[axis] * bytes % 16 == 0;
  return even;
}

// Chunks that a tile of rows may see: of all positions, or of a window over the tokens of a tile.
std::int64_t max_chunks(const AttentionProblem& p, std::int64_t tile_tokens) {
  const std::int64_t all = ceil_div(p.max_length, kAttentionChunk);
  if (p.window == 0) return all;
  return std::min(all, (p.window + tile_tokens - 2) / kAttentionChunk + 2);
}

}  // namespace

const char* attention_cuda_unsupported_reason(const AttentionProblem& problem) {
  if (const char* reason = on_cuda_unsupported_reason(problem)) return reason;
  return problem.q.shape[3] <= kMaxHeadSize ? nullptr : "the head size is above 512";
}

void run_attention_cuda(const AttentionProblem& p) { run_attention_cuda(p, AttentionPlan::automatic); }

void run_attention_cuda(const AttentionProblem& p, AttentionPlan plan) {
  AttentionArguments a{};
  a.q = p.q.data;
  a.y = p.y.data;
  a.q_dtype = p.q.dtype;
  a.y_dtype = p.y.dtype;
  std::copy(p.q.strides, p.q.strides + 4, a.q_strides);
  std::copy(p.y.strides, p.y.strides + 4, a.y_strides);
  a.keys = cache_array(p.cache.keys, p.cache.key_scales);
  a.values = cache_array(p.cache.values, p.cache.value_scales);
  a.past = static_cast<const std::int32_t*>(p.past.data);
  a.past_stride = p.past.strides[0];
  if (p.first.rank) {
    a.first = static_cast<const std::int32_t*>(p.first.data);
    a.first_stride = p.first.strides[0];
  }
  a.batch = p.q.shape[0];
  a.tokens = p.q.shape[1];
  a.heads = p.q.shape[2];
  a.head_size = p.q.shape[3];
  a.kv_heads = p.cache.keys.shape[1];
  a.window = p.window;
  a.length_limit = p.max_length;
  a.scale = p.scale;
  a.soft_cap = p.soft_cap;
  a.group = static_cast<int>(a.heads / a.kv_heads);
  a.vectors = in_vectors(p.cache.keys) && in_vectors(p.cache.values);

  const std::int64_t rows = a.tokens * a.group;
  const KernelChoice chosen = choose(p.cache.keys.dtype, rows, a.head_size, most_shared_bytes(p.device.index));
  a.tiles = static_cast<int>(ceil_div(rows, chosen.rows));
  const std::int64_t blocks = a.batch * a.kv_heads * a.tiles, queries = a.batch * a.tokens * a.heads;
  const std::int64_t chunks = max_chunks(p, ceil_div(chosen.rows, a.group) + 1);
  const std::int64_t partial_bytes = queries * chunks * (a.head_size + 2) * static_cast<std::int64_t>(sizeof(float));
  DeviceGuard guard(p.device.index);
  const bool split = plan == AttentionPlan::automatic ? chunks > 1 && blocks < 2 * multiprocessors(p.device.index) &&
                                                            partial_bytes <= kMaxPartialBytes
                                                      : plan == AttentionPlan::split;
  const auto stream = static_cast<cudaStream_t>(p.stream);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(blocks), split ? static_cast<unsigned>(chunks) : 1);
  shape.block = dim3(kThreads);
  shape.shared_bytes = static_cast<std::size_t>(chosen.shared_bytes);
  shape.overlap = compute_capability(p.device.index) >= 90;
  if (!split) return launch("decoder_attention", chosen.kernel, shape, stream, a);

  ScratchPlan scratch_plan;
  const auto out = scratch_plan.add<float>(queries * chunks * a.head_size);
  const auto terms = scratch_plan.add<float>(queries * chunks * 2);
  const CudaScratch scratch(scratch_plan, p.device.index, stream);
  a.split_chunks = static_cast<int>(chunks);
  a.partial_out = scratch[out];
  a.partial_terms = scratch[terms];
  launch("decoder_attention", chosen.kernel, shape, stream, a);
  LaunchShape merge;
  merge.grid = dim3(static_cast<unsigned>(queries));
  merge.block = dim3(kThreads);
  merge.overlap = shape.overlap;
  launch("decoder_attention_merge", merge_kernel, merge, stream, a, chosen.rows);
}

}  // namespace qcore
