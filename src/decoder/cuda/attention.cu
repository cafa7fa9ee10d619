#include <algorithm>

#include "decoder/cuda/attention_stage.cuh"
#include "decoder/cuda/kernels.h"
#include "numerics/attention.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_launch.h"
#include "runtime/cuda_scratch.h"
#include "runtime/cuda_warp.cuh"
#include "runtime/memory.h"
#include "runtime/ptx_launch.cuh"

// Attention of numerics/attention.h. A thread block has a tile of up to kRows queries that share a key head: tokens and
// the heads of a group. It goes through a chunk of 256 positions in three steps:
//
//   scores   a thread has two keys, whose dot products with all queries it adds up in the order of the elements; slices
//            of 128 bytes of the keys pass through shared memory
//   weights  exponentials and their sums in shared memory
//   values   a thread has kPasses elements of the result of all queries and adds in the order of the positions; tiles
//   of
//            32 KiB of the values pass through shared memory
//
// Lengths are read on the device: a recorded graph may be replayed with other ones. A thread block whose chunk lies
// outside of what its queries see ends at once.
namespace qcore {
namespace {

using numerics::kAttentionChunk;
using numerics::kAttentionSums;
using numerics::ScalarLanes;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kKeysPerThread = kAttentionChunk / kThreads;
constexpr int kSliceBytes = 128,
              kSlicePitch = kSliceBytes + 4;  // a pitch of 33 words: threads read words of one column
constexpr int kTileBytes = 32 << 10;
constexpr int kStageVectors = kTileBytes / 16 / kThreads;
static_assert(kAttentionChunk * kSliceBytes == kTileBytes);
constexpr int kStageBytes = kAttentionChunk * kSlicePitch;

// What the queries of a group see of a cache, in strides of elements.
struct CacheArray {
  const char* data;
  const float* scales;  // null unless the dtype is int8
  std::int64_t batch, head, position;
  std::int64_t scale_batch, scale_head, scale_position;
};

struct AttentionArguments {
  const void* q;
  void* y;
  DType q_dtype, y_dtype;
  std::int64_t q_strides[4], y_strides[4];  // of sequences, tokens, heads, elements
  CacheArray keys, values;
  const std::int32_t *past, *first;  // first: null for zeros
  std::int64_t past_stride, first_stride;
  std::int64_t batch, tokens, heads, kv_heads, head_size, window, length_limit;
  float scale, soft_cap;
  int group, tiles;                    // queries of a token that share a key head; tiles of tokens * group
  int split_chunks;                    // 0: a thread block has all chunks
  float *partial_out, *partial_terms;  // [B * T * Hq, split_chunks, D] and [B * T * Hq, split_chunks, 2]
  bool vectors;
};

// Queries of a tile: row r is the token r / group and the head r % group of it.
struct Tile {
  std::int64_t b, kv_head;
  int first_row, rows;  // rows of all [tokens * group]
};

__device__ __forceinline__ std::int64_t token_of(const AttentionArguments& a, int row) { return row / a.group; }
__device__ __forceinline__ std::int64_t head_of(const AttentionArguments& a, const Tile& tile, int row) {
  return tile.kv_head * a.group + row % a.group;
}

// The positions that a row sees, within the cache.
__device__ __forceinline__ numerics::KeyRange seen_by(const AttentionArguments& a, std::int64_t b, int row) {
  const std::int64_t position = a.past[b * a.past_stride] + token_of(a, row);
  const std::int64_t first = a.first ? a.first[b * a.first_stride] : 0;
  numerics::KeyRange range = numerics::visible_keys(position, first > 0 ? first : 0, a.window);
  if (range.end > a.length_limit) range.end = a.length_limit;
  return range;
}

__device__ __forceinline__ std::int64_t first_chunk(const AttentionArguments& a, std::int64_t b, int tile, int rows) {
  return seen_by(a, b, tile * rows).begin / kAttentionChunk;
}

// Rows of weights in shared memory, so that threads write and read 16 bytes without conflicts of banks.
template <int kRows>
constexpr int kWeightPitch = kRows > 4 ? kRows + 4 : kRows;

template <int kRows>
struct Shared {
  float* q;        // [D, kRows]
  float* totals;   // [D, kRows]
  float* terms;    // [kRows, 2]: largest score and sum of all chunks so far
  float* chunk;    // [kRows, 2]: of this chunk
  float* factors;  // [kRows, 2]: of the totals and of the chunk when they are merged
  float* mail;     // [kWarps, kRows]
  int* seen;       // [kRows, 2]: the positions that a row sees, none behind the last row
  float* scales;   // [kAttentionChunk], of an int8 cache's positions
  float* weights;  // [kAttentionChunk, kWeightPitch]
  char* stage;     // kStageBytes
  static constexpr std::int64_t bytes(std::int64_t head_size) {
    return 4 * (2 * kRows * head_size + kRows * (8 + kWarps) + kAttentionChunk * (1 + kWeightPitch<kRows>)) +
           kStageBytes;
  }
  __device__ __forceinline__ Shared(char* memory, std::int64_t head_size) {
    q = reinterpret_cast<float*>(memory);
    totals = q + kRows * head_size;
    weights = totals + kRows * head_size;
    scales = weights + kAttentionChunk * kWeightPitch<kRows>;
    terms = scales + kAttentionChunk;
    chunk = terms + 2 * kRows;
    factors = chunk + 2 * kRows;
    mail = factors + 2 * kRows;
    seen = reinterpret_cast<int*>(mail + kWarps * kRows);
    stage = reinterpret_cast<char*>(seen + 2 * kRows);
  }
};

template <int kRows>
__device__ __forceinline__ void get_rows(const float* from, float (&to)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + r);
    to[r] = four.x, to[r + 1] = four.y, to[r + 2] = four.z, to[r + 3] = four.w;
  }
}
template <int kRows>
__device__ __forceinline__ void put_rows(float* to, const float (&from)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; r += 4)
    *reinterpret_cast<float4*>(to + r) = make_float4(from[r], from[r + 1], from[r + 2], from[r + 3]);
}

template <int kRows>
__device__ __forceinline__ void load_queries(const AttentionArguments& a, const Tile& tile, const Shared<kRows>& s) {
  const int size = static_cast<int>(a.head_size);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * size; i += kThreads) {
    const int r = i / size, d = i - r * size;
    float value = 0.0f;
    if (r < tile.rows) {
      const int row = tile.first_row + r;
      value = load_float(a.q, a.q_dtype,
                         tile.b * a.q_strides[0] + token_of(a, row) * a.q_strides[1] +
                             head_of(a, tile, row) * a.q_strides[2] + d * a.q_strides[3]);
    }
    s.q[d * kRows + r] = value;
    s.totals[d * kRows + r] = 0.0f;
  }
  if (threadIdx.x < 2 * kRows) s.terms[threadIdx.x] = 0.0f;
  if (threadIdx.x < kRows) {
    const int r = static_cast<int>(threadIdx.x);
    numerics::KeyRange range{0, 0};
    if (r < tile.rows) range = seen_by(a, tile.b, tile.first_row + r);
    s.seen[2 * r] = static_cast<int>(range.begin);
    s.seen[2 * r + 1] = static_cast<int>(range.end);
  }
}

// The positions [0, kAttentionChunk) of a chunk of which any row of the tile sees something.
struct ChunkRange {
  std::int64_t start;
  int begin, end;
};

template <DType kDType, int kRows, int kPasses>
class ChunkStep {
 public:
  using Item = typename CacheItem<kDType>::Type;
  static constexpr int kItemBytes = CacheItem<kDType>::kBytes;
  using Stage = RowStage<kThreads, kStageVectors>;

  __device__ __forceinline__ ChunkStep(const AttentionArguments& arguments, const Tile& of, const Shared<kRows>& shared)
      : a(arguments), tile(of), s(shared), thread(static_cast<int>(threadIdx.x)), stage(arguments.vectors) {}

  // Leaves largest scores and sums in s.chunk and the weighted sums of elements thread + pass * kThreads in `out`.
  __device__ __forceinline__ void run(const ChunkRange& range, float (&out)[kPasses][kRows]) {
    float scores[kKeysPerThread][kRows];
    add_products(range, scores);
    // The first tile of the values is under way while the weights are computed.
    const int tile_rows = rows_of_tile();
    load_values(range, 0, tile_rows);
    weigh(range, scores);
    add_values(range, tile_rows, out);
  }

 private:
  __device__ __forceinline__ const char* at(const CacheArray& array, std::int64_t position) const {
    return array.data + (tile.b * array.batch + tile.kv_head * array.head + position * array.position) * kItemBytes;
  }

  __device__ __forceinline__ void load_scales(const CacheArray& array, const ChunkRange& range) const {
    if constexpr (kDType == DType::i8)
      for (int j = thread; j < kAttentionChunk; j += kThreads)
        s.scales[j] = j >= range.begin && j < range.end
                          ? array.scales[tile.b * array.scale_batch + tile.kv_head * array.scale_head +
                                         (range.start + j) * array.scale_position]
                          : 0.0f;
  }

  __device__ __forceinline__ void add_products(const ChunkRange& range, float (&scores)[kKeysPerThread][kRows]) {
    constexpr int kSlice = kSliceBytes / kItemBytes;  // elements
    const int size = static_cast<int>(a.head_size);
    const auto load = [&](int first) {
      const int count = size - first < kSlice ? size - first : kSlice;
      stage.load(at(a.keys, range.start) + first * kItemBytes, a.keys.position * kItemBytes, count * kItemBytes,
                 kAttentionChunk, range.begin, range.end);
    };
#pragma unroll
    for (int k = 0; k < kKeysPerThread; ++k)
#pragma unroll
      for (int r = 0; r < kRows; ++r) scores[k][r] = 0.0f;
    load(0);
    load_scales(a.keys, range);
    for (int first = 0; first < size; first += kSlice) {
      stage.store(s.stage, kSlicePitch);
      __syncthreads();
      const int count = size - first < kSlice ? size - first : kSlice;
      if (first + kSlice < size) load(first + kSlice);
      add_slice(s.q + first * kRows, count, scores);
      __syncthreads();
    }
  }

  __device__ __forceinline__ void add_slice(const float* q, int count, float (&scores)[kKeysPerThread][kRows]) const {
    constexpr int kItems = 4 / kItemBytes;  // of a word
    const auto* words = reinterpret_cast<const std::uint32_t*>(s.stage) + thread * (kSlicePitch / 4);
    float scales[kKeysPerThread];
    if constexpr (kDType == DType::i8)
#pragma unroll
      for (int k = 0; k < kKeysPerThread; ++k) scales[k] = s.scales[thread + k * kThreads];
#pragma unroll 2
    for (int word = 0; word < (count + kItems - 1) / kItems; ++word) {
      float keys[kKeysPerThread][kItems];
#pragma unroll
      for (int k = 0; k < kKeysPerThread; ++k) {
        widen_word<kDType>(words[k * kThreads * (kSlicePitch / 4) + word], keys[k]);
        if constexpr (kDType == DType::i8)
#pragma unroll
          for (int i = 0; i < kItems; ++i) keys[k][i] *= scales[k];
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (word * kItems + i >= count) break;
        float queries[kRows];
        get_rows(q + (word * kItems + i) * kRows, queries);
#pragma unroll
        for (int k = 0; k < kKeysPerThread; ++k)
#pragma unroll
          for (int r = 0; r < kRows; ++r) scores[k][r] = numerics::fma_once(queries[r], keys[k][i], scores[k][r]);
      }
    }
  }

  // From products to weights.
  __device__ __forceinline__ void weigh(const ChunkRange& range, float (&scores)[kKeysPerThread][kRows]) {
    const float lowest = numerics::bits_float(numerics::kInfinityBits | 0x80000000u);
    const int lane = thread % kWarpSize, warp = thread / kWarpSize;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int start = static_cast<int>(range.start), begin = s.seen[2 * r] - start, end = s.seen[2 * r + 1] - start;
      float largest = lowest;
#pragma unroll
      for (int k = 0; k < kKeysPerThread; ++k) {
        const int j = thread + k * kThreads;
        scores[k][r] =
            j >= begin && j < end ? numerics::attention_score<ScalarLanes>(scores[k][r], a.scale, a.soft_cap) : lowest;
        largest = scores[k][r] > largest ? scores[k][r] : largest;
      }
      largest = warp_max(largest);
      if (lane == 0) s.mail[warp * kRows + r] = largest;
    }
    __syncthreads();
    float largest[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = s.mail[r];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {
        const float other = s.mail[w * kRows + r];
        largest[r] = other > largest[r] ? other : largest[r];
      }
      if (thread == 0) s.chunk[2 * r] = largest[r];
    }
#pragma unroll
    for (int k = 0; k < kKeysPerThread; ++k) {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        scores[k][r] =
            scores[k][r] == lowest ? 0.0f : numerics::exp_of_negative<ScalarLanes>(scores[k][r] - largest[r]);
      put_rows(s.weights + (thread + k * kThreads) * kWeightPitch<kRows>, scores[k]);
    }
    load_scales(a.values, range);
    __syncthreads();
    // Half a warp for each row.
    static_assert(kAttentionSums == kWarpSize / 2);
    for (int r = thread / kAttentionSums; r < kRows; r += kThreads / kAttentionSums) {
      float sum = 0.0f;
#pragma unroll
      for (int j = thread % kAttentionSums; j < kAttentionChunk; j += kAttentionSums)
        sum += s.weights[j * kWeightPitch<kRows> + r];
#pragma unroll
      for (int half = kAttentionSums / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kAllLanes, sum, half);
      if (thread % kAttentionSums == 0) s.chunk[2 * r + 1] = sum;
    }
  }

  __device__ __forceinline__ int rows_of_tile() const {
    const int rows = kTileBytes / static_cast<int>(a.head_size * kItemBytes);
    return rows < kAttentionChunk ? rows : kAttentionChunk;
  }

  __device__ __forceinline__ void load_values(const ChunkRange& range, int first, int tile_rows) {
    const int rows = kAttentionChunk - first < tile_rows ? kAttentionChunk - first : tile_rows;
    stage.load(at(a.values, range.start + first), a.values.position * kItemBytes,
               static_cast<int>(a.head_size) * kItemBytes, rows, range.begin - first, range.end - first);
  }

  __device__ __forceinline__ void add_values(const ChunkRange& range, int tile_rows, float (&out)[kPasses][kRows]) {
    const int size = static_cast<int>(a.head_size);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
      for (int r = 0; r < kRows; ++r) out[pass][r] = 0.0f;
    const int pitch = (size * kItemBytes + 3) / 4 * 4;
    for (int first = 0; first < range.end; first += tile_rows) {
      stage.store(s.stage, pitch);
      __syncthreads();
      if (first + tile_rows < range.end) load_values(range, first + tile_rows, tile_rows);
      const int last = range.end - first < tile_rows ? range.end - first : tile_rows;
      const int start = range.begin > first ? range.begin - first : 0;
#pragma unroll 4
      for (int j = start; j < last; ++j) {
        float weights[kRows];
        get_rows(s.weights + (first + j) * kWeightPitch<kRows>, weights);
        const auto* row = reinterpret_cast<const Item*>(s.stage + j * pitch);
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          const int d = thread + pass * kThreads;
          if (d >= size) continue;
          float value = widened<kDType>(row[d]);
          if constexpr (kDType == DType::i8) value *= s.scales[first + j];
#pragma unroll
          for (int r = 0; r < kRows; ++r) out[pass][r] = numerics::fma_once(weights[r], value, out[pass][r]);
        }
      }
      __syncthreads();
    }
  }

  const AttentionArguments& a;
  const Tile& tile;
  const Shared<kRows>& s;
  const int thread;
  Stage stage;
};

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
