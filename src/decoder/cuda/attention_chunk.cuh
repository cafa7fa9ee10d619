#pragma once

#include "decoder/cuda/attention_stage.cuh"
#include "numerics/attention.h"
#include "runtime/cuda_launch.h"
#include "runtime/cuda_warp.cuh"

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

}  // namespace
}  // namespace qcore
