#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "reference_results.h"
#include "support.h"

// Look-up tables through the public API: every kernel gives the reference's bits, on arrays of any layout.
namespace qcore::test {
namespace {

std::vector<std::string> available(const char* op) {
  std::vector<std::string> names;
  for (const KernelInfo& row : kernels(op))
    if (row.available && row.device == "cpu") names.push_back(row.name);
  return names;
}

LutTable made_table(LutReduction reduction, DType dtype = DType::f16, int intervals = 10, int segments = 32) {
  std::vector<float> cuts, values;
  for (int i = 0; i <= intervals; ++i)
    cuts.push_back(static_cast<float>(i * i) / static_cast<float>(intervals * intervals));
  for (float& cut : cuts) cut = reduction == LutReduction::none ? 8 * cut - 4 : cut + 1;
  const int entries = 3 + segments * (intervals - 2);
  for (int q = 0; q < entries; ++q) values.push_back(static_cast<float>(std::sin(0.05 * q)));
  const TensorView cut_view(cuts.data(), DType::f32, {intervals + 1});
  if (dtype == DType::f32)
    return LutTable::from_parts(cut_view, TensorView(values.data(), dtype, {entries}), reduction);
  std::vector<std::uint16_t> halves;
  for (const float value : values) halves.push_back(numerics::float_to_half(value));
  return LutTable::from_parts(cut_view, TensorView(halves.data(), dtype, {entries}), reduction);
}

constexpr LutReduction kReductions[] = {LutReduction::none,       LutReduction::exp,  LutReduction::log,
                                        LutReduction::reciprocal, LutReduction::sqrt, LutReduction::rsqrt,
                                        LutReduction::periodic};

// All 16-bit numbers as they are, for fp16 and bf16.
std::vector<std::uint16_t> every_half() {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

std::vector<float> special_and_random() {
  std::vector<float> values = normal_values(3000, 5);
  std::mt19937 engine(6);
  for (int i = 0; i < 20000; ++i) values.push_back(numerics::bits_float(static_cast<std::uint32_t>(engine())));
  return values;
}

TEST(Lut, EveryKernelGivesTheReferencesBits) {
  const auto halves = every_half();
  const auto floats = special_and_random();
  const auto n = static_cast<std::int64_t>(halves.size()), m = static_cast<std::int64_t>(floats.size());
  for (const LutReduction reduction : kReductions)
    for (const DType values : {DType::f16, DType::f32}) {
      const LutTable table = made_table(reduction, values);
      std::vector<std::uint16_t> expected(n), y(n);
      std::vector<float> expected_floats(m), y_floats(m);
      for (const std::string& kernel : available("lut")) {
        SCOPED_TRACE(kernel + ", reduction " + std::to_string(static_cast<int>(reduction)));
        ForceKernel force("lut", kernel);
        lut(TensorView(floats.data(), DType::f32, {m}), table, TensorView(y_floats.data(), DType::f32, {m}));
        EXPECT_EQ(last_kernel("lut"), kernel);
        {
          ForceKernel reference("lut", "reference");
          lut(TensorView(floats.data(), DType::f32, {m}), table, TensorView(expected_floats.data(), DType::f32, {m}));
        }
        EXPECT_TRUE(same_bits(y_floats, expected_floats));
        if (kernel == "reference") compare_with_unoptimized(expected_floats);
        for (const DType dtype : {DType::f16, DType::bf16}) {
          {
            ForceKernel reference("lut", "reference");
            lut(TensorView(halves.data(), dtype, {n}), table, TensorView(expected.data(), dtype, {n}));
          }
          lut(TensorView(halves.data(), dtype, {1000}), table, TensorView(y.data(), dtype, {1000}));
          EXPECT_TRUE(std::equal(y.begin(), y.begin() + 1000, expected.begin()));
          lut(TensorView(halves.data(), dtype, {n}), table, TensorView(y.data(), dtype, {n}));
          EXPECT_EQ(y, expected);
          if (kernel == "reference") compare_with_unoptimized(expected);
        }
      }
    }
}

TEST(Lut, BuiltinsAroundTheirCuts) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const BuiltinLut& builtin : builtin_luts()) {
    const LutTable table = LutTable::builtin(builtin.name, builtin.range_reduction);
    std::vector<float> cuts(table.intervals() + 1), x = special_and_random();
    table.cuts(TensorView(cuts.data(), DType::f32, {static_cast<std::int64_t>(cuts.size())}));
    for (const float cut : cuts) {
      float below = cut, above = cut;
      for (int i = 0; i < 50; ++i) {
        x.push_back(below), x.push_back(above);
        below = std::nextafter(below, -kInfinity), above = std::nextafter(above, kInfinity);
      }
    }
    const auto n = static_cast<std::int64_t>(x.size());
    std::vector<float> expected(n), y(n);
    const auto run = [&](const std::string& kernel, std::vector<float>& out) {
      ForceKernel force("lut", kernel);
      lut(TensorView(x.data(), DType::f32, {n}), table, TensorView(out.data(), DType::f32, {n}));
    };
    run("reference", expected);
    for (const std::string& kernel : available("lut")) {
      run(kernel, y);
      EXPECT_TRUE(same_bits(y, expected)) << kernel << ", " << builtin.name << ", " << builtin.range_reduction;
    }
  }
}

// Results beyond the caches, in rows that begin anywhere in a cache line.
TEST(Lut, LargeRowsGiveTheReferencesBits) {
  const std::int64_t rows = 1025, count = 2051;
  const auto x = normal_values(rows * count, 8);
  std::vector<float> expected(x.size()), y(x.size());
  const auto run = [&](const std::string& kernel, std::vector<float>& out) {
    ForceKernel force("softmax", kernel);
    softmax(TensorView(x.data(), DType::f32, {rows, count}), 1, TensorView(out.data(), DType::f32, {rows, count}));
  };
  run("reference", expected);
  for (const std::string& kernel : available("softmax")) {
    run(kernel, y);
    EXPECT_TRUE(same_bits(y, expected)) << kernel;
  }
}

TEST(Lut, TablesOfOddSizes) {
  const auto floats = special_and_random();
  const auto m = static_cast<std::int64_t>(floats.size());
  const std::pair<int, int> sizes[] = {{2, 1}, {3, 5}, {11, 16}, {12, 16}, {20, 100}, {256, 3}};
  for (const auto& [intervals, segments] : sizes) {
    const LutTable table = made_table(LutReduction::none, DType::f16, intervals, segments);
    std::vector<float> expected(m), y(m);
    ForceKernel reference("lut", "reference");
    lut(TensorView(floats.data(), DType::f32, {m}), table, TensorView(expected.data(), DType::f32, {m}));
    for (const std::string& kernel : available("lut")) {
      ForceKernel force("lut", kernel);
      lut(TensorView(floats.data(), DType::f32, {m}), table, TensorView(y.data(), DType::f32, {m}));
      EXPECT_TRUE(same_bits(y, expected)) << kernel << ", " << intervals << " intervals";
    }
  }
}

TEST(Lut, NothingAroundIsWritten) {
  const LutTable table = made_table(LutReduction::none);
  for (const std::string& kernel : available("lut"))
    for (const std::int64_t size : {1, 7, 31, 33, 100, 513}) {
      ForceKernel force("lut", kernel);
      const auto x = normal_values(size, 7);
      Guarded<float> y(size), strided(3 * size);
      lut(TensorView(x.data(), DType::f32, {size}), table, TensorView(y.data(), DType::f32, {size}));
      EXPECT_TRUE(y.guards_intact());
      TensorView view(strided.data(), DType::f32, {size});
      view.strides[0] = 3;
      lut(TensorView(x.data(), DType::f32, {size}), table, view);
      EXPECT_TRUE(strided.guards_intact());
      for (std::int64_t i = 0; i < size; ++i) {
        EXPECT_EQ(bits_of(strided[3 * i]), bits_of(y[i])) << kernel;
        EXPECT_TRUE(strided.poisoned(3 * i + 1) && strided.poisoned(3 * i + 2)) << kernel;
      }
    }
}

TEST(Lut, RowsOnEveryKernel) {
  constexpr std::int64_t kRows = 5, kLength = 77;
  auto x = normal_values(kRows * kLength, 8);
  x[3] = INFINITY;
  x[kLength + 1] = NAN;
  const auto weight = normal_values(kLength, 9);
  const TensorView x_view(x.data(), DType::f32, {kRows, kLength}), weights(weight.data(), DType::f32, {kLength});
  using Call = std::function<void(const TensorView&)>;
  const std::pair<const char*, Call> calls[] = {
      {"softmax", [&](const TensorView& y) { softmax(x_view, -1, y); }},
      {"softmax", [&](const TensorView& y) { softmax(x_view, 0, y); }},
      {"rms_norm", [&](const TensorView& y) { rms_norm(x_view, &weights, 1e-6f, y); }},
      {"rms_norm", [&](const TensorView& y) { rms_norm(x_view, nullptr, 0.0f, y); }},
  };
  for (const auto& [op, call] : calls) {
    std::vector<float> expected(kRows * kLength);
    {
      ForceKernel reference(op, "reference");
      call(TensorView(expected.data(), DType::f32, {kRows, kLength}));
    }
    for (const std::string& kernel : available(op)) {
      ForceKernel force(op, kernel);
      Guarded<float> y(kRows * kLength);
      call(TensorView(y.data(), DType::f32, {kRows, kLength}));
      EXPECT_EQ(last_kernel(op), kernel);
      EXPECT_TRUE(y.guards_intact());
      EXPECT_TRUE(same_bits({y.data(), y.data() + y.size()}, expected)) << op << " " << kernel;
    }
  }
}

TEST(Lut, BuiltinTables) {
  EXPECT_GE(builtin_luts().size(), 25u);
  float x[] = {1.0f, -2.0f}, y[2];
  for (const BuiltinLut& known : builtin_luts()) {
    const LutTable table = LutTable::builtin(known.name, known.range_reduction);
    EXPECT_EQ(table.entries(), 259);
    EXPECT_EQ(table.reduction() != LutReduction::none, known.range_reduction);
    lut(TensorView(x, DType::f32, {2}), table, TensorView(y, DType::f32, {2}));
  }
  lut(TensorView(x, DType::f32, {2}), LutTable::builtin("exp", true), TensorView(y, DType::f32, {2}));
  EXPECT_NEAR(y[0], 2.71828f, 2e-3f);
  EXPECT_NEAR(y[1], 0.135335f, 2e-4f);
  EXPECT_EQ(error_of<ValueError>([] { LutTable::builtin("sine", true); }).substr(0, 60),
            "lut table: there is no table 'sine' with range reduction, ex");
}

TEST(Lut, BadArgumentsWriteNothing) {
  const LutTable table = made_table(LutReduction::none);
  float x[6] = {}, y[6] = {7, 7, 7, 7, 7, 7};
  const TensorView x_view(x, DType::f32, {2, 3});
  EXPECT_EQ(error_of<ValueError>([&] { lut(x_view, table, TensorView(y, DType::f32, {3, 2})); }),
            "lut: out has shape [3, 2], expected [2, 3]");
  EXPECT_EQ(error_of<TypeError>([&] { lut(x_view, table, TensorView(y, DType::i32, {2, 3})); }),
            "lut: out has dtype int32, expected float32, float16 or bfloat16");
  EXPECT_EQ(
      error_of<ValueError>([&] { lut(TensorView(y, DType::f32, {5}), table, TensorView(y + 1, DType::f32, {5})); }),
      "lut: out overlaps x in memory, expected separate arrays");
  EXPECT_EQ(error_of<ValueError>([&] { softmax(x_view, 2, TensorView(y, DType::f32, {2, 3})); }),
            "softmax: axis is 2, expected -2 to 1 for x of shape [2, 3]");
  EXPECT_EQ(error_of<ValueError>([&] { rms_norm(x_view, nullptr, -1.0f, TensorView(y, DType::f32, {2, 3})); }),
            "rms_norm: eps is -1, expected a number from 0 to 1e30");
  EXPECT_TRUE(std::all_of(y, y + 6, [](float value) { return value == 7; }));
}

}  // namespace
}  // namespace qcore::test
