#include <algorithm>

#include "decoder/cuda/attention_chunk.cuh"
#include "decoder/cuda/kernels.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

// Attention's kernels (attention_chunk.cuh has their core) and how they are launched.
namespace qcore {
namespace {

// Prepares the factors by which the totals of all rows and their chunk are merged.
template <int kRows>
__device__ __forceinline__ void prepare_merge(const Shared<kRows>& s, int rows, std::int64_t start) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kRows) return;
  float old_factor = 0.0f, new_factor = 0.0f;
  if (thread < rows) {
    const std::int64_t begin = s.seen[2 * thread], end = s.seen[2 * thread + 1];
    float* terms = s.terms + 2 * thread;
    const float* other = s.chunk + 2 * thread;
    if (begin >= end || end <= start || begin >= start + kAttentionChunk) {
      old_factor = 1.0f;  // nothing of this chunk
    } else if (begin >= start) {
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

// Waits for the copies of the oldest stage.
__device__ __forceinline__ void wait_for_stage(int stages) {
  if (stages == 4)
    ptx::copy_wait<3>();
  else if (stages == 2)
    ptx::copy_wait<1>();
  else
    ptx::copy_wait<0>();
}

// kSplit: the thread block has one chunk, whose results merge_kernel merges; otherwise it has all of them.
template <DType kDType, int kRows, int kGroups, int kPasses, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const __grid_constant__ AttentionArguments a) {
  using Step = ChunkStep<kDType, kRows, kGroups, kPasses>;
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const int size = static_cast<int>(a.head_size), row_bytes = size * Step::kItemBytes;
  const unsigned pair = blockIdx.x / static_cast<unsigned>(a.tiles);
  Tile tile;
  tile.b = pair / static_cast<unsigned>(a.kv_heads);
  tile.kv_head = pair - tile.b * a.kv_heads;
  tile.first_row = static_cast<int>(blockIdx.x - pair * a.tiles) * kRows;
  const int all_rows = static_cast<int>(a.tokens) * a.group;
  tile.rows = all_rows - tile.first_row < kRows ? all_rows - tile.first_row : kRows;

  const std::int64_t begin = seen_by(a, tile.b, tile.first_row).begin;
  const std::int64_t end = seen_by(a, tile.b, tile.first_row + tile.rows - 1).end;
  const int chunks = static_cast<int>((end + kAttentionChunk - 1) / kAttentionChunk);
  int now = static_cast<int>(begin / kAttentionChunk), last = chunks;  // the chunk that is computed
  if constexpr (kSplit) {
    now += static_cast<int>(blockIdx.y);
    if (now >= chunks || begin >= end) return;
    last = now + 1;
  }
  const Shared<kRows> s(dynamic_shared(), size);

  const int pitch = (row_bytes + 15) / 16 * 16;  // of values
  const int tile_rows = static_cast<unsigned>(kStageBytes) / static_cast<unsigned>(pitch);
  const int slices = (row_bytes + kSliceBytes - 1) / kSliceBytes;
  const auto range_of = [&](int chunk) {
    ChunkRange range;
    range.start = std::int64_t{chunk} * kAttentionChunk;
    range.begin = begin > range.start ? static_cast<int>(begin - range.start) : 0;
    range.end = end - range.start < kAttentionChunk ? static_cast<int>(end - range.start) : kAttentionChunk;
    return range;
  };
  const auto copy = [&](int chunk, int step, char* stage) {
    const ChunkRange range = range_of(chunk);
    const bool of_keys = step < slices;
    const CacheArray& array = of_keys ? a.keys : a.values;
    RowCopy rows;
    rows.stride = array.position * Step::kItemBytes;
    rows.global = array.data + (tile.b * array.batch + tile.kv_head * array.head) * Step::kItemBytes;
    int first = 0, count = kAttentionChunk;
    if (of_keys) {
      const int offset = step * kSliceBytes;
      rows.global += offset;
      rows.row_bytes = row_bytes - offset < kSliceBytes ? row_bytes - offset : kSliceBytes;
      rows.pitch = kSlicePitch;
    } else {
      first = (step - slices) * tile_rows;
      count = tile_rows;
      rows.row_bytes = row_bytes;
      rows.pitch = pitch;
    }
    rows.global += (range.start + first) * rows.stride;
    rows.begin = range.begin > first ? range.begin - first : 0;
    rows.end = range.end - first < count ? range.end - first : count;
    copy_rows<kThreads>(rows, stage, a.vectors);
    return step + 1 < slices || (step + 1 - slices) * tile_rows < range.end;  // whether the chunk has a next step
  };

  Step compute(a, tile, s);
  float totals[kPasses][Step::kOwn] = {};
  int next = now, next_step = 0, next_stage = 0;  // the step that is copied
  int step = 0, stage = 0, ahead = 1 - a.stages;  // ahead: below 0 while the pipeline fills
#pragma unroll 1
  for (;;) {
    if (next < last) {
      next_step = copy(next, next_step, s.stages + next_stage * kStageBytes) ? next_step + 1 : 0;
      if (next_step == 0) ++next;
      next_stage = next_stage + 1 == a.stages ? 0 : next_stage + 1;
    }
    ptx::copy_commit();
    if (ahead <= 0) {
      if (ahead++ < 0) continue;
      describe_rows<kSplit>(a, tile, s);
      __syncthreads();
      load_queries(a, tile, s);
    }
    if (now >= last) break;
    wait_for_stage(a.stages);
    __syncthreads();
    const ChunkRange range = range_of(now);
    const char* rows = s.stages + stage * kStageBytes;
    bool done = false;
    if (step < slices) {
      constexpr int kSlice = kSliceBytes / Step::kItemBytes;  // elements
      const int first = step * kSlice;
      if (step == 0) compute.start(range);
      compute.add_slice(rows, s.q + first * kRows, size - first < kSlice ? size - first : kSlice);
      if (step + 1 == slices) compute.weigh(range);
    } else {
      const int first = (step - slices) * tile_rows, count = range.end - first;
      compute.add_values(rows, pitch, first, range.begin > first ? range.begin - first : 0,
                         count < tile_rows ? count : tile_rows);
      done = count <= tile_rows;
    }
    __syncthreads();
    ++step;
    stage = stage + 1 == a.stages ? 0 : stage + 1;
    if (!done) continue;
    step = 0;
    ++now;
    if constexpr (!kSplit) {
      prepare_merge(s, tile.rows, range.start);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < Step::kOwn; ++r) {
        const float* factors = s.factors + 2 * (compute.row() + r);
        const numerics::AttentionMerge merge{0.0f, factors[0], factors[1]};
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass)
          totals[pass][r] = numerics::merged<ScalarLanes>(totals[pass][r], compute.out[pass][r], merge);
      }
    }
  }

  const int thread = static_cast<int>(threadIdx.x), row = compute.row();
  if constexpr (kSplit) {
    if (thread < 2 * tile.rows) a.partial_terms[2 * s.to[thread / 2] + thread % 2] = s.chunk[thread];
#pragma unroll
    for (int r = 0; r < Step::kOwn; ++r) {
      if (row + r >= tile.rows) break;
      float* out = a.partial_out + s.to[row + r] * size;
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
        if (compute.element() + pass * kThreads < size) out[compute.element() + pass * kThreads] = compute.out[pass][r];
    }
  } else {
    // The queries' memory takes the totals, so that a loop that is not unrolled stores them.
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
      if (compute.element() + pass * kThreads < size)
        put_rows(s.q + (compute.element() + pass * kThreads) * kRows + row, totals[pass]);
    __syncthreads();
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < static_cast<unsigned>(tile.rows * size); i += kThreads) {
      const unsigned r = i / static_cast<unsigned>(size), d = i - r * size;
      const float sum = s.terms[2 * r + 1], factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      store_float(a.y, a.y_dtype, s.to[r] + d * a.y_strides[3], s.q[d * kRows + r] * factor);
    }
  }
}

constexpr int kMergeThreads = 128;

// Merges the chunks of a query, one after the other. A thread block has a query.
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ AttentionArguments a, const int tile_rows) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const int size = static_cast<int>(a.head_size);
  const unsigned query = blockIdx.x, token = query / static_cast<unsigned>(a.heads);
  const int head = static_cast<int>(query - token * static_cast<unsigned>(a.heads));
  const unsigned b = token / static_cast<unsigned>(a.tokens);
  const int t = static_cast<int>(token - b * static_cast<unsigned>(a.tokens));
  const int row = t * a.group + static_cast<int>(static_cast<unsigned>(head) % static_cast<unsigned>(a.group));
  const numerics::KeyRange seen = seen_by(a, b, row);
  const int base = static_cast<int>(first_chunk(a, b, row / tile_rows, tile_rows));
  const int first = static_cast<int>(seen.begin / kAttentionChunk) - base;
  const int last = seen.begin < seen.end ? static_cast<int>((seen.end - 1) / kAttentionChunk) - base : first - 1;
  const float2* terms = reinterpret_cast<const float2*>(a.partial_terms) + std::int64_t{query} * a.split_chunks;
  const float* parts = a.partial_out + std::int64_t{query} * a.split_chunks * size;
  constexpr int kTogether = 4;  // chunks whose terms and results are loaded before any is merged
#pragma unroll 1
  for (int d = static_cast<int>(threadIdx.x); d < size; d += kMergeThreads) {
    float largest = 0.0f, sum = 0.0f, out = 0.0f;
#pragma unroll 1
    for (int start = first; start <= last; start += kTogether) {
      float2 term[kTogether];
      float part[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (start + k > last) continue;
        term[k] = terms[start + k];
        part[k] = parts[std::int64_t{start + k} * size + d];
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (start + k > last) break;
        if (start + k == first) {
          largest = term[k].x;
          sum = term[k].y;
          out = part[k];
          continue;
        }
        const auto merge = numerics::merge_factors(largest, term[k].x);
        largest = merge.largest;
        sum = numerics::merged<ScalarLanes>(sum, term[k].y, merge);
        out = numerics::merged<ScalarLanes>(out, part[k], merge);
      }
    }
    store_float(a.y, a.y_dtype, b * a.y_strides[0] + t * a.y_strides[1] + head * a.y_strides[2] + d * a.y_strides[3],
                out * (sum == 0.0f ? 0.0f : 1.0f / sum));
  }
}

using AttentionKernel = void (*)(AttentionArguments);

struct KernelChoice {
  AttentionKernel split, whole;
  int rows;
  std::int64_t (*shared_bytes)(std::int64_t head_size, int stages);
};

template <DType kDType, int kRows, int kGroups, int kPasses>
constexpr KernelChoice choice() {
  return {attention_kernel<kDType, kRows, kGroups, kPasses, true>,
          attention_kernel<kDType, kRows, kGroups, kPasses, false>, kRows, Shared<kRows>::bytes};
}

// The largest tile of queries that is not mostly empty and whose arrays fit in shared memory.
template <DType kDType>
KernelChoice choose(std::int64_t rows, std::int64_t head_size, int stages, std::int64_t shared_limit) {
  const auto takes = [&](const KernelChoice& tile) {
    return rows > tile.rows / 2 && tile.shared_bytes(head_size, stages) <= shared_limit;
  };
  if (head_size > kThreads) return choice<kDType, 4, 1, 2>();
  if (head_size > kThreads / 2) {
    constexpr KernelChoice kLarge = choice<kDType, 8, 1, 1>();
    return takes(kLarge) ? kLarge : choice<kDType, 4, 1, 1>();
  }
  constexpr KernelChoice kMax = choice<kDType, 16, 2, 1>(), kLarge = choice<kDType, 8, 2, 1>();
  if (takes(kMax)) return kMax;
  return takes(kLarge) ? kLarge : choice<kDType, 4, 2, 1>();
}

KernelChoice choose(DType dtype, std::int64_t rows, std::int64_t head_size, int stages, std::int64_t shared_limit) {
  switch (dtype) {
    case DType::f16:
      return choose<DType::f16>(rows, head_size, stages, shared_limit);
    case DType::bf16:
      return choose<DType::bf16>(rows, head_size, stages, shared_limit);
    case DType::i8:
      return choose<DType::i8>(rows, head_size, stages, shared_limit);
    default:
      return choose<DType::f32>(rows, head_size, stages, shared_limit);
  }
}

constexpr std::int64_t kMaxHeadSize = 2 * kThreads;
constexpr int kMaxStages = 4;
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

  const std::int64_t rows = a.tokens * a.group, shared_limit = most_shared_bytes(p.device.index);
  // Before sm_80 copies don't overtake the threads, and there is memory for one stage only.
  a.stages = compute_capability(p.device.index) >= 80 ? 2 : 1;
  const KernelChoice chosen = choose(p.cache.keys.dtype, rows, a.head_size, a.stages, shared_limit);
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
  // Few thread blocks have a multiprocessor each and as much of its memory as they like.
  if (a.stages > 1 && blocks * (split ? chunks : 1) <= multiprocessors(p.device.index) &&
      chosen.shared_bytes(a.head_size, kMaxStages) <= shared_limit)
    a.stages = kMaxStages;
  shape.shared_bytes = static_cast<std::size_t>(chosen.shared_bytes(a.head_size, a.stages));
  shape.overlap = compute_capability(p.device.index) >= 90;
  if (!split) return launch("decoder_attention", chosen.whole, shape, stream, a);

  ScratchPlan scratch_plan;
  const auto out = scratch_plan.add<float>(queries * chunks * a.head_size);
  const auto terms = scratch_plan.add<float>(queries * chunks * 2);
  const CudaScratch scratch(scratch_plan, p.device.index, stream);
  a.split_chunks = static_cast<int>(chunks);
  a.partial_out = scratch[out];
  a.partial_terms = scratch[terms];
  launch("decoder_attention", chosen.split, shape, stream, a);
  LaunchShape merge;
  merge.grid = dim3(static_cast<unsigned>(queries));
  merge.block = dim3(kMergeThreads);
  merge.overlap = shape.overlap;
  launch("decoder_attention_merge", merge_kernel, merge, stream, a, chosen.rows);
}

}  // namespace qcore
