#include "numerics/attention.h"

#include <algorithm>
#include <atomic>

#include "decoder/cpu/row_access.h"
#include "decoder/dispatch.h"
#include "qcore/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

// Drives the attention kernel of one instruction set. A task is a tile of the queries that share a key head, over all
// of their keys or, where there are few tiles, over one chunk: then its results wait until all chunks are merged.
namespace qcore {
namespace {

constexpr std::int64_t kTileRows = 64;
// Below this many multiply-adds a call is over before a second thread has begun.
constexpr std::int64_t kSerialWork = 1 << 17;
constexpr std::int64_t kTasksPerThread = 4;  // fewer tiles than that are split into chunks

class CpuAttention {
 public:
  CpuAttention(const AttentionProblem& problem, const DecoderKernels& kernels)
      : p_(problem),
        kernels_(kernels),
        batch_(problem.q.shape[0]),
        tokens_(problem.q.shape[1]),
        head_size_(problem.q.shape[3]),
        key_heads_(problem.cache.keys.shape[1]),
        group_(problem.q.shape[2] / key_heads_),
        tile_tokens_(std::min(tokens_, std::max<std::int64_t>(1, kTileRows / group_))),
        tiles_(ceil_div(tokens_, tile_tokens_)),
        padded_size_(round_up(head_size_, kHeadPadding)) {}

  void run() {
    std::int64_t longest = 0, total = 0;
    for (std::int64_t b = 0; b < batch_; ++b) {
      const std::int64_t length = load_index(p_.past, b) + tokens_;
      longest = std::max(longest, length);
      total += length;
    }
    const std::int64_t tasks = batch_ * key_heads_ * tiles_, chunks = ceil_div(longest, numerics::kAttentionChunk);
    const bool parallel = 2 * total * tokens_ * p_.q.shape[2] * head_size_ >= kSerialWork;
    if (parallel && chunks > 1 && tasks < kTasksPerThread * get_num_threads())
      run_split(tasks, chunks);
    else
      for_each(tasks, parallel, [&](std::int64_t task) { run_tile(task); });
  }

 private:
  struct Place {
    std::int64_t b, head, first_token, rows;
  };

  template <class Task>
  static void for_each(std::int64_t tasks, bool parallel, const Task& task) {
    if (parallel)
      parallel_for(tasks, task);
    else
      for (std::int64_t i = 0; i < tasks; ++i) task(i);
  }

  // The last tiles, which see the most keys, come first.
  Place place_of(std::int64_t task) const {
    const std::int64_t tile = tiles_ - 1 - task % tiles_, first = tile * tile_tokens_;
    const std::int64_t pair = task / tiles_;
    return {pair / key_heads_, pair % key_heads_, first, (std::min(tokens_, first + tile_tokens_) - first) * group_};
  }

  AttentionTile tile_of(const Place& place, Scratch& scratch) const {
    const KeyValueCache& cache = p_.cache;
    AttentionTile tile{};
    tile.rows = place.rows;
    tile.group = group_;
    tile.head_size = head_size_;
    float* queries = scratch.take<float>(place.rows * head_size_);
    for (std::int64_t r = 0; r < place.rows; ++r)
      load_row(kernels_, head_of(p_.q, place.b, place.first_token + r / group_, place.head * group_ + r % group_),
               head_size_, queries + r * head_size_);
    tile.queries = queries;
    tile.dtype = static_cast<int>(cache.keys.dtype);
    tile.keys = head_data(cache.keys, place);
    tile.values = head_data(cache.values, place);
    tile.key_stride = cache.keys.strides[2];
    tile.value_stride = cache.values.strides[2];
    if (cache.key_scales.rank) {
      tile.key_scales = static_cast<const float*>(head_data(cache.key_scales, place));
      tile.value_scales = static_cast<const float*>(head_data(cache.value_scales, place));
      tile.key_scale_stride = cache.key_scales.strides[2];
      tile.value_scale_stride = cache.value_scales.strides[2];
    }
    tile.first_position = load_index(p_.past, place.b) + place.first_token;
    tile.first = p_.first.rank ? load_index(p_.first, place.b) : 0;
    tile.window = p_.window;
    tile.scale = p_.scale;
    tile.soft_cap = p_.soft_cap;
    tile.scores = scratch.take<float>(place.rows * numerics::kAttentionChunk);
    tile.key_panel = scratch.take<float>(head_size_ * kPanelKeys);
    tile.value_panel = scratch.take<float>(padded_size_ * kPanelKeys);
    return tile;
  }

  static const void* head_data(const TensorView& cache, const Place& place) {
    const std::int64_t offset = place.b * cache.strides[0] + place.head * cache.strides[1];
    return static_cast<const char*>(cache.data) + offset * item_size(cache.dtype);
  }

  // The chunks that a tile's rows see.
  static numerics::KeyRange chunks_of(const AttentionTile& tile) {
    const auto lower = numerics::visible_keys(tile.first_position, tile.first, tile.window);
    const auto upper =
        numerics::visible_keys(tile.first_position + (tile.rows - 1) / tile.group, tile.first, tile.window);
    return {lower.begin / numerics::kAttentionChunk, ceil_div(upper.end, numerics::kAttentionChunk)};
  }

  void run_tile(std::int64_t task) const {
    const Place place = place_of(task);
    Scratch scratch;
    AttentionTile tile = tile_of(place, scratch);
    tile.largest = scratch.take<float>(place.rows);
    tile.sums = scratch.take<float>(place.rows);
    tile.out = scratch.take<float>(place.rows * padded_size_);
    tile.chunk_largest = scratch.take<float>(place.rows);
    tile.chunk_sums = scratch.take<float>(place.rows);
    tile.chunk_out = scratch.take<float>(place.rows * padded_size_);
    const auto chunks = chunks_of(tile);
    tile.begin_chunk = chunks.begin;
    tile.end_chunk = chunks.end;
    kernels_.attend(tile);
    store(place, tile.sums, tile.out);
  }

  void run_split(std::int64_t tasks, std::int64_t chunks) const {
    const std::int64_t rows = tile_tokens_ * group_, parts = tasks * chunks;
    Scratch shared;
    float* largest = shared.take<float>(parts * rows);
    float* sums = shared.take<float>(parts * rows);
    float* out = shared.take<float>(parts * rows * padded_size_);
    parallel_for(parts, [&](std::int64_t part) {
      const Place place = place_of(part / chunks);
      Scratch scratch;
      AttentionTile tile = tile_of(place, scratch);
      tile.largest = largest + part * rows;
      tile.sums = sums + part * rows;
      tile.out = out + part * rows * padded_size_;
      tile.begin_chunk = part % chunks;
      tile.end_chunk = tile.begin_chunk + 1;
      kernels_.attend(tile);
    });
    for_each(tasks, parts * rows * padded_size_ >= kSerialWork, [&](std::int64_t task) {
      const std::int64_t first = task * chunks;
      const Place place = place_of(task);
      for (std::int64_t chunk = 1; chunk < chunks; ++chunk)
        for (std::int64_t r = 0; r < place.rows; ++r) {
          const std::int64_t to = first * rows + r, from = (first + chunk) * rows + r;
          kernels_.merge_row(largest + to, sums + to, out + to * padded_size_, largest + from, sums + from,
                             out + from * padded_size_, head_size_);
        }
      store(place, sums + first * rows, out + first * rows * padded_size_);
    });
  }

  // Divides by the sums and writes the results.
  void store(const Place& place, const float* sums, float* out) const {
    Scratch scratch;
    float* row = scratch.take<float>(round_up(head_size_, kRowPadding));
    for (std::int64_t r = 0; r < place.rows; ++r) {
      std::copy(out + r * padded_size_, out + r * padded_size_ + head_size_, row);
      kernels_.scale_row(row, sums[r] == 0.0f ? 0.0f : 1.0f / sums[r], head_size_);
      store_row(kernels_, row, head_size_,
                writable_head_of(p_.y, place.b, place.first_token + r / group_, place.head * group_ + r % group_));
    }
  }

  const AttentionProblem& p_;
  const DecoderKernels& kernels_;
  const std::int64_t batch_, tokens_, head_size_, key_heads_, group_;
  const std::int64_t tile_tokens_, tiles_, padded_size_;
};

}  // namespace

void run_attention_cpu(const AttentionProblem& problem, const DecoderKernels& kernels) {
  CpuAttention(problem, kernels).run();
}

}  // namespace qcore
