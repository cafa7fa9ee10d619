// Attention's CUDA row on the machine against the reference: the same bits, in both plans.

#include "decoder/decoder_arrays.h"

namespace qcore {
namespace {

struct AttentionCase {
  std::int64_t batch, tokens, heads, kv_heads, size, capacity;
  std::vector<std::int32_t> past, first;
  std::int64_t window = 0, max_length = 0, gap = 0;
  float soft_cap = 0.0f;
};

void check(const AttentionCase& c, DType q_dtype, DType cache_dtype, AttentionPlan plan) {
  Random random(static_cast<unsigned>(c.capacity + c.size));
  Array q(q_dtype, {c.batch, c.tokens, c.heads, c.size}, c.gap), y(q_dtype, {c.batch, c.tokens, c.heads, c.size});
  Array past(DType::i32, {c.batch}), first(DType::i32, {c.batch});
  CacheArrays cache(random, cache_dtype, c.batch, c.kv_heads, c.capacity, c.size, c.gap);
  q.fill(random);
  past.set(c.past);
  if (!c.first.empty()) first.set(c.first);
  const auto problem = [&](bool device) {
    const auto view = [&](Array& array) { return device ? array.device() : array.cpu(); };
    AttentionProblem p;
    p.q = view(q);
    p.y = view(y);
    p.past = view(past);
    if (!c.first.empty()) p.first = view(first);
    p.cache = device ? cache.device() : cache.cpu();
    p.scale = 0.3f;
    p.soft_cap = c.soft_cap;
    p.window = c.window;
    p.max_length = c.max_length ? c.max_length : c.capacity;
    p.device = device ? kCuda : kCpu;
    return p;
  };
  const AttentionProblem on_device = problem(true);
  ASSERT_EQ(attention_cuda_unsupported_reason(on_device), nullptr);
  run_attention_reference(problem(false));
  run_attention_cuda(on_device, plan);
  y.expect_equal(std::string(name(q_dtype)) + ", cache " + name(cache_dtype) + ", D " + std::to_string(c.size) +
                 ", T " + std::to_string(c.tokens) + ", window " + std::to_string(c.window) + ", plan " +
                 std::to_string(static_cast<int>(plan)));
}

constexpr DType kCaches[] = {DType::f32, DType::f16, DType::bf16, DType::i8};
constexpr AttentionPlan kPlans[] = {AttentionPlan::automatic, AttentionPlan::split, AttentionPlan::whole};

TEST(DecoderAttentionCuda, OneTokenOfSeveralSequences) {
  const AttentionCase cases[] = {
      {1, 1, 4, 1, 64, 40, {0}, {}},
      {2, 1, 6, 2, 128, 700, {300, 699}, {0, 270}},
      {1, 1, 14, 2, 64, 530, {529}, {}},
      {1, 1, 16, 1, 80, 300, {256}, {255}, 0, 0, 0, 20.0f},
      {2, 1, 2, 2, 33, 300, {255, 17}, {256, 18}},
  };
  for (const AttentionCase& c : cases)
    for (const DType cache : kCaches)
      for (const AttentionPlan plan : kPlans) check(c, cache == DType::i8 ? DType::bf16 : cache, cache, plan);
}

TEST(DecoderAttentionCuda, ManyTokens) {
  const AttentionCase cases[] = {
      {1, 13, 4, 2, 48, 300, {250}, {}},
      {2, 37, 3, 1, 64, 600, {0, 511}, {5, 500}},
      {1, 20, 2, 2, 16, 520, {490}, {}, 100},
      {1, 9, 8, 1, 32, 1100, {1000}, {}, 300, 1010, 0, 5.0f},
  };
  for (const AttentionCase& c : cases)
    for (const DType cache : kCaches)
      for (const AttentionPlan plan : kPlans) check(c, DType::f32, cache, plan);
}

TEST(DecoderAttentionCuda, LargeHeads) {
  const AttentionCase cases[] = {
      {1, 1, 2, 1, 256, 300, {270}, {}},
      {1, 5, 2, 1, 200, 300, {270}, {}},
      {1, 3, 2, 1, 320, 270, {260}, {}},
  };
  for (const AttentionCase& c : cases)
    for (const DType cache : kCaches)
      for (const AttentionPlan plan : kPlans) check(c, DType::f16, cache, plan);
}

TEST(DecoderAttentionCuda, CachesOfAnyStrides) {
  for (const std::int64_t gap : {3, 16})
    for (const DType cache : kCaches)
      for (const AttentionPlan plan : kPlans)
        check({2, 2, 4, 2, 24, 290, {286, 3}, {}, 0, 0, gap}, DType::bf16, cache, plan);
}

// Keys and values behind a sequence's end are not read: they may be anything.
TEST(DecoderAttentionCuda, NothingBehindTheEndCounts) {
  for (const AttentionPlan plan : kPlans) {
    Random random(1);
    Array q(DType::f32, {1, 1, 2, 32}), y(DType::f32, {1, 1, 2, 32}), past(DType::i32, {1});
    CacheArrays cache(random, DType::f32, 1, 1, 300, 32);
    q.fill(random);
    past.set({10});
    for (std::int64_t i = 11 * 32; i < 300 * 32; ++i) {
      cache.keys.set_element(i, std::nanf(""));
      cache.values.set_element(i, std::nanf(""));
    }
    AttentionProblem p;
    p.q = q.cpu(), p.y = y.cpu(), p.past = past.cpu(), p.cache = cache.cpu();
    p.max_length = 300;
    AttentionProblem on_device = p;
    on_device.q = q.device(), on_device.y = y.device(), on_device.past = past.device();
    on_device.cache = cache.device();
    on_device.device = kCuda;
    run_attention_reference(p);
    run_attention_cuda(on_device, plan);
    y.expect_equal("nothing behind the end");
  }
}

TEST(DecoderAttentionCuda, LargerHeadsAreRefused) {
  Array q(DType::f32, {1, 1, 1, 513});
  AttentionProblem p;
  p.q = q.device();
  p.device = kCuda;
  EXPECT_STREQ(attention_cuda_unsupported_reason(p), "the head size is above 512");
}

}  // namespace
}  // namespace qcore
