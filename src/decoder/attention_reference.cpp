#include <algorithm>
#include <limits>

#include "decoder/dispatch.h"
#include "formats/element.h"
#include "numerics/attention.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

// numerics/attention.h, one query at a time.
namespace qcore {
namespace {

using numerics::ScalarLanes;

// One key head of one sequence in a cache.
struct CachedHead {
  const TensorView &array, &scales;
  std::int64_t b, head;

  float element(std::int64_t position, std::int64_t d) const {
    const std::int64_t at = b * array.strides[0] + head * array.strides[1] + position * array.strides[2] + d;
    if (array.dtype != DType::i8) return load_float(array.data, array.dtype, at);
    const float scale = static_cast<const float*>(
        scales.data)[b * scales.strides[0] + head * scales.strides[1] + position * scales.strides[2]];
    return static_cast<float>(static_cast<const std::int8_t*>(array.data)[at]) * scale;
  }
};

struct Accumulated {
  float largest, sum;
  float* out;
};

// Attention over the keys [begin, end) of one chunk.
void attend_chunk(const AttentionProblem& p, const float* q, std::int64_t size, const CachedHead& keys,
                  const CachedHead& values, std::int64_t begin, std::int64_t end, Accumulated& result) {
  float weights[numerics::kAttentionChunk], sums[numerics::kAttentionSums] = {};
  result.largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t j = begin; j < end; ++j) {
    float dot = 0.0f;
    for (std::int64_t d = 0; d < size; ++d) dot = numerics::fma_once(q[d], keys.element(j, d), dot);
    weights[j - begin] = numerics::attention_score<ScalarLanes>(dot, p.scale, p.soft_cap);
    result.largest = std::max(result.largest, weights[j - begin]);
  }
  std::fill(result.out, result.out + size, 0.0f);
  for (std::int64_t j = begin; j < end; ++j) {
    const float weight = numerics::exp_of_negative<ScalarLanes>(weights[j - begin] - result.largest);
    sums[j % numerics::kAttentionSums] += weight;
    for (std::int64_t d = 0; d < size; ++d)
      result.out[d] = numerics::fma_once(weight, values.element(j, d), result.out[d]);
  }
  result.sum = numerics::add_by_halves<numerics::kAttentionSums>(sums);
}

void attend(const AttentionProblem& p, std::int64_t b, std::int64_t t, std::int64_t head) {
  const std::int64_t size = p.q.shape[3], group = p.q.shape[2] / p.cache.keys.shape[1];
  Scratch scratch;
  float* q = scratch.take<float>(size);
  for (std::int64_t d = 0; d < size; ++d)
    q[d] = load_float(p.q.data, p.q.dtype,
                      b * p.q.strides[0] + t * p.q.strides[1] + head * p.q.strides[2] + d * p.q.strides[3]);
  const auto seen =
      numerics::visible_keys(load_index(p.past, b) + t, p.first.rank ? load_index(p.first, b) : 0, p.window);
  const CachedHead keys{p.cache.keys, p.cache.key_scales, b, head / group};
  const CachedHead values{p.cache.values, p.cache.value_scales, b, head / group};
  Accumulated total{0.0f, 0.0f, scratch.take<float>(size)}, chunk{0.0f, 0.0f, scratch.take<float>(size)};
  std::fill(total.out, total.out + size, 0.0f);
  for (std::int64_t begin = seen.begin; begin < seen.end;) {
    const std::int64_t chunk_end = (begin / numerics::kAttentionChunk + 1) * numerics::kAttentionChunk;
    const std::int64_t end = std::min(seen.end, chunk_end);
    attend_chunk(p, q, size, keys, values, begin, end, chunk);
    if (begin == seen.begin) {
      std::swap(total, chunk);
    } else {
      const auto merge = numerics::merge_factors(total.largest, chunk.largest);
      total.largest = merge.largest;
      total.sum = numerics::merged<ScalarLanes>(total.sum, chunk.sum, merge);
      for (std::int64_t d = 0; d < size; ++d)
        total.out[d] = numerics::merged<ScalarLanes>(total.out[d], chunk.out[d], merge);
    }
    begin = end;
  }
  const float factor = total.sum == 0.0f ? 0.0f : 1.0f / total.sum;
  for (std::int64_t d = 0; d < size; ++d)
    store_float(p.y.data, p.y.dtype,
                b * p.y.strides[0] + t * p.y.strides[1] + head * p.y.strides[2] + d * p.y.strides[3],
                total.out[d] * factor);
}

}  // namespace

void run_attention_reference(const AttentionProblem& p) {
  const std::int64_t tokens = p.q.shape[1], heads = p.q.shape[2];
  parallel_for(p.q.shape[0] * tokens * heads,
               [&](std::int64_t i) { attend(p, i / (tokens * heads), i / heads % tokens, i % heads); });
}

}  // namespace qcore
