#include <algorithm>

#include "decoder/checks.h"
#include "decoder/decoder_storage.h"
#include "decoder/dispatch.h"
#include "formats/row_view.h"
#include "runtime/check.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/view_checks.h"

// Runs a Decoder: every step is an operator of the kernel tables or linear(), on any device.
namespace qcore {
namespace {

constexpr const char* kOp = "decoder";

// Rows of the feed-forward part that are computed together, which bounds its memory.
constexpr std::int64_t kMlpRowsOnCpu = 1024, kMlpRowsOnDevice = 8192;

void check_wanted(const TensorView& out, const char* argument, const DecoderCall& call, std::int64_t columns) {
  const TensorView& hidden = call.hidden;
  check_floating(kOp, argument, out);
  check_device(kOp, argument, out, hidden.device, "hidden");
  QCORE_CHECK_VALUE(out.rank == 3 && out.shape[0] == hidden.shape[0] && out.shape[1] >= 1 &&
                        out.shape[1] <= hidden.shape[1] && out.shape[2] == columns,
                    kOp, ": ", argument, " has shape ", shape_string(out), ", expected [", hidden.shape[0], ", R, ",
                    columns, "] with R from 1 to ", hidden.shape[1]);
  check_output(kOp, argument, out);
  check_disjoint(kOp, argument, out, "hidden", hidden);
}

void check_call(const DecoderStorage& storage, const DecoderCall& call, std::int64_t max_positions) {
  const DecoderOptions& o = storage.options;
  const TensorView& hidden = call.hidden;
  check_floating(kOp, "hidden", hidden);
  QCORE_CHECK_VALUE(hidden.rank == 3 && hidden.shape[1] > 0 && hidden.shape[2] == o.hidden_size, kOp,
                    ": hidden has shape ", shape_string(hidden), ", expected [B, T, ", o.hidden_size,
                    "] with at least one token");
  QCORE_CHECK_VALUE(hidden.device == storage.device, kOp, ": hidden is on ", name(hidden.device), ", expected ",
                    name(storage.device), " like the weights");
  const std::int64_t batch = hidden.shape[0], tokens = hidden.shape[1];
  QCORE_CHECK_VALUE(call.caches.size() == storage.layers.size(), kOp, ": there are ", call.caches.size(),
                    " caches, expected one for each of the ", storage.layers.size(), " layers");
  std::int64_t capacity = INT32_MAX;
  for (std::size_t i = 0; i < call.caches.size(); ++i) {
    decoder::check_cache(storage.layers[i].name.c_str(), call.caches[i], batch, o.kv_heads, o.head_size, storage.device,
                         "the weights", true);
    capacity = std::min(capacity, call.caches[i].keys.shape[2]);
  }
  decoder::check_past(kOp, call.past, batch, tokens, capacity, storage.device, "the weights");
  decoder::check_indices(kOp, "positions", call.positions, 2, hidden.shape, storage.device, "the weights");
  if (max_positions > 0 && storage.device == kCpu)
    decoder::check_index_range(kOp, "positions", call.positions, 0, max_positions - 1, "rows of the rotary tables");
  if (call.first.rank) {
    decoder::check_indices(kOp, "first", call.first, 1, hidden.shape, storage.device, "the weights");
    if (storage.device == kCpu)
      decoder::check_index_range(kOp, "first", call.first, 0, capacity, "positions of the caches");
  }
  decoder::check_max_length(kOp, call.max_length, call.past, tokens, capacity);
  if (call.normed.rank) check_wanted(call.normed, "normed", call, o.hidden_size);
  QCORE_CHECK_VALUE(!call.logits.rank || storage.head, kOp, ": logits are wanted, but the decoder has no head");
  if (call.logits.rank) check_wanted(call.logits, "logits", call, storage.head->rows());
  if (call.normed.rank && call.logits.rank) {
    QCORE_CHECK_VALUE(call.normed.shape[1] == call.logits.shape[1], kOp, ": normed has ", call.normed.shape[1],
                      " tokens and logits ", call.logits.shape[1], ", expected the same number");
    check_disjoint(kOp, "logits", call.logits, "normed", call.normed);
  }
}

// Memory of one call: the calling thread's on the CPU, one block in stream order on a device.
class Workspace {
 public:
  Workspace(Device device, void* stream) : device_(device), stream_(stream) {}

  // Reserves an array; its memory exists after allocate().
  std::size_t add(std::int64_t count, DType dtype) {
    offsets_.push_back(bytes_);
    bytes_ += round_up(count * item_size(dtype), 256);
    return offsets_.size() - 1;
  }
  void allocate() {
    if (device_ == kCpu) {
      memory_ = scratch_.take<char>(bytes_);
    } else {
      block_ = scratch_on(device_, bytes_, stream_);
      memory_ = static_cast<char*>(block_.get());
    }
  }
  void* operator[](std::size_t slot) const { return memory_ + offsets_[slot]; }

 private:
  const Device device_;
  void* const stream_;
  Scratch scratch_;
  std::shared_ptr<void> block_;
  char* memory_ = nullptr;
  std::vector<std::int64_t> offsets_;
  std::int64_t bytes_ = 0;
};

class Forward {
 public:
  Forward(const DecoderStorage& storage, const DecoderCall& call)
      : s_(storage),
        o_(storage.options),
        call_(call),
        batch_(call.hidden.shape[0]),
        tokens_(call.hidden.shape[1]),
        rows_(batch_ * tokens_),
        mlp_rows_(std::min(rows_, storage.device == kCpu ? kMlpRowsOnCpu : kMlpRowsOnDevice)),
        workspace_(storage.device, call.stream) {}

  void run() {
    allocate();
    // The residual is the input; what a layer's parts give is added by the norm that follows.
    add_and_norm(row_view(call_.hidden), {}, row_view(residual_), {}, o_.input_multiplier);
    bool pending = false;
    for (std::size_t i = 0; i < s_.layers.size(); ++i) {
      const DecoderStorage::Layer& layer = s_.layers[i];
      add_branch_and_norm(pending, layer.input_norm);
      attend(layer, call_.caches[i]);
      norm_branch(layer.post_attention_norm);
      add_branch_and_norm(true, layer.mlp_norm);
      multiply_mlp(layer);
      norm_branch(layer.post_mlp_norm);
      pending = true;
    }
    finish(pending);
  }

 private:
  void allocate() {
    const DType dtype = o_.dtype;
    const auto residual = workspace_.add(rows_ * o_.hidden_size, dtype),
               normed = workspace_.add(rows_ * o_.hidden_size, dtype),
               branch = workspace_.add(rows_ * o_.hidden_size, dtype),
               qkv = workspace_.add(rows_ * s_.qkv_size(), dtype),
               attended = workspace_.add(rows_ * s_.q_size(), dtype),
               gate_up = workspace_.add(mlp_rows_ * 2 * o_.intermediate_size, dtype),
               gated = workspace_.add(mlp_rows_ * o_.intermediate_size, dtype);
    workspace_.allocate();
    residual_ = array(workspace_[residual], rows_, o_.hidden_size);
    normed_ = array(workspace_[normed], rows_, o_.hidden_size);
    branch_ = array(workspace_[branch], rows_, o_.hidden_size);
    qkv_ = array(workspace_[qkv], rows_, s_.qkv_size());
    attended_ = array(workspace_[attended], rows_, s_.q_size());
    gate_up_ = array(workspace_[gate_up], mlp_rows_, 2 * o_.intermediate_size);
    gated_ = array(workspace_[gated], mlp_rows_, o_.intermediate_size);
  }

  TensorView array(void* data, std::int64_t rows, std::int64_t columns) const {
    return TensorView(data, o_.dtype, {rows, columns}, s_.device);
  }

  // Rows [first, first + count) of a contiguous array.
  static TensorView rows_of(const TensorView& view, std::int64_t first, std::int64_t count) {
    TensorView part = view;
    part.data = static_cast<char*>(view.data) + first * view.strides[0] * item_size(view.dtype);
    part.shape[0] = count;
    return part;
  }

  // Heads [first, first + heads) of every token of an array [rows, heads * D].
  TensorView heads_of(const TensorView& view, std::int64_t first, std::int64_t heads) const {
    TensorView part;
    part.data = static_cast<char*>(view.data) + first * o_.head_size * item_size(view.dtype);
    part.dtype = view.dtype;
    part.device = view.device;
    part.rank = 4;
    const std::int64_t shape[] = {batch_, tokens_, heads, o_.head_size};
    const std::int64_t strides[] = {tokens_ * view.shape[1], view.shape[1], o_.head_size, 1};
    std::copy(shape, shape + 4, part.shape);
    std::copy(strides, strides + 4, part.strides);
    return part;
  }

  // The last `wanted` tokens of each sequence of an array [B * T, H].
  TensorView last_tokens(const TensorView& view, std::int64_t wanted) const {
    TensorView part = view;
    part.data = static_cast<char*>(view.data) + (tokens_ - wanted) * view.shape[1] * item_size(view.dtype);
    part.rank = 3;
    const std::int64_t shape[] = {batch_, wanted, view.shape[1]};
    const std::int64_t strides[] = {tokens_ * view.shape[1], view.shape[1], 1};
    std::copy(shape, shape + 3, part.shape);
    std::copy(strides, strides + 3, part.strides);
    return part;
  }

  // y = norm(residual += multiplier * x), without a residual norm(multiplier * x), without a weight no norm.
  void add_and_norm(const RowView& x, const RowView& residual, const RowView& y, const TensorView& weight,
                    float multiplier, std::int64_t rows = -1) const {
    NormProblem problem;
    problem.x = x;
    problem.residual = residual;
    problem.y = y;
    problem.weight = weight;
    problem.normalize = weight.rank > 0;
    problem.rows = rows < 0 ? rows_ : rows;
    problem.count = o_.hidden_size;
    problem.eps = o_.eps;
    problem.multiplier = multiplier;
    problem.round_normalized = o_.round_normalized;
    problem.device = s_.device;
    problem.stream = call_.stream;
    decoder_norm_dispatch().run(problem);
  }

  // Brings the residual up to date and its norm to `normed_`.
  void add_branch_and_norm(bool pending, const TensorView& weight) const {
    if (pending)
      add_and_norm(row_view(branch_), row_view(residual_), row_view(normed_), weight, o_.residual_multiplier);
    else
      add_and_norm(row_view(residual_), {}, row_view(normed_), weight, 1.0f);
  }

  void norm_branch(const TensorView& weight) const {
    if (weight.rank) add_and_norm(row_view(branch_), {}, row_view(branch_), weight, 1.0f);
  }

  void norm_heads(const TensorView& heads, const TensorView& weight) const {
    if (!weight.rank) return;
    NormProblem problem;
    problem.x = problem.y = row_view(heads);
    problem.weight = weight;
    problem.rows = rows_ * heads.shape[2];
    problem.count = o_.head_size;
    problem.eps = o_.eps;
    problem.round_normalized = o_.round_normalized;
    problem.device = s_.device;
    problem.stream = call_.stream;
    decoder_norm_dispatch().run(problem);
  }

  void multiply(const TensorView& x, const QuantizedTensor& w, const TensorView& bias, const TensorView& y,
                ComputeMode compute) const {
    LinearOptions options;
    options.compute = compute;
    options.stream = call_.stream;
    linear(x, w, bias.rank ? &bias : nullptr, y, options);
  }

  // Columns [first, first + count) of an array [rows, columns], or values of a vector.
  static TensorView columns_of(const TensorView& view, std::int64_t first, std::int64_t count) {
    TensorView part = view;
    part.data = static_cast<char*>(view.data) + first * item_size(view.dtype);
    part.shape[view.rank - 1] = count;
    return part;
  }

  // y = x w^T + bias for weights whose rows follow each other.
  void multiply(const TensorView& x, const std::vector<QuantizedTensor>& weights, const TensorView& bias,
                const TensorView& y, ComputeMode compute) const {
    std::int64_t first = 0;
    for (const QuantizedTensor& w : weights) {
      multiply(x, w, bias.rank ? columns_of(bias, first, w.rows()) : bias, columns_of(y, first, w.rows()), compute);
      first += w.rows();
    }
  }

  void attend(const DecoderStorage::Layer& layer, const KeyValueCache& cache) const {
    multiply(normed_, layer.qkv, layer.qkv_bias, qkv_, o_.compute);
    const TensorView q = heads_of(qkv_, 0, o_.heads), k = heads_of(qkv_, o_.heads, o_.kv_heads),
                     v = heads_of(qkv_, o_.heads + o_.kv_heads, o_.kv_heads);
    prepare_heads(layer, cache, q, k, v);
    AttentionProblem problem;
    problem.q = q;
    problem.y = heads_of(attended_, 0, o_.heads);
    problem.past = call_.past;
    problem.first = call_.first;
    problem.cache = cache;
    problem.scale = o_.attention_scale;
    problem.soft_cap = o_.attention_soft_cap;
    problem.window = layer.window;
    problem.max_length = call_.max_length > 0 ? call_.max_length : cache.keys.shape[2];
    problem.device = s_.device;
    problem.stream = call_.stream;
    decoder_attention_dispatch().run(problem);
    multiply(attended_, layer.out, layer.out_bias, branch_, o_.compute);
  }

  // Norms and rotates Q and K, and writes K and V to the cache.
  void prepare_heads(const DecoderStorage::Layer& layer, const KeyValueCache& cache, const TensorView& q,
                     const TensorView& k, const TensorView& v) const {
    const bool rotate = layer.rotary >= 0 && s_.rotary[layer.rotary].cos.shape[1] > 0;
    HeadsProblem together;
    together.q = q;
    together.k = k;
    together.v = v;
    together.q_norm = layer.q_norm;
    together.k_norm = layer.k_norm;
    together.eps = o_.eps;
    together.round_normalized = o_.round_normalized;
    together.rotate = rotate;
    if (rotate) {
      together.positions = call_.positions;
      together.cos = s_.rotary[layer.rotary].cos;
      together.sin = s_.rotary[layer.rotary].sin;
      together.layout = o_.rotary_layout;
    }
    together.past = call_.past;
    together.cache = cache;
    together.device = s_.device;
    together.stream = call_.stream;
    if (run_heads_at_once(together)) return;

    norm_heads(q, layer.q_norm);
    norm_heads(k, layer.k_norm);
    if (rotate) {
      RotaryProblem problem;
      problem.x = problem.y = heads_of(qkv_, 0, o_.heads + o_.kv_heads);
      problem.positions = call_.positions;
      problem.cos = s_.rotary[layer.rotary].cos;
      problem.sin = s_.rotary[layer.rotary].sin;
      problem.layout = o_.rotary_layout;
      problem.device = s_.device;
      problem.stream = call_.stream;
      decoder_rotary_dispatch().run(problem);
    }
    CacheProblem write;
    write.keys = k;
    write.values = v;
    write.past = call_.past;
    write.cache = cache;
    write.device = s_.device;
    write.stream = call_.stream;
    decoder_cache_dispatch().run(write);
  }

  void multiply_mlp(const DecoderStorage::Layer& layer) const {
    for (std::int64_t first = 0; first < rows_; first += mlp_rows_) {
      const std::int64_t count = std::min(mlp_rows_, rows_ - first);
      const TensorView gate_up = rows_of(gate_up_, 0, count), gated = rows_of(gated_, 0, count);
      multiply(rows_of(normed_, first, count), layer.gate_up, layer.gate_up_bias, gate_up, o_.compute);
      GateProblem problem;
      problem.x = row_view(gate_up);
      problem.y = row_view(gated);
      problem.rows = count;
      problem.count = o_.intermediate_size;
      problem.activation = o_.activation;
      problem.device = s_.device;
      problem.stream = call_.stream;
      decoder_gate_dispatch().run(problem);
      multiply(gated, layer.down, layer.down_bias, rows_of(branch_, first, count), o_.compute);
    }
  }

  void finish(bool pending) const {
    const TensorView& like = call_.logits.rank ? call_.logits : call_.normed;
    if (!like.rank) return;
    const std::int64_t wanted = like.shape[1], rows = batch_ * wanted;
    const TensorView normed(normed_.data, o_.dtype, {batch_, wanted, o_.hidden_size}, s_.device);
    const RowView residual = row_view(last_tokens(residual_, wanted));
    if (pending)
      add_and_norm(row_view(last_tokens(branch_, wanted)), residual, row_view(normed), s_.final_norm,
                   o_.residual_multiplier, rows);
    else
      add_and_norm(residual, {}, row_view(normed), s_.final_norm, 1.0f, rows);
    if (call_.normed.rank) add_and_norm(row_view(normed), {}, row_view(call_.normed), {}, 1.0f, rows);
    if (!call_.logits.rank) return;
    multiply(normed, *s_.head, s_.head_bias, call_.logits, o_.head_compute);
    if (o_.logit_multiplier == 1.0f && o_.logit_soft_cap == 0.0f) return;
    CapProblem problem;
    problem.x = problem.y = row_view(call_.logits);
    problem.rows = rows;
    problem.count = s_.head->rows();
    problem.multiplier = o_.logit_multiplier;
    problem.soft_cap = o_.logit_soft_cap;
    problem.device = s_.device;
    problem.stream = call_.stream;
    decoder_cap_dispatch().run(problem);
  }

  const DecoderStorage& s_;
  const DecoderOptions& o_;
  const DecoderCall& call_;
  const std::int64_t batch_, tokens_, rows_, mlp_rows_;
  Workspace workspace_;
  TensorView residual_, normed_, branch_, qkv_, attended_, gate_up_, gated_;
};

}  // namespace

void Decoder::forward(const DecoderCall& call) const {
  check_call(*storage_, call, max_positions());
  if (call.hidden.size() == 0) return;
  Forward(*storage_, call).run();
}

}  // namespace qcore
