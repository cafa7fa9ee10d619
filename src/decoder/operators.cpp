#include <algorithm>
#include <cmath>

#include "decoder/checks.h"
#include "decoder/dispatch.h"
#include "formats/row_view.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

// Checks of the decoder's public operators.
namespace qcore::decoder {
namespace {

bool is_same_array(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank && std::equal(a.shape, a.shape + a.rank, b.shape) &&
         std::equal(a.strides, a.strides + a.rank, b.strides);
}

void check_x(const char* op, const char* argument, const TensorView& x) {
  check_floating(op, argument, x);
  QCORE_CHECK_VALUE(x.rank > 0, op, ": ", argument, " has shape [], expected at least one axis");
}

// An output of a given shape on the device of x; `in_place` says that it may be x itself.
void check_result(const char* op, const char* argument, const TensorView& y, const char* like, const TensorView& x,
                  int rank, const std::int64_t* shape, bool in_place) {
  check_floating(op, argument, y);
  check_device(op, argument, y, x.device, like);
  check_shape(op, argument, y, rank, shape);
  check_output(op, argument, y);
  if (!in_place || !is_same_array(x, y)) check_disjoint(op, argument, y, like, x);
}

}  // namespace

NormProblem checked_norm(const char* op, const TensorView& x, const TensorView* weight, const TensorView* residual,
                         const RmsNormOptions& options) {
  check_x(op, "x", x);
  QCORE_CHECK_VALUE(options.eps >= 0.0f && options.eps <= 1e30f, op, ": eps is ", options.eps,
                    ", expected a number from 0 to 1e30");
  QCORE_CHECK_VALUE(std::isfinite(options.offset), op, ": offset is ", options.offset, ", expected a finite number");
  NormProblem problem;
  if (residual) {
    check_result(op, "residual", *residual, "x", x, x.rank, x.shape, false);
    problem.residual = row_view(*residual);
  }
  if (weight) {
    const std::int64_t shape[] = {x.shape[x.rank - 1]};
    check_floating(op, "weight", *weight);
    check_device(op, "weight", *weight, x.device, "x");
    check_shape(op, "weight", *weight, 1, shape);
    if (residual) check_disjoint(op, "residual", *residual, "weight", *weight);
    problem.weight = *weight;
  }
  problem.x = row_view(x);
  problem.count = x.shape[x.rank - 1];
  problem.rows = problem.count ? x.size() / problem.count : 0;
  problem.eps = options.eps;
  problem.offset = options.offset;
  problem.round_normalized = options.round_normalized;
  problem.device = x.device;
  problem.stream = options.stream;
  return problem;
}

GateProblem checked_gate(const char* op, const TensorView& x, const GatedOptions& options) {
  check_x(op, "x", x);
  const std::int64_t columns = x.shape[x.rank - 1];
  QCORE_CHECK_VALUE(columns % 2 == 0, op, ": x has shape ", shape_string(x),
                    ", expected an even last dimension: the gate, then what it multiplies");
  GateProblem problem;
  problem.x = row_view(x);
  problem.count = columns / 2;
  problem.rows = columns ? x.size() / columns : 0;
  problem.activation = options.activation;
  problem.device = x.device;
  problem.stream = options.stream;
  return problem;
}

void rms_norm(const TensorView& x, const TensorView* weight, const TensorView& y, const TensorView* residual,
              const RmsNormOptions& options) {
  constexpr const char* op = "rms_norm";
  check_x(op, "x", x);
  check_result(op, "out", y, "x", x, x.rank, x.shape, true);
  NormProblem problem = checked_norm(op, x, weight, residual, options);
  if (residual) check_disjoint(op, "out", y, "residual", *residual);
  if (weight) check_disjoint(op, "out", y, "weight", *weight);
  if (y.size() == 0) return;
  problem.y = row_view(y);
  decoder_norm_dispatch().run(problem);
}

void rotary_embedding(const TensorView& x, const TensorView& positions, const TensorView& cos, const TensorView& sin,
                      const TensorView& y, const RotaryOptions& options) {
  constexpr const char* op = "rotary_embedding";
  check_floating(op, "x", x);
  QCORE_CHECK_VALUE(x.rank == 4, op, ": x has shape ", shape_string(x), ", expected [B, T, heads, D]");
  check_result(op, "out", y, "x", x, x.rank, x.shape, true);
  check_rotary_table(op, "cos", "sin", cos, sin, x.shape[3], x.device, "x");
  check_indices(op, "positions", positions, 2, x.shape, x.device, "x");
  check_disjoint(op, "out", y, "cos", cos);
  check_disjoint(op, "out", y, "sin", sin);
  check_disjoint(op, "out", y, "positions", positions);
  if (x.device == kCpu) check_index_range(op, "positions", positions, 0, cos.shape[0] - 1, "rows of cos and sin");
  if (y.size() == 0) return;
  RotaryProblem problem;
  problem.x = x;
  problem.y = y;
  problem.positions = positions;
  problem.cos = cos;
  problem.sin = sin;
  problem.layout = options.layout;
  problem.device = x.device;
  problem.stream = options.stream;
  decoder_rotary_dispatch().run(problem);
}

void gated_activation(const TensorView& x, const TensorView& y, const GatedOptions& options) {
  constexpr const char* op = "gated_activation";
  GateProblem problem = checked_gate(op, x, options);
  std::int64_t shape[TensorView::kMaxRank];
  std::copy(x.shape, x.shape + x.rank, shape);
  shape[x.rank - 1] = problem.count;
  check_result(op, "out", y, "x", x, x.rank, shape, false);
  if (y.size() == 0) return;
  problem.y = row_view(y);
  decoder_gate_dispatch().run(problem);
}

void soft_cap(const TensorView& x, const TensorView& y, const SoftCapOptions& options) {
  constexpr const char* op = "soft_cap";
  check_x(op, "x", x);
  check_result(op, "out", y, "x", x, x.rank, x.shape, true);
  QCORE_CHECK_VALUE(std::isfinite(options.multiplier), op, ": multiplier is ", options.multiplier,
                    ", expected a finite number");
  QCORE_CHECK_VALUE(options.cap >= 0.0f && std::isfinite(options.cap), op, ": cap is ", options.cap,
                    ", expected 0 or a positive number");
  if (y.size() == 0) return;
  CapProblem problem;
  problem.x = row_view(x);
  problem.y = row_view(y);
  problem.count = x.shape[x.rank - 1];
  problem.rows = y.size() / problem.count;
  problem.multiplier = options.multiplier;
  problem.soft_cap = options.cap;
  problem.device = x.device;
  problem.stream = options.stream;
  decoder_cap_dispatch().run(problem);
}

void write_cache(const TensorView& keys, const TensorView& values, const TensorView& past, const KeyValueCache& cache,
                 void* stream) {
  constexpr const char* op = "write_cache";
  check_floating(op, "keys", keys);
  QCORE_CHECK_VALUE(keys.rank == 4, op, ": keys has shape ", shape_string(keys), ", expected [B, T, Hkv, D]");
  check_floating(op, "values", values);
  check_device(op, "values", values, keys.device, "keys");
  check_shape(op, "values", values, 4, keys.shape);
  check_cache(op, cache, keys.shape[0], keys.shape[2], keys.shape[3], keys.device, "keys", true);
  check_past(op, past, keys.shape[0], keys.shape[1], cache.keys.shape[2], keys.device, "keys");
  for (const TensorView* target : {&cache.keys, &cache.values, &cache.key_scales, &cache.value_scales}) {
    if (target->rank == 0) continue;
    check_disjoint(op, "the cache", *target, "keys", keys);
    check_disjoint(op, "the cache", *target, "values", values);
    check_disjoint(op, "the cache", *target, "past", past);
  }
  if (keys.size() == 0) return;
  CacheProblem problem;
  problem.keys = keys;
  problem.values = values;
  problem.past = past;
  problem.cache = cache;
  problem.device = keys.device;
  problem.stream = stream;
  decoder_cache_dispatch().run(problem);
}

void attention(const TensorView& q, const KeyValueCache& cache, const TensorView& past, const TensorView* first,
               const TensorView& y, const AttentionOptions& options) {
  constexpr const char* op = "attention";
  check_floating(op, "q", q);
  QCORE_CHECK_VALUE(q.rank == 4, op, ": q has shape ", shape_string(q), ", expected [B, T, Hq, D]");
  const std::int64_t heads = cache.keys.rank == 4 ? cache.keys.shape[1] : 0;
  check_cache(op, cache, q.shape[0], heads, q.shape[3], q.device, "q", false);
  QCORE_CHECK_VALUE(heads > 0 && q.shape[2] % heads == 0, op, ": q has ", q.shape[2],
                    " heads, expected a multiple of the cache's ", heads);
  check_past(op, past, q.shape[0], q.shape[1], cache.keys.shape[2], q.device, "q");
  if (first) {
    check_indices(op, "first", *first, 1, q.shape, q.device, "q");
    if (q.device == kCpu) check_index_range(op, "first", *first, 0, cache.keys.shape[2], "positions of the cache");
  }
  QCORE_CHECK_VALUE(std::isfinite(options.scale), op, ": scale is ", options.scale, ", expected a finite number");
  QCORE_CHECK_VALUE(options.window >= 0, op, ": window is ", options.window, ", expected 0 or a number of keys");
  QCORE_CHECK_VALUE(options.soft_cap >= 0.0f && std::isfinite(options.soft_cap), op, ": soft_cap is ", options.soft_cap,
                    ", expected 0 or a positive number");
  check_max_length(op, options.max_length, past, q.shape[1], cache.keys.shape[2]);
  check_result(op, "out", y, "q", q, 4, q.shape, false);
  for (const TensorView* source : {&cache.keys, &cache.values, &cache.key_scales, &cache.value_scales})
    if (source->rank) check_disjoint(op, "out", y, "the cache", *source);
  check_disjoint(op, "out", y, "past", past);
  if (first) check_disjoint(op, "out", y, "first", *first);
  if (y.size() == 0) return;
  AttentionProblem problem;
  problem.q = q;
  problem.y = y;
  problem.past = past;
  if (first) problem.first = *first;
  problem.cache = cache;
  problem.scale = options.scale;
  problem.soft_cap = options.soft_cap;
  problem.window = options.window;
  problem.max_length = options.max_length > 0 ? options.max_length : cache.keys.shape[2];
  problem.device = q.device;
  problem.stream = options.stream;
  decoder_attention_dispatch().run(problem);
}

}  // namespace qcore::decoder
