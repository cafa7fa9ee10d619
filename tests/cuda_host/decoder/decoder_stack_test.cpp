// Decoder::forward with the CUDA rows of all operators on the machine against the reference on the CPU: the same bits.
// This program has linear's and the decoder's kernel tables of its own, with CUDA rows and without those of libqcore.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "decoder/decoder_arrays.h"

namespace qcore {
namespace {

constexpr std::int64_t kHidden = 64, kHeads = 4, kKvHeads = 2, kSize = 16, kInner = 96, kVocabulary = 40;
constexpr std::int64_t kPositions = 320, kCapacity = 300;

// The weights of a stack, for the CPU and moved to the machine.
struct Weights {
  Random random{11};
  std::vector<Array> arrays;  // does not grow beyond what is reserved: views point into it
  bool full;

  explicit Weights(bool with_all) : full(with_all) { arrays.reserve(64); }

  TensorView vector(std::int64_t count, float center = 0.0f) {
    arrays.emplace_back(DType::f32, std::vector<std::int64_t>{count});
    for (std::int64_t i = 0; i < count; ++i) arrays.back().set_element(i, center + 0.2f * random.normal());
    return arrays.back().cpu();
  }
  TensorView table(bool sine) {
    arrays.emplace_back(DType::f32, std::vector<std::int64_t>{kPositions, kSize});
    for (std::int64_t p = 0; p < kPositions; ++p)
      for (std::int64_t i = 0; i < kSize; ++i) {
        const float angle =
            static_cast<float>(p) * std::pow(100.0f, -static_cast<float>(i % (kSize / 2)) / static_cast<float>(kSize));
        arrays.back().set_element(p * kSize + i, sine ? std::sin(angle) : std::cos(angle));
      }
    return arrays.back().cpu();
  }
  QuantizedTensor matrix(std::int64_t rows, std::int64_t features, int bits) {
    std::vector<float> values(static_cast<std::size_t>(rows * features));
    for (float& value : values) value = random.normal() / std::sqrt(static_cast<float>(features));
    QuantizeOptions options;
    options.bits = bits;
    options.block_size = 32;
    options.scheme = bits == 4 ? Scheme::asymmetric : Scheme::symmetric;
    return QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {rows, features}), options);
  }
};

struct Stacks {
  Decoder cpu, device;
};

QuantizedTensor moved(const QuantizedTensor& weight) {
  return QuantizedTensor::from_packed(on_device(weight.packed()));
}

Stacks make(bool full, DType dtype, ComputeMode compute) {
  Weights w(full);
  DecoderOptions options;
  options.hidden_size = kHidden;
  options.heads = kHeads;
  options.kv_heads = kKvHeads;
  options.head_size = kSize;
  options.intermediate_size = kInner;
  options.dtype = dtype;
  options.compute = options.head_compute = compute;
  options.rotary = {{w.table(false), w.table(true)}};
  if (full) {
    options.norm_offset = 0.25f;
    options.round_normalized = true;
    options.activation = GateActivation::gelu_tanh;
    options.attention_soft_cap = 5.0f;
    options.input_multiplier = 1.5f;
    options.residual_multiplier = 0.75f;
    options.logit_multiplier = 0.5f;
    options.logit_soft_cap = 3.0f;
  }
  std::vector<DecoderLayer> layers, on_machine;
  for (int i = 0; i < 2; ++i) {
    DecoderLayer layer;
    layer.input_norm = w.vector(kHidden, 1.0f);
    layer.mlp_norm = w.vector(kHidden, 1.0f);
    layer.qkv = {w.matrix((kHeads + 2 * kKvHeads) * kSize, kHidden, 4)};
    layer.out = w.matrix(kHidden, kHeads * kSize, 8);
    layer.gate_up = {w.matrix(2 * kInner, kHidden, 4)};
    layer.down = w.matrix(kHidden, kInner, 8);
    if (full) {
      layer.post_attention_norm = w.vector(kHidden, 1.0f);
      layer.post_mlp_norm = w.vector(kHidden, 1.0f);
      layer.q_norm = w.vector(kSize, 1.0f);
      layer.k_norm = w.vector(kSize, 1.0f);
      layer.qkv_bias = w.vector((kHeads + 2 * kKvHeads) * kSize);
      layer.down_bias = w.vector(kHidden);
      layer.window = i == 1 ? 40 : 0;
    }
    layers.push_back(layer);
    for (auto* weights : {&layer.qkv, &layer.gate_up}) weights->front() = moved(weights->front());
    for (auto* weight : {&layer.out, &layer.down}) *weight = moved(**weight);
    on_machine.push_back(layer);
  }
  const TensorView norm = w.vector(kHidden, 1.0f);
  const QuantizedTensor head = w.matrix(kVocabulary, kHidden, 8);
  return {Decoder::make(options, layers, norm, head, {}), Decoder::make(options, on_machine, norm, moved(head), {})};
}

void check(bool full, DType dtype, ComputeMode compute, DType cache_dtype) {
  const Stacks stacks = make(full, dtype, compute);
  Random random(5);
  constexpr std::int64_t kBatch = 2;
  std::vector<CacheArrays> caches;
  for (int i = 0; i < 2; ++i) caches.emplace_back(random, cache_dtype, kBatch, kKvHeads, kCapacity, kSize);
  std::vector<std::int32_t> lengths{0, 0};
  // A prompt, single tokens, and a few tokens at once, beyond a chunk of positions.
  for (const std::int64_t tokens : {3, 1, 270, 1, 4}) {
    Array hidden(dtype, {kBatch, tokens, kHidden}), positions(DType::i32, {kBatch, tokens}), past(DType::i32, {kBatch});
    Array first(DType::i32, {kBatch}), logits(dtype, {kBatch, 1, kVocabulary}), normed(dtype, {kBatch, 1, kHidden});
    hidden.fill(random);
    std::vector<std::int32_t> places;
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t t = 0; t < tokens; ++t)
        places.push_back(lengths[static_cast<std::size_t>(b)] + static_cast<std::int32_t>(t));
    positions.set(places);
    past.set(lengths);
    first.set({0, 2});
    const auto call = [&](bool device) {
      const auto view = [&](Array& array) { return device ? array.device() : array.cpu(); };
      DecoderCall c;
      c.hidden = view(hidden);
      c.positions = view(positions);
      c.past = view(past);
      c.first = view(first);
      for (CacheArrays& cache : caches) c.caches.push_back(device ? cache.device() : cache.cpu());
      c.logits = view(logits);
      c.normed = view(normed);
      return c;
    };
    const DecoderCall on_machine = call(true);
    stacks.cpu.forward(call(false));
    stacks.device.forward(on_machine);
    const std::string what = std::string(name(dtype)) + ", cache " + name(cache_dtype) + ", " + std::to_string(tokens) +
                             " tokens at " + std::to_string(lengths[0]);
    logits.expect_equal(what + ", logits");
    normed.expect_equal(what + ", norm");
    for (CacheArrays& cache : caches) cache.expect_equal(what);
    for (std::int32_t& length : lengths) length += static_cast<std::int32_t>(tokens);
  }
}

TEST(DecoderStackCuda, PlainLayers) {
  check(false, DType::f32, ComputeMode::int8, DType::f32);
  check(false, DType::bf16, ComputeMode::int8, DType::bf16);
}

TEST(DecoderStackCuda, EveryOption) {
  check(true, DType::f16, ComputeMode::int8, DType::i8);
  check(true, DType::f32, ComputeMode::int8_asym, DType::f16);
}

// The memory of a call is freed with it.
TEST(DecoderStackCuda, NothingIsLeftAllocated) {
  const Stacks stacks = make(false, DType::f32, ComputeMode::int8);
  const int before = cuda_host::live_allocations();
  {
    Random random(5);
    Array hidden(DType::f32, {1, 2, kHidden}), positions(DType::i32, {1, 2}), past(DType::i32, {1});
    Array logits(DType::f32, {1, 1, kVocabulary});
    CacheArrays cache(random, DType::f32, 1, kKvHeads, 8, kSize);
    positions.set({0, 1});
    past.set({0});
    DecoderCall call;
    call.hidden = hidden.fill(random).device();
    call.positions = positions.device();
    call.past = past.device();
    call.logits = logits.device();
    call.caches = {cache.device(), cache.device()};
    stacks.device.forward(call);
  }
  EXPECT_EQ(cuda_host::live_allocations(), before);
}

}  // namespace
}  // namespace qcore
