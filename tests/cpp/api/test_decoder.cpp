#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "reference_results.h"
#include "support.h"

// The decoder's operators and stacks through the public API: every kernel gives the reference's bits, and a stack gives
// what a plain implementation in double does.
namespace qcore::test {
namespace {

std::vector<std::string> available(const std::string& op) {
  std::vector<std::string> names;
  for (const KernelInfo& row : kernels(op))
    if (row.available && row.device == "cpu") names.push_back(row.name);
  return names;
}

// Runs write(out) with every kernel of an operator and expects the reference's bits and no write beside the array.
void expect_equal_kernels(const std::string& op, std::int64_t count, const std::function<void(float* out)>& write) {
  std::vector<float> expected;
  auto names = available(op);
  std::reverse(names.begin(), names.end());
  ASSERT_EQ(names.front(), "reference");
  for (const std::string& name : names) {
    SCOPED_TRACE(op + " " + name);
    ForceKernel force(op, name);
    Guarded<float> out(count);
    write(out.data());
    EXPECT_EQ(last_kernel(op), name);
    EXPECT_TRUE(out.guards_intact());
    const std::vector<float> result(out.data(), out.data() + count);
    if (expected.empty()) {
      expected = result;
      compare_with_unoptimized(expected);
    }
    EXPECT_TRUE(same_bits(result, expected));
  }
}

// Keys and values of one layer, filled by write_cache.
struct OwnCache {
  OwnCache(std::int64_t batch, std::int64_t heads, std::int64_t capacity, std::int64_t size, DType dtype) {
    const std::int64_t count = batch * heads * capacity * size;
    for (int i = 0; i < 2; ++i) {
      arrays.emplace_back(count * item_size(dtype), 0);
      scales.emplace_back(batch * heads * capacity, 0.0f);
    }
    cache.keys = TensorView(arrays[0].data(), dtype, {batch, heads, capacity, size});
    cache.values = TensorView(arrays[1].data(), dtype, {batch, heads, capacity, size});
    if (dtype != DType::i8) return;
    cache.key_scales = TensorView(scales[0].data(), DType::f32, {batch, heads, capacity});
    cache.value_scales = TensorView(scales[1].data(), DType::f32, {batch, heads, capacity});
  }
  OwnCache(const OwnCache&) = delete;

  void fill(std::int64_t tokens, unsigned seed) {
    const auto& shape = cache.keys.shape;
    const auto keys = normal_values(shape[0] * tokens * shape[1] * shape[3], seed);
    const auto values = normal_values(shape[0] * tokens * shape[1] * shape[3], seed + 1);
    const std::vector<std::int32_t> past(shape[0], 0);
    decoder::write_cache(TensorView(keys.data(), DType::f32, {shape[0], tokens, shape[1], shape[3]}),
                         TensorView(values.data(), DType::f32, {shape[0], tokens, shape[1], shape[3]}),
                         TensorView(past.data(), DType::i32, {shape[0]}), cache);
  }

  std::vector<std::vector<char>> arrays;
  std::vector<std::vector<float>> scales;
  KeyValueCache cache;
};

TEST(DecoderRows, EveryKernelGivesTheReferencesBits) {
  for (const std::int64_t size : {2, 14, 32, 100, 900}) {
    const auto x = normal_values(5 * size, 1), residual = normal_values(5 * size, 2), weight = normal_values(size, 3);
    const TensorView x_view(x.data(), DType::f32, {5, size}), weight_view(weight.data(), DType::f32, {size});
    expect_equal_kernels("decoder_rms_norm", 10 * size, [&](float* out) {
      const TensorView sum(out + 5 * size, DType::f32, {5, size});
      std::copy(residual.begin(), residual.end(), out + 5 * size);
      decoder::rms_norm(x_view, &weight_view, TensorView(out, DType::f32, {5, size}), &sum, {1e-5f, 1.0f, false, {}});
    });
    for (const auto activation :
         {GateActivation::silu, GateActivation::gelu, GateActivation::gelu_tanh, GateActivation::relu})
      expect_equal_kernels("decoder_gated_activation", 5 * size / 2, [&](float* out) {
        decoder::gated_activation(x_view, TensorView(out, DType::f32, {5, size / 2}), {activation, nullptr});
      });
    expect_equal_kernels("decoder_soft_cap", 5 * size, [&](float* out) {
      decoder::soft_cap(x_view, TensorView(out, DType::f32, {5, size}), {3.0f, 2.0f, nullptr});
    });
    const auto cos = normal_values(4 * size, 4), sin = normal_values(4 * size, 5);
    const std::int32_t positions[] = {3, 0, 2, 1, 1};
    for (const auto layout : {RotaryLayout::halves, RotaryLayout::interleaved})
      expect_equal_kernels("decoder_rotary_embedding", 5 * size, [&](float* out) {
        decoder::rotary_embedding(
            TensorView(x.data(), DType::f32, {1, 5, 1, size}), TensorView(positions, DType::i32, {1, 5}),
            TensorView(cos.data(), DType::f32, {4, size}), TensorView(sin.data(), DType::f32, {4, size}),
            TensorView(out, DType::f32, {1, 5, 1, size}), {layout, nullptr});
      });
    for (const auto dtype : {DType::f32, DType::f16, DType::bf16, DType::i8})
      expect_equal_kernels("decoder_write_cache", 2 * size + 2, [&](float* out) {
        OwnCache own(1, 1, 1, size, dtype);
        own.fill(1, 7);
        std::fill(out, out + 2 * size + 2, 0.0f);
        std::memcpy(out, own.arrays[0].data(), own.arrays[0].size());
        out[2 * size] = own.scales[0][0];
      });
  }
}

TEST(DecoderAttention, EveryKernelGivesTheReferencesBits) {
  for (const auto dtype : {DType::f32, DType::f16, DType::bf16, DType::i8})
    for (const std::int64_t size : {5, 16, 40})
      for (const std::int64_t tokens : {1, 20}) {
        const std::int64_t capacity = 300 + tokens;
        OwnCache own(2, 2, capacity, size, dtype);
        own.fill(capacity, 3);
        const auto q = normal_values(2 * tokens * 6 * size, 5);
        const std::int32_t past[] = {300, 11}, first[] = {0, 9};
        const TensorView first_view(first, DType::i32, {2});
        decoder::AttentionOptions options;
        options.scale = 0.4f;
        for (const std::int64_t window : {0, 37})
          for (const float cap : {0.0f, 4.0f}) {
            options.window = window;
            options.soft_cap = cap;
            expect_equal_kernels("decoder_attention", 2 * tokens * 6 * size, [&](float* out) {
              decoder::attention(TensorView(q.data(), DType::f32, {2, tokens, 6, size}), own.cache,
                                 TensorView(past, DType::i32, {2}), &first_view,
                                 TensorView(out, DType::f32, {2, tokens, 6, size}), options);
            });
          }
      }
}

// A small model, and the same in double.
class SmallModel {
 public:
  static constexpr std::int64_t kHidden = 32, kHeads = 4, kKvHeads = 2, kSize = 8, kInner = 48, kVocabulary = 21;
  static constexpr std::int64_t kQkv = (kHeads + 2 * kKvHeads) * kSize, kPositions = 40;

  explicit SmallModel(ComputeMode compute) {
    options.hidden_size = kHidden;
    options.heads = kHeads;
    options.kv_heads = kKvHeads;
    options.head_size = kSize;
    options.intermediate_size = kInner;
    options.compute = options.head_compute = compute;
    for (std::int64_t p = 0; p < kPositions; ++p)
      for (std::int64_t i = 0; i < kSize; ++i) {
        const double angle =
            static_cast<double>(p) * std::pow(100.0, -2.0 * static_cast<double>(i % (kSize / 2)) / kSize);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    options.rotary.push_back({TensorView(cos.data(), DType::f32, {kPositions, kSize}),
                              TensorView(sin.data(), DType::f32, {kPositions, kSize})});
    norm = normal_values(kHidden, 9);
    bias = normal_values(kQkv, 10);
    for (unsigned i = 0; i < 2; ++i) {
      DecoderLayer layer;
      layer.name = "layer " + std::to_string(i);
      layer.input_norm = layer.mlp_norm = TensorView(norm.data(), DType::f32, {kHidden});
      layer.qkv = {scaled_weight(kQkv, kHidden, 4 * i)};
      layer.qkv_bias = TensorView(bias.data(), DType::f32, {kQkv});
      layer.out = scaled_weight(kHidden, kHeads * kSize, 4 * i + 1);
      layer.gate_up = {scaled_weight(2 * kInner, kHidden, 4 * i + 2)};
      layer.down = scaled_weight(kHidden, kInner, 4 * i + 3);
      layers.push_back(layer);
    }
    head = scaled_weight(kVocabulary, kHidden, 20);
  }

  Decoder make() const {
    return Decoder::make(options, layers, TensorView(norm.data(), DType::f32, {kHidden}), head, {});
  }

  // Logits [tokens, V] of one sequence.
  std::vector<double> plain(const std::vector<float>& hidden, std::int64_t tokens) const {
    std::vector<double> x(hidden.begin(), hidden.end());
    for (const DecoderLayer& layer : layers) {
      auto qkv = product(normalized(x, tokens), tokens, layer.qkv[0]);
      for (std::int64_t i = 0; i < tokens * kQkv; ++i) qkv[i] += bias[i % kQkv];
      add(x, product(attended(qkv, tokens), tokens, *layer.out));
      const auto joint = product(normalized(x, tokens), tokens, layer.gate_up[0]);
      std::vector<double> gated(tokens * kInner);
      for (std::int64_t i = 0; i < tokens * kInner; ++i) {
        const std::int64_t at = i / kInner * 2 * kInner + i % kInner;
        gated[i] = joint[at] / (1 + std::exp(-joint[at])) * joint[at + kInner];
      }
      add(x, product(gated, tokens, *layer.down));
    }
    return product(normalized(x, tokens), tokens, *head);
  }

  DecoderOptions options;
  std::vector<DecoderLayer> layers;
  std::optional<QuantizedTensor> head;

 private:
  static QuantizedTensor scaled_weight(std::int64_t rows, std::int64_t features, unsigned seed) {
    auto values = normal_values(rows * features, 100 + seed);
    for (float& value : values) value /= std::sqrt(static_cast<float>(features));
    return QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {rows, features}), {8, 16});
  }

  static void add(std::vector<double>& x, const std::vector<double>& branch) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += branch[i];
  }

  static std::vector<double> product(const std::vector<double>& x, std::int64_t tokens, const QuantizedTensor& w) {
    const std::int64_t rows = w.rows(), features = w.features();
    std::vector<float> values(rows * features);
    w.dequantize(TensorView(values.data(), DType::f32, {rows, features}));
    std::vector<double> y(tokens * rows, 0.0);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t n = 0; n < rows; ++n)
        for (std::int64_t k = 0; k < features; ++k) y[t * rows + n] += x[t * features + k] * values[n * features + k];
    return y;
  }

  std::vector<double> normalized(std::vector<double> x, std::int64_t tokens) const {
    for (std::int64_t t = 0; t < tokens; ++t) {
      double squares = 0;
      for (std::int64_t i = 0; i < kHidden; ++i) squares += x[t * kHidden + i] * x[t * kHidden + i];
      for (std::int64_t i = 0; i < kHidden; ++i)
        x[t * kHidden + i] *= norm[i] / std::sqrt(squares / kHidden + static_cast<double>(options.eps));
    }
    return x;
  }

  std::vector<double> attended(std::vector<double> qkv, std::int64_t tokens) const {
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t head_index = 0; head_index < kHeads + kKvHeads; ++head_index) {
        double* x = &qkv[t * kQkv + head_index * kSize];
        for (std::int64_t i = 0; i < kSize / 2; ++i) {
          const double a = x[i], b = x[i + kSize / 2];
          x[i] = a * cos[t * kSize + i] - b * sin[t * kSize + i];
          x[i + kSize / 2] = b * cos[t * kSize + i] + a * sin[t * kSize + i];
        }
      }
    std::vector<double> y(tokens * kHeads * kSize, 0.0);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const std::int64_t key_head = h / (kHeads / kKvHeads);
        double sum = 0;
        for (std::int64_t j = 0; j <= t; ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < kSize; ++d)
            score += qkv[t * kQkv + h * kSize + d] * qkv[j * kQkv + (kHeads + key_head) * kSize + d];
          const double weight = std::exp(score / std::sqrt(static_cast<double>(kSize)));
          sum += weight;
          for (std::int64_t d = 0; d < kSize; ++d)
            y[(t * kHeads + h) * kSize + d] += weight * qkv[j * kQkv + (kHeads + kKvHeads + key_head) * kSize + d];
        }
        for (std::int64_t d = 0; d < kSize; ++d) y[(t * kHeads + h) * kSize + d] /= sum;
      }
    return y;
  }

  std::vector<float> cos, sin, norm, bias;
};

// Caches for one sequence of `capacity` tokens.
struct OwnCaches {
  explicit OwnCaches(std::int64_t capacity, DType dtype = DType::f32) {
    for (int i = 0; i < 2; ++i)
      own.push_back(std::make_unique<OwnCache>(1, SmallModel::kKvHeads, capacity, SmallModel::kSize, dtype));
  }
  std::vector<KeyValueCache> list() const { return {own[0]->cache, own[1]->cache}; }
  std::vector<std::unique_ptr<OwnCache>> own;
};

// Logits of `tokens` tokens behind `past` others.
std::vector<float> run(const Decoder& stack, const float* hidden, std::int64_t tokens, std::int32_t past,
                       const OwnCaches& caches) {
  std::vector<std::int32_t> positions(tokens);
  for (std::int64_t t = 0; t < tokens; ++t) positions[t] = past + static_cast<std::int32_t>(t);
  Guarded<float> logits(tokens * SmallModel::kVocabulary);
  DecoderCall call;
  call.hidden = TensorView(hidden, DType::f32, {1, tokens, SmallModel::kHidden});
  call.positions = TensorView(positions.data(), DType::i32, {1, tokens});
  call.past = TensorView(&past, DType::i32, {1});
  call.caches = caches.list();
  call.logits = TensorView(logits.data(), DType::f32, {1, tokens, SmallModel::kVocabulary});
  stack.forward(call);
  EXPECT_TRUE(logits.guards_intact());
  return {logits.data(), logits.data() + logits.size()};
}

constexpr std::int64_t kTokens = 19;

TEST(DecoderStack, GivesWhatAPlainImplementationDoes) {
  const SmallModel model(ComputeMode::floating);
  const auto hidden = normal_values(kTokens * SmallModel::kHidden, 50);
  const auto expected = model.plain(hidden, kTokens);
  const auto logits = run(model.make(), hidden.data(), kTokens, 0, OwnCaches(kTokens));
  ASSERT_EQ(logits.size(), expected.size());
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 2e-5) << i;
}

TEST(DecoderStack, TokensOneByOneGiveTheBitsOfAllTogether) {
  for (const ComputeMode compute : kComputes)
    for (const DType dtype : {DType::f32, DType::i8}) {
      const SmallModel model(compute);
      const Decoder stack = model.make();
      const auto hidden = normal_values(kTokens * SmallModel::kHidden, 51);
      const auto together = run(stack, hidden.data(), kTokens, 0, OwnCaches(kTokens, dtype));
      const OwnCaches caches(kTokens + 3, dtype);
      std::vector<float> single;
      for (std::int32_t t = 0; t < kTokens; ++t) {
        const auto logits = run(stack, hidden.data() + t * SmallModel::kHidden, 1, t, caches);
        single.insert(single.end(), logits.begin(), logits.end());
      }
      EXPECT_TRUE(same_bits(single, together));
    }
}

TEST(DecoderStack, EveryKernelGivesTheReferencesBits) {
  const SmallModel model(ComputeMode::int8);
  const Decoder stack = model.make();
  const auto hidden = normal_values(kTokens * SmallModel::kHidden, 52);
  const auto expected = run(stack, hidden.data(), kTokens, 0, OwnCaches(kTokens));
  for (const std::string& name : available("decoder_attention")) {
    std::vector<std::unique_ptr<ForceKernel>> forced;
    for (const char* op : {"rms_norm", "rotary_embedding", "gated_activation", "write_cache", "attention"})
      forced.push_back(std::make_unique<ForceKernel>("decoder_" + std::string(op), name));
    EXPECT_TRUE(same_bits(run(stack, hidden.data(), kTokens, 0, OwnCaches(kTokens)), expected)) << name;
  }
}

TEST(DecoderErrors, CodesAndTheirSourceShareNoMemory) {
  std::vector<float> x(64, 1.0f), parameters(8);
  std::vector<std::int8_t> codes(64);
  const auto text = [&](void* place, const TensorView& y_scales) {
    const QuantizedActivations y{TensorView(place, DType::i8, {2, 16}), y_scales, {}, 8};
    return error_of<Error>(
        [&] { decoder::rms_norm_quantize(TensorView(x.data(), DType::f32, {2, 16}), nullptr, y, nullptr, {}); });
  };
  const TensorView scales(parameters.data(), DType::f32, {2, 2});
  EXPECT_EQ(text(codes.data(), scales), "no exception");
  EXPECT_EQ(text(reinterpret_cast<char*>(x.data()) + 96, scales),
            "rms_norm_quantize: y.codes overlaps x in memory, expected separate arrays");
  EXPECT_EQ(text(codes.data(), TensorView(x.data() + 20, DType::f32, {2, 2})),
            "rms_norm_quantize: y.scales overlaps x in memory, expected separate arrays");
}

TEST(DecoderStack, ErrorsNameTheLayer) {
  SmallModel model(ComputeMode::int8);
  model.layers[1].down.reset();
  EXPECT_EQ(error_of<ValueError>([&] { model.make(); }),
            "decoder: layer 1: down is missing, expected a weight [32, 48]");
  model.layers[1].down = model.layers[0].out;
  EXPECT_EQ(error_of<ValueError>([&] { model.make(); }),
            "decoder: layer 1: down has shape [32, 32], expected [32, 48]");
}

}  // namespace
}  // namespace qcore::test
