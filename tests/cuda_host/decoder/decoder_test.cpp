// The CUDA rows of the decoder's operators but attention on the machine against the reference: the same bits.

#include <limits>

#include "decoder/decoder_arrays.h"

namespace qcore {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

struct NormCase {
  std::int64_t rows, count;
  bool residual = false, weight = true, in_place = false, round = false, normalize = true, result = true;
  float offset = 0.0f, multiplier = 1.0f;
  std::int64_t gap = 0, stride = 1;
  bool narrow_weight = false;  // it has the dtype of x
};

void check_norm(const NormCase& c, DType x_dtype, DType y_dtype) {
  Random random(static_cast<unsigned>(c.rows * 1000 + c.count));
  const DType out_dtype = c.in_place ? x_dtype : y_dtype;
  Array x(x_dtype, {c.rows, c.count}, c.gap, c.stride), y(out_dtype, {c.rows, c.count}, c.gap, c.stride);
  Array residual(y_dtype, {c.rows, c.count}, c.gap);
  Array weight(c.narrow_weight ? x_dtype : DType::f32, {c.count});
  x.fill(random), residual.fill(random), weight.fill(random);
  const auto problem = [&](bool device) {
    const auto view = [&](Array& array) { return device ? array.device() : array.cpu(); };
    NormProblem p;
    p.x = rows_of(view(x));
    if (c.result) p.y = c.in_place ? p.x : rows_of(view(y));
    if (c.residual) p.residual = rows_of(view(residual));
    if (c.weight) p.weight = view(weight);
    p.rows = c.rows;
    p.count = c.count;
    p.eps = 1e-5f;
    p.offset = c.offset;
    p.multiplier = c.multiplier;
    p.round_normalized = c.round;
    p.normalize = c.normalize;
    p.device = device ? kCuda : kCpu;
    return p;
  };
  const NormProblem on_device = problem(true);
  run_norm_reference(problem(false));
  run_norm_cuda(on_device);
  const std::string what = std::string(name(x_dtype)) + " to " + name(out_dtype) + ", count " + std::to_string(c.count);
  x.expect_equal(what + ", x");
  if (c.result && !c.in_place) y.expect_equal(what + ", y");
  if (c.residual) residual.expect_equal(what + ", residual");
}

TEST(DecoderCuda, RmsNorm) {
  const NormCase cases[] = {
      {1, 1},
      {3, 64, false, true, true},
      {37, 80, false, true, false, true, true, true, 1.0f},
      {2, 512, true},
      {3, 513, true, true, false, true, true, true, 1.0f, 0.25f},
      {2, 1536, true, true, false, true},
      {2, 2048, true, true, false, false, true, false},
      {2, 700, false, false, false, false, false, true, 0.0f, 3.0f},
      {2, 96, true, true, false, false, true, true, 0.0f, 1.0f, 5, 2},
      {3, 4096, true, true, false, true, true, true, 0.0f, 0.5f, 8, 1, true},
      {40, 128, false, true, true, false, true, true, -1.0f, 1.0f, 0, 1, true},
      {2, 1024, true, false, false, false, true, true, 0.0f, 1.0f, 4},
      {2, 8192, false, true, true},
      {1, 12284, true, true},
      {1, 12289, true, true},
      {1, 12400, false, true, true, false, true, true, 0.0f, 0.5f},
  };
  for (const NormCase& c : cases)
    for (const DType x : kFloats)
      for (const DType y : kFloats) check_norm(c, x, y);
}

void check_gate(std::int64_t rows, std::int64_t count, GateActivation activation, DType x_dtype, DType y_dtype,
                std::int64_t gap) {
  Random random(static_cast<unsigned>(rows + count));
  Array x(x_dtype, {rows, 2 * count}, gap), y(y_dtype, {rows, count}, gap);
  x.fill(random, 4.0f);
  const float special[] = {0.0f, -0.0f, 1e4f, -1e4f, kInfinity, -kInfinity, kNaN, -33.0f};
  for (std::int64_t i = 0; i < 8 && i < count; ++i) x.set_element(i, special[i]);
  const auto problem = [&](bool device) {
    GateProblem p;
    p.x = rows_of(device ? x.device() : x.cpu());
    p.y = rows_of(device ? y.device() : y.cpu());
    p.rows = rows;
    p.count = count;
    p.activation = activation;
    p.device = device ? kCuda : kCpu;
    return p;
  };
  const GateProblem on_device = problem(true);
  run_gate_reference(problem(false));
  run_gate_cuda(on_device);
  y.expect_equal(std::string(name(x_dtype)) + " to " + name(y_dtype) + ", activation " +
                 std::to_string(static_cast<int>(activation)));
}

TEST(DecoderCuda, GatedActivation) {
  for (const GateActivation activation :
       {GateActivation::silu, GateActivation::gelu, GateActivation::gelu_tanh, GateActivation::relu})
    for (const DType x : kFloats)
      for (const DType y : kFloats) {
        check_gate(1, 1030, activation, x, y, 0);
        check_gate(5, 33, activation, x, y, 3);
      }
}

TEST(DecoderCuda, SoftCap) {
  for (const DType dtype : kFloats)
    for (const float cap : {0.0f, 30.0f}) {
      Random random(7);
      Array x(dtype, {3, 700}, 1), y(dtype, {3, 700});
      x.fill(random, 40.0f);
      const auto problem = [&](bool device) {
        CapProblem p;
        p.x = rows_of(device ? x.device() : x.cpu());
        p.y = rows_of(device ? y.device() : y.cpu());
        p.rows = 3;
        p.count = 700;
        p.multiplier = 0.75f;
        p.soft_cap = cap;
        p.device = device ? kCuda : kCpu;
        return p;
      };
      const CapProblem on_device = problem(true);
      run_cap_reference(problem(false));
      run_cap_cuda(on_device);
      y.expect_equal(std::string(name(dtype)) + ", cap " + std::to_string(cap));
    }
}

struct HeadCase {
  std::int64_t batch, tokens, heads, kv_heads, size, rotary;
  RotaryLayout layout = RotaryLayout::halves;
  std::int64_t gap = 0;
  bool norms = false, rotate = true;
};

const HeadCase kHeadCases[] = {
    {1, 1, 4, 1, 64, 64},
    {2, 3, 3, 3, 80, 32, RotaryLayout::interleaved, 5, true},
    {1, 2, 2, 1, 33, 20, RotaryLayout::halves, 0, true},
    {2, 1, 8, 2, 128, 128, RotaryLayout::halves, 16},
    {1, 1, 1, 1, 1700, 2, RotaryLayout::interleaved, 0, true},
    {1, 2, 4, 2, 16, 16, RotaryLayout::halves, 0, false, false},
};

constexpr std::int64_t kTableRows = 11;

struct HeadArrays {
  Array q, k, v, positions, past, cos, sin, q_norm, k_norm;
  CacheArrays cache;
  HeadArrays(Random& random, const HeadCase& c, DType dtype, DType cache_dtype)
      : q(dtype, {c.batch, c.tokens, c.heads, c.size}, c.gap),
        k(dtype, {c.batch, c.tokens, c.kv_heads, c.size}, c.gap),
        v(dtype, {c.batch, c.tokens, c.kv_heads, c.size}),
        positions(DType::i32, {c.batch, c.tokens}),
        past(DType::i32, {c.batch}),
        cos(DType::f32, {kTableRows, c.rotary}, 1),
        sin(DType::f32, {kTableRows, c.rotary}),
        q_norm(DType::f32, {c.size}),
        k_norm(DType::f32, {c.size}),
        cache(random, cache_dtype, c.batch, c.kv_heads, 9, c.size, c.gap) {
    for (Array* array : {&q, &k, &v, &cos, &sin, &q_norm, &k_norm}) array->fill(random);
    std::vector<std::int32_t> places, lengths;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      lengths.push_back(static_cast<std::int32_t>(2 * b + 1));
      for (std::int64_t t = 0; t < c.tokens; ++t) places.push_back(static_cast<std::int32_t>((3 * b + t) % kTableRows));
    }
    positions.set(places);
    past.set(lengths);
  }
};

template <class Problem>
void set_place(Problem& p, bool device) {
  p.device = device ? kCuda : kCpu;
}

RotaryProblem rotary_problem(const HeadCase& c, HeadArrays& arrays, Array& x, Array& y, bool device) {
  const auto view = [&](Array& array) { return device ? array.device() : array.cpu(); };
  RotaryProblem p;
  p.x = view(x);
  p.y = view(y);
  p.positions = view(arrays.positions);
  p.cos = view(arrays.cos);
  p.sin = view(arrays.sin);
  p.layout = c.layout;
  set_place(p, device);
  return p;
}

TEST(DecoderCuda, RotaryEmbedding) {
  for (const HeadCase& c : kHeadCases)
    for (const DType dtype : kFloats)
      for (const bool in_place : {false, true}) {
        Random random(3);
        HeadArrays arrays(random, c, dtype, DType::f32);
        Array y(dtype, {c.batch, c.tokens, c.heads, c.size});
        Array& result = in_place ? arrays.q : y;
        const RotaryProblem on_device = rotary_problem(c, arrays, arrays.q, result, true);
        run_rotary_reference(rotary_problem(c, arrays, arrays.q, result, false));
        ASSERT_EQ(rotary_cuda_unsupported_reason(on_device), nullptr);
        run_rotary_cuda(on_device);
        result.expect_equal(std::string(name(dtype)) + ", D " + std::to_string(c.size));
      }
}

TEST(DecoderCuda, PositionsOutsideOfTheTablesAreClamped) {
  const HeadCase c = kHeadCases[0];
  Random random(3);
  HeadArrays arrays(random, c, DType::f32, DType::f32);
  Array y(DType::f32, {c.batch, c.tokens, c.heads, c.size});
  arrays.positions.set({1000});
  const RotaryProblem on_device = rotary_problem(c, arrays, arrays.q, y, true);
  arrays.positions.set({kTableRows - 1});
  run_rotary_reference(rotary_problem(c, arrays, arrays.q, y, false));
  run_rotary_cuda(on_device);
  y.expect_equal("clamped");
}

CacheProblem cache_problem(HeadArrays& arrays, bool device) {
  CacheProblem p;
  p.keys = device ? arrays.k.device() : arrays.k.cpu();
  p.values = device ? arrays.v.device() : arrays.v.cpu();
  p.past = device ? arrays.past.device() : arrays.past.cpu();
  p.cache = device ? arrays.cache.device() : arrays.cache.cpu();
  set_place(p, device);
  return p;
}

TEST(DecoderCuda, WriteCache) {
  for (const HeadCase& c : kHeadCases)
    for (const DType dtype : kFloats)
      for (const DType cache : {DType::f32, DType::f16, DType::bf16, DType::i8}) {
        Random random(4);
        HeadArrays arrays(random, c, dtype, cache);
        arrays.k.set_element(0, kNaN);
        arrays.v.set_element(0, -kInfinity);
        const CacheProblem on_device = cache_problem(arrays, true);
        ASSERT_EQ(cache_cuda_unsupported_reason(on_device), nullptr);
        run_cache_reference(cache_problem(arrays, false));
        run_cache_cuda(on_device);
        arrays.cache.expect_equal(std::string(name(dtype)) + " to " + name(cache) + ", D " + std::to_string(c.size));
      }
}

TEST(DecoderCuda, TokensBeyondTheCacheAreLeftOut) {
  for (const std::int32_t past : {9, 8, -1}) {
    const HeadCase c{1, 1, 4, 2, 16, 16};
    Random random(4);
    HeadArrays arrays(random, c, DType::f32, DType::i8);
    arrays.past.set({past});
    const CacheProblem on_device = cache_problem(arrays, true);
    if (past == 8) run_cache_reference(cache_problem(arrays, false));
    run_cache_cuda(on_device);
    arrays.cache.expect_equal("past " + std::to_string(past));
  }
}

// One kernel for what the single operators do one after the other.
TEST(DecoderCuda, HeadsInOneKernel) {
  for (const HeadCase& c : kHeadCases)
    for (const DType dtype : kFloats)
      for (const DType cache : {DType::f32, DType::bf16, DType::i8})
        for (const bool round : {false, true}) {
          Random random(5);
          HeadArrays arrays(random, c, dtype, cache);
          HeadsProblem p;
          p.q = arrays.q.device();
          p.k = arrays.k.device();
          p.v = arrays.v.device();
          if (c.norms) {
            p.q_norm = arrays.q_norm.device();
            p.k_norm = arrays.k_norm.device();
          }
          p.eps = 1e-6f;
          p.round_normalized = round;
          p.rotate = c.rotate;
          p.positions = arrays.positions.device();
          p.cos = arrays.cos.device();
          p.sin = arrays.sin.device();
          p.layout = c.layout;
          p.past = arrays.past.device();
          p.cache = arrays.cache.device();
          p.device = kCuda;
          for (Array* heads : {&arrays.q, &arrays.k}) {
            if (c.norms) {
              NormProblem norm;
              norm.x = norm.y = rows_of(heads->cpu());
              norm.weight = (heads == &arrays.q ? arrays.q_norm : arrays.k_norm).cpu();
              norm.rows = heads->cpu().size() / c.size;
              norm.count = c.size;
              norm.eps = p.eps;
              norm.round_normalized = round;
              run_norm_reference(norm);
            }
            if (c.rotate) run_rotary_reference(rotary_problem(c, arrays, *heads, *heads, false));
          }
          run_cache_reference(cache_problem(arrays, false));
          run_heads_cuda(p);
          const std::string what = std::string(name(dtype)) + " to " + name(cache) + ", D " + std::to_string(c.size);
          arrays.q.expect_equal(what + ", q");
          arrays.cache.expect_equal(what);
        }
}

TEST(DecoderCuda, LargeHeadsAreRefused) {
  Array x(DType::f32, {1, 1, 1, 12289});
  RotaryProblem rotary;
  rotary.x = x.device();
  rotary.device = kCuda;
  EXPECT_STREQ(rotary_cuda_unsupported_reason(rotary), "the head size is above 12288");
  CacheProblem cache;
  cache.keys = x.device();
  cache.device = kCuda;
  EXPECT_STREQ(cache_cuda_unsupported_reason(cache), "the head size is above 12288");
  cache.device = kCpu;
  EXPECT_STREQ(cache_cuda_unsupported_reason(cache), "it runs on a CUDA device");
}

}  // namespace
}  // namespace qcore
