#include <algorithm>
#include <cmath>

#include "decoder/checks.h"
#include "decoder/decoder_storage.h"
#include "formats/element.h"
#include "runtime/check.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/view_checks.h"

// Builds a Decoder: checks of its weights, and copies of the floating-point ones.
namespace qcore {
namespace {

constexpr const char* kOp = "decoder";

std::string weight_shape(const QuantizedTensor& w) {
  std::string text = "[";
  for (int axis = 0; axis < w.rank(); ++axis) text += (axis ? ", " : "") + std::to_string(w.shape(axis));
  return text + "]";
}

void check_positive(const char* what, std::int64_t size) {
  QCORE_CHECK_VALUE(size > 0, kOp, ": ", what, " is ", size, ", expected a positive number");
}

void check_finite_number(const char* what, float value) {
  QCORE_CHECK_VALUE(std::isfinite(value), kOp, ": ", what, " is ", value, ", expected a finite number");
}

void check_cap(const char* what, float value) {
  QCORE_CHECK_VALUE(value >= 0.0f && std::isfinite(value), kOp, ": ", what, " is ", value,
                    ", expected 0 or a positive number");
}

void check_options(const DecoderOptions& options) {
  check_positive("hidden_size", options.hidden_size);
  check_positive("heads", options.heads);
  check_positive("kv_heads", options.kv_heads);
  check_positive("head_size", options.head_size);
  check_positive("intermediate_size", options.intermediate_size);
  QCORE_CHECK_VALUE(options.heads % options.kv_heads == 0, kOp, ": heads is ", options.heads,
                    ", expected a multiple of kv_heads = ", options.kv_heads);
  QCORE_CHECK_TYPE(is_floating(options.dtype), kOp, ": dtype is ", name(options.dtype),
                   ", expected float32, float16 or bfloat16");
  QCORE_CHECK_VALUE(options.eps >= 0.0f && options.eps <= 1e30f, kOp, ": eps is ", options.eps,
                    ", expected a number from 0 to 1e30");
  check_finite_number("norm_offset", options.norm_offset);
  check_finite_number("attention_scale", options.attention_scale);
  check_finite_number("input_multiplier", options.input_multiplier);
  check_finite_number("residual_multiplier", options.residual_multiplier);
  check_finite_number("logit_multiplier", options.logit_multiplier);
  check_cap("attention_soft_cap", options.attention_soft_cap);
  check_cap("logit_soft_cap", options.logit_soft_cap);
}

class Builder {
 public:
  explicit Builder(const DecoderOptions& options) : storage_(std::make_shared<DecoderStorage>()) {
    check_options(options);
    storage_->options = options;
    storage_->options.rotary.clear();
    if (options.attention_scale == 0.0f)
      storage_->options.attention_scale = 1.0f / std::sqrt(static_cast<float>(options.head_size));
  }

  void set_device(const std::vector<DecoderLayer>& layers, const std::optional<QuantizedTensor>& head) {
    if (!layers.empty() && !layers[0].qkv.empty())
      storage_->device = layers[0].qkv[0].device();
    else if (head)
      storage_->device = head->device();
  }

  void add_rotary(const std::vector<RotaryTable>& tables) {
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const std::string cos = message("rotary[", i, "].cos"), sin = message("rotary[", i, "].sin");
      const RotaryTable& table = tables[i];
      decoder::check_rotary_table(kOp, cos.c_str(), sin.c_str(), table.cos, table.sin, storage_->options.head_size,
                                  table.cos.device, cos.c_str());
      QCORE_CHECK_VALUE(table.cos.shape[1] == tables[0].cos.shape[1], kOp, ": ", cos, " has shape ",
                        shape_string(table.cos), ", expected ", tables[0].cos.shape[1],
                        " columns like the first table");
      storage_->rotary.push_back({copied(kOp, cos.c_str(), table.cos), copied(kOp, sin.c_str(), table.sin)});
    }
  }

  void add_layer(const DecoderLayer& layer, std::size_t index) {
    const DecoderOptions& o = storage_->options;
    const std::string name = message(kOp, ": ", layer.name.empty() ? message("layers.", index) : layer.name);
    const char* op = name.c_str();
    const std::int64_t qkv = storage_->qkv_size();
    DecoderStorage::Layer added{name,
                                norm(op, "input_norm", layer.input_norm, o.hidden_size),
                                norm(op, "post_attention_norm", layer.post_attention_norm, o.hidden_size),
                                norm(op, "mlp_norm", layer.mlp_norm, o.hidden_size),
                                norm(op, "post_mlp_norm", layer.post_mlp_norm, o.hidden_size),
                                norm(op, "q_norm", layer.q_norm, o.head_size),
                                norm(op, "k_norm", layer.k_norm, o.head_size),
                                weights(op, "qkv", layer.qkv, qkv, o.hidden_size),
                                weight(op, "out", layer.out, o.hidden_size, storage_->q_size()),
                                weights(op, "gate_up", layer.gate_up, 2 * o.intermediate_size, o.hidden_size),
                                weight(op, "down", layer.down, o.hidden_size, o.intermediate_size),
                                vector(op, "qkv_bias", layer.qkv_bias, qkv),
                                vector(op, "out_bias", layer.out_bias, o.hidden_size),
                                vector(op, "gate_up_bias", layer.gate_up_bias, 2 * o.intermediate_size),
                                vector(op, "down_bias", layer.down_bias, o.hidden_size),
                                layer.window,
                                layer.rotary};
    QCORE_CHECK_VALUE(layer.window >= 0, op, ": window is ", layer.window, ", expected 0 or a number of keys");
    const int tables = static_cast<int>(storage_->rotary.size());
    QCORE_CHECK_VALUE(layer.rotary >= -1 && layer.rotary < tables, op, ": rotary is ", layer.rotary,
                      ", expected the index of one of the ", tables, " tables, or -1 for none");
    storage_->layers.push_back(std::move(added));
  }

  void add_head(const TensorView& final_norm, const std::optional<QuantizedTensor>& head, const TensorView& bias) {
    storage_->final_norm = norm(kOp, "final_norm", final_norm, storage_->options.hidden_size);
    if (head) storage_->head = weight(kOp, "head", head, head->rows(), storage_->options.hidden_size);
    QCORE_CHECK_VALUE(head || bias.rank == 0, kOp, ": head_bias is given without a head, expected none");
    if (head) storage_->head_bias = vector(kOp, "head_bias", bias, head->rows());
  }

  std::shared_ptr<const DecoderStorage> finish() { return std::move(storage_); }

 private:
  QuantizedTensor weight(const char* op, const char* argument, const std::optional<QuantizedTensor>& given,
                         std::int64_t rows, std::int64_t features) {
    QCORE_CHECK_VALUE(given.has_value(), op, ": ", argument, " is missing, expected a weight [", rows, ", ", features,
                      "]");
    const QuantizedTensor& w = *given;
    QCORE_CHECK_VALUE(w.taps() == 1 && w.rows() == rows && w.features() == features, op, ": ", argument, " has shape ",
                      weight_shape(w), ", expected [", rows, ", ", features, "]");
    QCORE_CHECK_VALUE(w.device() == storage_->device, op, ": ", argument, " is on ", name(w.device()), ", expected ",
                      name(storage_->device), " like the first layer's qkv");
    storage_->nbytes += w.nbytes();
    return w;
  }

  // Weights whose rows follow each other.
  std::vector<QuantizedTensor> weights(const char* op, const char* argument, const std::vector<QuantizedTensor>& given,
                                       std::int64_t rows, std::int64_t features) {
    if (given.size() < 2)
      return {weight(op, argument, given.empty() ? std::nullopt : std::optional(given[0]), rows, features)};
    std::int64_t found = 0;
    for (const QuantizedTensor& part : given) found += part.rows();
    QCORE_CHECK_VALUE(found == rows, op, ": ", argument, " has ", found, " rows in ", given.size(),
                      " weights, expected ", rows);
    std::vector<QuantizedTensor> checked;
    for (std::size_t i = 0; i < given.size(); ++i)
      checked.push_back(weight(op, message(argument, "[", i, "]").c_str(), given[i], given[i].rows(), features));
    return checked;
  }

  TensorView vector(const char* op, const char* argument, const TensorView& view, std::int64_t count,
                    float offset = 0.0f) {
    if (view.rank == 0) return {};
    check_floating(op, argument, view);
    check_shape(op, argument, view, 1, &count);
    return copied(op, argument, view, offset);
  }

  TensorView norm(const char* op, const char* argument, const TensorView& view, std::int64_t count) {
    return vector(op, argument, view, count, storage_->options.norm_offset);
  }

  // A contiguous fp32 copy on the decoder's device, with an offset added.
  TensorView copied(const char* op, const char* argument, const TensorView& view, float offset = 0.0f) {
    std::shared_ptr<void> fetched;
    TensorView source = view;
    if (view.device != kCpu) {
      QCORE_CHECK_VALUE(view.is_contiguous(), op, ": ", argument, " is not contiguous on ", name(view.device),
                        ", expected a contiguous array or one on the CPU");
      const std::int64_t bytes = view.size() * item_size(view.dtype);
      fetched = allocate_aligned(bytes);
      copy_between(fetched.get(), kCpu, view.data, view.device, bytes);
      source.data = fetched.get();
    }
    const std::int64_t rows = view.rank > 1 ? view.shape[0] : 1, columns = view.shape[view.rank - 1];
    const std::int64_t row_stride = view.rank > 1 ? view.strides[0] : 0, column_stride = view.strides[view.rank - 1];
    const std::int64_t bytes = rows * columns * static_cast<std::int64_t>(sizeof(float));
    auto values = allocate_aligned(bytes);
    auto* to = static_cast<float*>(values.get());
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        const float value = load_float(source.data, source.dtype, r * row_stride + c * column_stride);
        to[r * columns + c] = offset == 0.0f ? value : value + offset;
      }
    if (storage_->device != kCpu) {
      auto moved = allocate_on(storage_->device, bytes);
      copy_between(moved.get(), storage_->device, values.get(), kCpu, bytes);
      values = std::move(moved);
    }
    storage_->memory.push_back(values);
    storage_->nbytes += bytes;
    const auto* data = static_cast<const void*>(values.get());
    return view.rank > 1 ? TensorView(data, DType::f32, {rows, columns}, storage_->device)
                         : TensorView(data, DType::f32, {columns}, storage_->device);
  }

  std::shared_ptr<DecoderStorage> storage_;
};

}  // namespace

Decoder::Decoder(std::shared_ptr<const DecoderStorage> storage) : storage_(std::move(storage)) {}

Decoder Decoder::make(const DecoderOptions& options, const std::vector<DecoderLayer>& layers,
                      const TensorView& final_norm, const std::optional<QuantizedTensor>& head,
                      const TensorView& head_bias) {
  Builder builder(options);
  builder.set_device(layers, head);
  builder.add_rotary(options.rotary);
  for (std::size_t i = 0; i < layers.size(); ++i) builder.add_layer(layers[i], i);
  builder.add_head(final_norm, head, head_bias);
  return Decoder(builder.finish());
}

const DecoderOptions& Decoder::options() const { return storage_->options; }
std::int64_t Decoder::layers() const { return static_cast<std::int64_t>(storage_->layers.size()); }
std::int64_t Decoder::vocabulary() const { return storage_->head ? storage_->head->rows() : 0; }
Device Decoder::device() const { return storage_->device; }
std::int64_t Decoder::nbytes() const { return storage_->nbytes; }

std::int64_t Decoder::max_positions() const {
  std::int64_t smallest = 0;
  for (const RotaryTable& table : storage_->rotary)
    smallest = smallest == 0 ? table.cos.shape[0] : std::min(smallest, table.cos.shape[0]);
  return smallest;
}

}  // namespace qcore
