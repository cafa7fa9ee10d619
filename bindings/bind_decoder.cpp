#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bind.h"
#include "dlpack_views.h"
#include "qcore/decoder.h"
#include "qcore/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace qcore::bindings {
namespace {

constexpr const char* kCacheDtypes = "float32, float16, bfloat16 or int8";

// Arrays for the length of a call or longer: their views stay valid as long as the Python objects do.
class Arrays {
 public:
  Arrays() = default;
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  // None gives a view of rank 0.
  TensorView view(nb::handle object, const char* op, const char* argument, const char* expected = kFloatingDtypes) {
    return object.is_none() ? TensorView() : arrays_.emplace_back(object, op, argument, expected).view();
  }

 private:
  std::deque<ArrayArgument> arrays_;
};

// A cache is the tuple (keys, values, key scales or None, value scales or None).
KeyValueCache cache_of(Arrays& arrays, nb::tuple cache, const char* op) {
  KeyValueCache result;
  result.keys = arrays.view(cache[0], op, "cache.keys", kCacheDtypes);
  result.values = arrays.view(cache[1], op, "cache.values", kCacheDtypes);
  result.key_scales = arrays.view(cache[2], op, "cache.key_scales", "float32");
  result.value_scales = arrays.view(cache[3], op, "cache.value_scales", "float32");
  return result;
}

// The caches of all layers, looked at once; the Python wrapper keeps their arrays alive.
struct Caches {
  Arrays arrays;
  std::vector<KeyValueCache> list;

  explicit Caches(nb::list caches) {
    for (nb::handle cache : caches) list.push_back(cache_of(arrays, nb::cast<nb::tuple>(cache), "decoder"));
  }
};

std::optional<QuantizedTensor> weight_of(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  return nb::cast<const QuantizedTensor&>(object);
}

std::vector<QuantizedTensor> weights_of(nb::handle list) {
  std::vector<QuantizedTensor> weights;
  for (nb::handle weight : list) weights.push_back(nb::cast<const QuantizedTensor&>(weight));
  return weights;
}

DecoderLayer layer_of(Arrays& arrays, nb::dict fields, std::size_t index) {
  DecoderLayer layer;
  layer.name = nb::cast<std::string>(fields["name"]);
  const std::string op = "decoder: " + (layer.name.empty() ? "layers." + std::to_string(index) : layer.name);
  const auto vector = [&](const char* field) { return arrays.view(fields[field], op.c_str(), field); };
  layer.input_norm = vector("input_norm");
  layer.qkv = weights_of(fields["qkv"]);
  layer.qkv_bias = vector("qkv_bias");
  layer.q_norm = vector("q_norm");
  layer.k_norm = vector("k_norm");
  layer.out = weight_of(fields["out"]);
  layer.out_bias = vector("out_bias");
  layer.post_attention_norm = vector("post_attention_norm");
  layer.mlp_norm = vector("mlp_norm");
  layer.gate_up = weights_of(fields["gate_up"]);
  layer.gate_up_bias = vector("gate_up_bias");
  layer.down = weight_of(fields["down"]);
  layer.down_bias = vector("down_bias");
  layer.post_mlp_norm = vector("post_mlp_norm");
  layer.window = nb::cast<std::int64_t>(fields["window"]);
  layer.rotary = nb::cast<int>(fields["rotary"]);
  return layer;
}

Decoder make_decoder(nb::dict o, nb::list layers, nb::list rotary, nb::handle final_norm, nb::handle head,
                     nb::handle head_bias) {
  Arrays arrays;
  DecoderOptions options;
  options.hidden_size = nb::cast<std::int64_t>(o["hidden_size"]);
  options.heads = nb::cast<std::int64_t>(o["heads"]);
  options.kv_heads = nb::cast<std::int64_t>(o["kv_heads"]);
  options.head_size = nb::cast<std::int64_t>(o["head_size"]);
  options.intermediate_size = nb::cast<std::int64_t>(o["intermediate_size"]);
  options.dtype = nb::cast<DType>(o["dtype"]);
  options.compute = nb::cast<ComputeMode>(o["compute"]);
  options.head_compute = nb::cast<ComputeMode>(o["head_compute"]);
  options.eps = nb::cast<float>(o["eps"]);
  options.norm_offset = nb::cast<float>(o["norm_offset"]);
  options.round_normalized = nb::cast<bool>(o["round_normalized"]);
  options.activation = nb::cast<GateActivation>(o["activation"]);
  options.attention_scale = nb::cast<float>(o["attention_scale"]);
  options.attention_soft_cap = nb::cast<float>(o["attention_soft_cap"]);
  options.input_multiplier = nb::cast<float>(o["input_multiplier"]);
  options.residual_multiplier = nb::cast<float>(o["residual_multiplier"]);
  options.logit_multiplier = nb::cast<float>(o["logit_multiplier"]);
  options.logit_soft_cap = nb::cast<float>(o["logit_soft_cap"]);
  options.rotary_layout = nb::cast<RotaryLayout>(o["rotary_layout"]);
  for (nb::handle table : rotary) {
    const nb::tuple pair = nb::cast<nb::tuple>(table);
    options.rotary.push_back({arrays.view(pair[0], "decoder", "rotary cos", "float32"),
                              arrays.view(pair[1], "decoder", "rotary sin", "float32")});
  }
  std::vector<DecoderLayer> list;
  for (nb::handle fields : layers) list.push_back(layer_of(arrays, nb::cast<nb::dict>(fields), list.size()));
  const TensorView norm = arrays.view(final_norm, "decoder", "final_norm");
  const TensorView bias = arrays.view(head_bias, "decoder", "head_bias");
  const auto head_weight = weight_of(head);
  nb::gil_scoped_release release;
  return Decoder::make(options, list, norm, head_weight, bias);
}

void forward(const Decoder& decoder, nb::handle hidden, nb::handle positions, nb::handle past, nb::handle first,
             const Caches& caches, nb::handle normed, nb::handle logits, std::int64_t max_length,
             std::uintptr_t stream) {
  Arrays arrays;
  DecoderCall call;
  call.hidden = arrays.view(hidden, "decoder", "hidden");
  call.positions = arrays.view(positions, "decoder", "positions", "int32");
  call.past = arrays.view(past, "decoder", "past", "int32");
  call.first = arrays.view(first, "decoder", "first", "int32");
  call.normed = arrays.view(normed, "decoder", "out");
  call.logits = arrays.view(logits, "decoder", "out");
  call.caches = caches.list;
  call.max_length = max_length;
  call.stream = stream_of(stream);
  nb::gil_scoped_release release;
  decoder.forward(call);
}

void bind_operators(nb::module_& m) {
  m.def(
      "decoder_rms_norm",
      [](nb::handle x, nb::handle weight, nb::handle out, nb::handle residual, float eps, float offset,
         bool round_normalized, std::uintptr_t stream) {
        const ArrayArgument x_array(x, "rms_norm", "x"), out_array(out, "rms_norm", "out");
        const OptionalArray weight_array(weight, "rms_norm", "weight"),
            residual_array(residual, "rms_norm", "residual");
        nb::gil_scoped_release release;
        decoder::rms_norm(x_array.view(), weight_array.get(), out_array.view(), residual_array.get(),
                          {eps, offset, round_normalized, stream_of(stream)});
      },
      "x"_a, "weight"_a.none(), "out"_a, "residual"_a.none(), "eps"_a, "offset"_a, "round_normalized"_a, "stream"_a);
  m.def(
      "decoder_rms_norm_quantize",
      [](nb::handle x, nb::handle weight, const nb::tuple& y, nb::handle residual, float eps, float offset,
         bool round_normalized, float scale, std::uintptr_t stream) {
        constexpr const char* op = "rms_norm_quantize";
        const ArrayArgument x_array(x, op, "x");
        const QuantizedArgument y_arrays(y, op, "y");
        const OptionalArray weight_array(weight, op, "weight"), residual_array(residual, op, "residual");
        nb::gil_scoped_release release;
        decoder::rms_norm_quantize(x_array.view(), weight_array.get(), y_arrays.get(), residual_array.get(),
                                   {eps, offset, round_normalized, stream_of(stream)}, scale);
      },
      "x"_a, "weight"_a.none(), "y"_a, "residual"_a.none(), "eps"_a, "offset"_a, "round_normalized"_a, "scale"_a,
      "stream"_a);
  m.def("decoder_gated_activation_quantize",
        [](nb::handle x, const nb::tuple& y, GateActivation activation, float scale, std::uintptr_t stream) {
          constexpr const char* op = "gated_activation_quantize";
          const ArrayArgument x_array(x, op, "x");
          const QuantizedArgument y_arrays(y, op, "y");
          nb::gil_scoped_release release;
          decoder::gated_activation_quantize(x_array.view(), y_arrays.get(), {activation, stream_of(stream)}, scale);
        });
  m.def("decoder_rotary_embedding", [](nb::handle x, nb::handle positions, nb::handle cos, nb::handle sin,
                                       nb::handle out, RotaryLayout layout, std::uintptr_t stream) {
    constexpr const char* op = "rotary_embedding";
    const ArrayArgument x_array(x, op, "x"), out_array(out, op, "out");
    const ArrayArgument positions_array(positions, op, "positions", "int32");
    const ArrayArgument cos_array(cos, op, "cos", "float32"), sin_array(sin, op, "sin", "float32");
    nb::gil_scoped_release release;
    decoder::rotary_embedding(x_array.view(), positions_array.view(), cos_array.view(), sin_array.view(),
                              out_array.view(), {layout, stream_of(stream)});
  });
  m.def("decoder_gated_activation", [](nb::handle x, nb::handle out, GateActivation activation, std::uintptr_t stream) {
    const ArrayArgument x_array(x, "gated_activation", "x"), out_array(out, "gated_activation", "out");
    nb::gil_scoped_release release;
    decoder::gated_activation(x_array.view(), out_array.view(), {activation, stream_of(stream)});
  });
  m.def("decoder_soft_cap", [](nb::handle x, nb::handle out, float multiplier, float cap, std::uintptr_t stream) {
    const ArrayArgument x_array(x, "soft_cap", "x"), out_array(out, "soft_cap", "out");
    nb::gil_scoped_release release;
    decoder::soft_cap(x_array.view(), out_array.view(), {multiplier, cap, stream_of(stream)});
  });
  m.def("decoder_write_cache",
        [](nb::handle keys, nb::handle values, nb::handle past, nb::tuple cache, std::uintptr_t stream) {
          constexpr const char* op = "write_cache";
          Arrays arrays;
          const ArrayArgument keys_array(keys, op, "keys"), values_array(values, op, "values");
          const ArrayArgument past_array(past, op, "past", "int32");
          const KeyValueCache target = cache_of(arrays, cache, op);
          nb::gil_scoped_release release;
          decoder::write_cache(keys_array.view(), values_array.view(), past_array.view(), target, stream_of(stream));
        });
  m.def(
      "decoder_attention",
      [](nb::handle q, nb::tuple cache, nb::handle past, nb::handle first, nb::handle out, float scale,
         std::int64_t window, float soft_cap, std::int64_t max_length, std::uintptr_t stream) {
        constexpr const char* op = "attention";
        Arrays arrays;
        const ArrayArgument q_array(q, op, "q"), out_array(out, op, "out"), past_array(past, op, "past", "int32");
        const OptionalArray first_array(first, op, "first", "int32");
        const KeyValueCache source = cache_of(arrays, cache, op);
        nb::gil_scoped_release release;
        decoder::attention(q_array.view(), source, past_array.view(), first_array.get(), out_array.view(),
                           {scale, window, soft_cap, max_length, stream_of(stream)});
      },
      "q"_a, "cache"_a, "past"_a, "first"_a.none(), "out"_a, "scale"_a, "window"_a, "soft_cap"_a, "max_length"_a,
      "stream"_a);
}

}  // namespace

void bind_decoder(nb::module_& m) {
  bind_operators(m);
  nb::class_<Caches>(m, "DecoderCaches").def(nb::init<nb::list>());
  nb::class_<Decoder>(m, "Decoder")
      .def_static("make", &make_decoder, "options"_a, "layers"_a, "rotary"_a, "final_norm"_a.none(), "head"_a.none(),
                  "head_bias"_a.none())
      .def_prop_ro("layers", &Decoder::layers)
      .def_prop_ro("vocabulary", &Decoder::vocabulary)
      .def_prop_ro("max_positions", &Decoder::max_positions)
      .def_prop_ro("device", [](const Decoder& decoder) { return name(decoder.device()); })
      .def_prop_ro("nbytes", &Decoder::nbytes)
      .def("forward", &forward, "hidden"_a, "positions"_a, "past"_a, "first"_a.none(), "caches"_a, "normed"_a.none(),
           "logits"_a.none(), "max_length"_a, "stream"_a);
}

}  // namespace qcore::bindings
