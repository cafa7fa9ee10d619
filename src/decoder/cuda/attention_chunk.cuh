#pragma once

#include "decoder/cuda/attention_stage.cuh"
#include "decoder/cuda/elements.cuh"
#include "numerics/attention.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"

// Attention of numerics/attention.h. A thread block has a tile of up to kRows queries that share a key head: tokens and
// the heads of a group. It goes through chunks of 256 positions in steps, each of which uses one stage of a pipeline of
// copies:
//
//   keys     slices of 128 bytes of all keys: a thread has a key, whose dot products with all queries it adds up in the
//            order of the elements. After the last slice the products become weights in shared memory
//   values   tiles of whole rows: a thread has kPasses elements of the result of kRows / kGroups queries and adds in
//            the order of the positions
//
// A decoding step runs through the code once, so that fetching it costs more than executing it: each part of it exists
// once, and its loops are unrolled no further than they need to be to hide the latency of shared memory.
//
// Lengths are read on the device: a recorded graph may be replayed with other ones. A thread block whose chunk lies
// outside of what its queries see ends at once.
namespace qcore {
namespace {

using numerics::kAttentionChunk;
using numerics::kAttentionSums;
using numerics::ScalarLanes;

constexpr int kThreads = kAttentionChunk;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSliceBytes = 128;
constexpr int kSlicePitch = kSliceBytes + 16;  // eight threads read 16 bytes of one column each from all banks
constexpr int kStageBytes = kAttentionChunk * kSlicePitch;

// The part of a cache that the queries of a group see; strides are in elements.
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
  int stages;                          // of the pipeline: 1, 2 or 4
  bool vectors;
};

// Queries of a tile: row r is the token r / group and the head r % group of it.
struct Tile {
  std::int64_t b, kv_head;
  int first_row, rows;  // rows of all [tokens * group]
};

__device__ __forceinline__ int token_of(const AttentionArguments& a, int row) {
  return static_cast<int>(static_cast<unsigned>(row) / static_cast<unsigned>(a.group));
}
__device__ __forceinline__ std::int64_t head_of(const AttentionArguments& a, const Tile& tile, int row) {
  return tile.kv_head * a.group + static_cast<int>(static_cast<unsigned>(row) % static_cast<unsigned>(a.group));
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
  float* q;                 // [D, kRows]
  float* terms;             // [kRows, 2]: largest score and sum of all chunks so far
  float* chunk;             // [kRows, 2]: of this chunk
  float* factors;           // [kRows, 2]: of the totals and of the chunk when they are merged
  float* mail;              // [kWarps, kRows]
  int* seen;                // [kRows, 2]: the positions that a row sees, none behind the last row
  std::int64_t *from, *to;  // [kRows]: offsets of a row's query and of its result, or of its partial result
  float* scales;            // [kAttentionChunk], of an int8 cache's values
  float* weights;           // [kAttentionChunk, kWeightPitch]
  char* stages;             // [stages, kStageBytes]
  static constexpr std::int64_t bytes(std::int64_t head_size, int stages) {
    return 4 * (kRows * head_size + kRows * (12 + kWarps) + kAttentionChunk * (1 + kWeightPitch<kRows>)) +
           stages * kStageBytes;
  }
  __device__ __forceinline__ Shared(char* memory, int head_size) {
    q = reinterpret_cast<float*>(memory);
    weights = q + kRows * head_size;
    scales = weights + kAttentionChunk * kWeightPitch<kRows>;
    terms = scales + kAttentionChunk;
    chunk = terms + 2 * kRows;
    factors = chunk + 2 * kRows;
    mail = factors + 2 * kRows;
    seen = reinterpret_cast<int*>(mail + kWarps * kRows);
    from = reinterpret_cast<std::int64_t*>(seen + 2 * kRows);
    to = from + kRows;
    stages = reinterpret_cast<char*>(to + kRows);
  }
};

// The floats of neighboring rows.
template <int kCount>
__device__ __forceinline__ void get_rows(const float* from, float (&to)[kCount]) {
  if constexpr (kCount == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    to[0] = two.x, to[1] = two.y;
  } else {
#pragma unroll
    for (int r = 0; r < kCount; r += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + r);
      to[r] = four.x, to[r + 1] = four.y, to[r + 2] = four.z, to[r + 3] = four.w;
    }
  }
}
template <int kCount>
__device__ __forceinline__ void put_rows(float* to, const float (&from)[kCount]) {
#pragma unroll
  for (int r = 0; r < kCount; r += kCount < 4 ? 1 : 4) {
    if constexpr (kCount < 4)
      to[r] = from[r];
    else
      *reinterpret_cast<float4*>(to + r) = make_float4(from[r], from[r + 1], from[r + 2], from[r + 3]);
  }
}

// Prepares what is known of the rows of a tile.
template <bool kSplit, int kRows>
__device__ __forceinline__ void describe_rows(const AttentionArguments& a, const Tile& tile, const Shared<kRows>& s) {
  const int r = static_cast<int>(threadIdx.x);
  if (r >= kRows) return;
  numerics::KeyRange range{0, 0};
  if (r < tile.rows) {
    const int row = tile.first_row + r, token = token_of(a, row);
    const std::int64_t head = head_of(a, tile, row);
    range = seen_by(a, tile.b, row);
    s.from[r] = tile.b * a.q_strides[0] + token * a.q_strides[1] + head * a.q_strides[2];
    s.to[r] = kSplit ? ((tile.b * a.tokens + token) * a.heads + head) * a.split_chunks + blockIdx.y
                     : tile.b * a.y_strides[0] + token * a.y_strides[1] + head * a.y_strides[2];
  }
  s.seen[2 * r] = static_cast<int>(range.begin);
  s.seen[2 * r + 1] = static_cast<int>(range.end);
  s.terms[2 * r] = s.terms[2 * r + 1] = 0.0f;
}

template <int kRows>
__device__ __forceinline__ void load_queries(const AttentionArguments& a, const Tile& tile, const Shared<kRows>& s) {
  constexpr int kTogether = 2;  // loads that are under way at a time
  const unsigned size = static_cast<unsigned>(a.head_size);
  const bool wide = a.q_dtype == DType::f32, half = a.q_dtype == DType::f16;
#pragma unroll 1
  for (unsigned start = threadIdx.x; start < kRows * size; start += kTogether * kThreads) {
    std::uint32_t bits[kTogether];
    unsigned to[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const unsigned i = start + k * kThreads, r = i / size, d = i - r * size;
      bits[k] = 0;
      to[k] = d * kRows + r;
      if (static_cast<int>(r) >= tile.rows) continue;
      const std::int64_t at = s.from[r] + d * a.q_strides[3];
      bits[k] = wide ? static_cast<const std::uint32_t*>(a.q)[at] : static_cast<const std::uint16_t*>(a.q)[at];
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const auto low = static_cast<std::uint16_t>(bits[k]);
      const float value = wide   ? numerics::bits_float(bits[k])
                          : half ? numerics::half_to_float(low)
                                 : numerics::bfloat_to_float(low);
      if (start + k * kThreads < kRows * size) s.q[to[k]] = value;
    }
  }
}

// The positions [0, kAttentionChunk) of a chunk of which any row of the tile sees something.
struct ChunkRange {
  std::int64_t start;
  int begin, end;
};

// Computes one thread's part of a chunk.
template <DType kDType, int kRows, int kGroups, int kPasses>
class ChunkStep {
 public:
  using Item = typename CacheItem<kDType>::Type;
  static constexpr int kItemBytes = CacheItem<kDType>::kBytes;
  static constexpr int kOwn = kRows / kGroups, kSpan = kThreads / kGroups;

  __device__ __forceinline__ ChunkStep(const AttentionArguments& arguments, const Tile& of, const Shared<kRows>& shared)
      : a(arguments), tile(of), s(shared), thread(static_cast<int>(threadIdx.x)) {}

  // The first of the elements of the result that this thread has, and the first of their rows.
  __device__ __forceinline__ int element() const { return thread % kSpan; }
  __device__ __forceinline__ int row() const { return thread / kSpan * kOwn; }

  __device__ __forceinline__ void start(const ChunkRange& range) {
#pragma unroll
    for (float& score : scores_) score = 0.0f;
#pragma unroll
    for (auto& pass : out)
#pragma unroll
      for (float& value : pass) value = 0.0f;
    if constexpr (kDType == DType::i8) {
      const bool inside = thread >= range.begin && thread < range.end;
      key_scale_ = inside ? scale_at(a.keys, range.start + thread) : 0.0f;
      s.scales[thread] = inside ? scale_at(a.values, range.start + thread) : 0.0f;
    }
  }

  // Adds the products of `count` elements of the queries at `q` and of the thread's key in a stage.
  __device__ __forceinline__ void add_slice(const char* stage, const float* q, int count) {
    constexpr int kWord = kWordItems<kDType>, kItems = 4 * kWord;
    const char* key = stage + thread * kSlicePitch;
#pragma unroll 1
    for (; count >= kItems; count -= kItems, key += 16, q += kItems * kRows) {
      const uint4 four = *reinterpret_cast<const uint4*>(key);
      const std::uint32_t words[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float keys[kWord];
        widen_word<kDType>(words[w], keys);
#pragma unroll
        for (int i = 0; i < kWord; ++i) add_product(q + (w * kWord + i) * kRows, keys[i]);
      }
    }
#pragma unroll 1
    for (; count > 0; --count, key += kItemBytes, q += kRows)
      add_product(q, widened<kDType>(*reinterpret_cast<const Item*>(key)));
  }

  // Turns the products of a chunk into weights, largest scores and sums.
  __device__ __forceinline__ void weigh(const ChunkRange& range) {
    const float lowest = numerics::bits_float(numerics::kInfinityBits | 0x80000000u);
    const int lane = thread % kWarpSize, warp = thread / kWarpSize, start = static_cast<int>(range.start);
    float* own = s.weights + thread * kWeightPitch<kRows>;
    if (a.soft_cap != 0.0f) {
      // The thread's memory lets a loop that is not unrolled go over registers.
      put_rows(own, scores_);
#pragma unroll 1
      for (int r = 0; r < kRows; ++r) own[r] = numerics::attention_score<ScalarLanes>(own[r], a.scale, a.soft_cap);
      get_rows(own, scores_);
    } else {
#pragma unroll
      for (float& score : scores_) score = numerics::attention_score<ScalarLanes>(score, a.scale, 0.0f);
    }
    // All rows at once, so that their shuffles overlap.
    float largest[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool behind = thread + start >= s.seen[2 * r], before = thread + start < s.seen[2 * r + 1];
      scores_[r] = behind & before ? scores_[r] : lowest;
      largest[r] = scores_[r];
    }
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float other = __shfl_xor_sync(kAllLanes, largest[r], distance);
        largest[r] = other > largest[r] ? other : largest[r];
      }
    if (lane == 0) put_rows(s.mail + warp * kRows, largest);
    __syncthreads();
    get_rows(s.mail, largest);
#pragma unroll 1
    for (int w = 1; w < kWarps; ++w) {
      float others[kRows];
      get_rows(s.mail + w * kRows, others);
#pragma unroll
      for (int r = 0; r < kRows; ++r) largest[r] = others[r] > largest[r] ? others[r] : largest[r];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (thread == 0) s.chunk[2 * r] = largest[r];
      const float weight = numerics::exp_of_negative<ScalarLanes>(scores_[r] - largest[r]);
      scores_[r] = scores_[r] == lowest ? 0.0f : weight;
    }
    put_rows(own, scores_);
    __syncthreads();
    // Half a warp for each row.
    static_assert(kAttentionSums == kWarpSize / 2 && kRows * kAttentionSums <= kThreads && kRows % 2 == 0);
    if (thread >= kRows * kAttentionSums) return;
    const int r = thread / kAttentionSums;
    const float* weights = s.weights + thread % kAttentionSums * kWeightPitch<kRows> + r;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kAttentionChunk; j += kAttentionSums) sum += weights[j * kWeightPitch<kRows>];
#pragma unroll
    for (int half = kAttentionSums / 2; half > 0; half /= 2) sum += __shfl_xor_sync(kAllLanes, sum, half);
    if (thread % kAttentionSums == 0) s.chunk[2 * r + 1] = sum;
  }

  // Adds the values of the positions [begin, end) in a stage that starts at position `first`.
  __device__ __forceinline__ void add_values(const char* stage, int pitch, int first, int begin, int end) {
    const int size = static_cast<int>(a.head_size), d = element();
    if (d >= size) return;
    const float* weights = s.weights + (first + begin) * kWeightPitch<kRows> + row();
    const char* value = stage + begin * pitch + d * kItemBytes;
#pragma unroll kPasses* kOwn> 4 ? 4 : 8
    for (int j = begin; j < end; ++j, weights += kWeightPitch<kRows>, value += pitch) {
      float factors[kOwn];
      get_rows(weights, factors);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        if (pass > 0 && d + pass * kThreads >= size) break;
        float element = widened<kDType>(reinterpret_cast<const Item*>(value)[pass * kThreads]);
        if constexpr (kDType == DType::i8) element *= s.scales[first + j];
#pragma unroll
        for (int r = 0; r < kOwn; ++r) out[pass][r] = numerics::fma_once(factors[r], element, out[pass][r]);
      }
    }
  }

  float out[kPasses][kOwn];  // elements element() + pass * kThreads of the chunk's result

 private:
  __device__ __forceinline__ float scale_at(const CacheArray& array, std::int64_t position) const {
    return array.scales[tile.b * array.scale_batch + tile.kv_head * array.scale_head + position * array.scale_position];
  }

  __device__ __forceinline__ void add_product(const float* q, float key) {
    float queries[kRows];
    get_rows(q, queries);
    if constexpr (kDType == DType::i8) key *= key_scale_;
#pragma unroll
    for (int r = 0; r < kRows; ++r) scores_[r] = numerics::fma_once(queries[r], key, scores_[r]);
  }

  const AttentionArguments& a;
  const Tile& tile;
  const Shared<kRows>& s;
  const int thread;
  float scores_[kRows];
  float key_scale_ = 0.0f;
};

}  // namespace
}  // namespace qcore
