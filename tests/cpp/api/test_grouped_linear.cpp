#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>

#include "reference_results.h"
#include "support.h"

namespace qcore::test {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }

std::vector<std::string> grouped_kernels() {
  std::vector<std::string> names;
  for (const KernelInfo& row : kernels("grouped_linear"))
    if (row.available && row.device == "cpu") names.push_back(row.name);
  return names;
}

struct Experts {
  std::vector<QuantizedTensor> each;
  QuantizedTensor all;
};

Experts random_experts(std::int64_t experts, std::int64_t n, std::int64_t k, const WeightCase& form) {
  std::vector<QuantizedTensor> each;
  for (std::int64_t e = 0; e < experts; ++e) each.push_back(random_weight(n, k, form, static_cast<unsigned>(30 + e)));
  QuantizedTensor all = QuantizedTensor::concatenate(each.data(), experts);
  return {std::move(each), std::move(all)};
}

std::vector<float> grouped_on(const std::string& kernel, const std::vector<float>& x, const Counts& counts,
                              const QuantizedTensor& w, const LinearOptions& options, const TensorView* bias) {
  const auto experts = static_cast<std::int64_t>(counts.size()), n = w.rows() / experts, m = sum(counts);
  ForceKernel force("grouped_linear", kernel);
  Guarded<float> y(m * n);
  grouped_linear(TensorView(x.data(), DType::f32, {m, w.features()}), w,
                 TensorView(counts.data(), DType::i64, {experts}), bias, TensorView(y.data(), DType::f32, {m, n}),
                 options);
  EXPECT_EQ(last_kernel("grouped_linear"), kernel);
  EXPECT_TRUE(y.guards_intact()) << kernel;
  return {y.data(), y.data() + y.size()};
}

// What linear gives for each expert's rows.
std::vector<float> expert_by_expert(const std::vector<float>& x, const Counts& counts, const Experts& experts,
                                    const LinearOptions& options, const std::vector<float>& bias) {
  std::vector<float> y;
  const float* from = x.data();
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const QuantizedTensor& w = experts.each[e];
    const TensorView bias_view(&bias[e * static_cast<std::size_t>(w.rows())], DType::f32, {w.rows()});
    const std::vector<float> rows(from, from + counts[e] * w.features());
    if (counts[e] == 0) continue;
    const auto part = linear_on("reference", rows, counts[e], w, options, &bias_view);
    y.insert(y.end(), part.begin(), part.end());
    from += counts[e] * w.features();
  }
  return y;
}

constexpr WeightCase kForms[] = {
    {4, 32, Scheme::symmetric}, {4, 16, Scheme::asymmetric}, {8, 64, Scheme::symmetric}, {8, 48, Scheme::asymmetric}};

TEST(GroupedLinear, EveryKernelGivesTheReferencesBits) {
  const Counts some[] = {{3, 0, 1, 5}, {1, 1, 1, 1, 1, 1, 1, 1}, {9}, {0, 0, 40}, {0, 65, 2, 0, 13}};
  for (const Counts& counts : some)
    for (const std::int64_t n : {1, 16, 33, 96})
      for (const WeightCase& form : kForms) {
        const std::int64_t k = 100, m = sum(counts);
        const auto count = static_cast<std::int64_t>(counts.size());
        const Experts experts = random_experts(count, n, k, form);
        const auto x = normal_values(m * k, 31), bias = normal_values(count * n, 32);
        const TensorView bias_view(bias.data(), DType::f32, {count, n});
        for (const ComputeMode compute : kComputes) {
          LinearOptions options = computing(compute);
          if (form.bits == 4) options.activation.kind = ActivationKind::silu;
          const auto expected = grouped_on("reference", x, counts, experts.all, options, &bias_view);
          compare_with_unoptimized(expected);
          ASSERT_TRUE(same_bits(expert_by_expert(x, counts, experts, options, bias), expected));
          for (const std::string& kernel : grouped_kernels()) {
            if (!takes(kernel, compute)) continue;
            ASSERT_TRUE(same_bits(grouped_on(kernel, x, counts, experts.all, options, &bias_view), expected))
                << kernel << " N " << n << " bits " << form.bits << " compute " << static_cast<int>(compute);
          }
        }
      }
}

// Rows long enough for several runs of blocks, and work for several threads.
TEST(GroupedLinear, ThreadsDoNotChangeTheResult) {
  const Counts counts = {1, 0, 70, 1, 1, 30};
  const std::int64_t n = 200, k = 2080;
  const Experts experts = random_experts(6, n, k, {4, 64, Scheme::asymmetric});
  const auto x = normal_values(sum(counts) * k, 33);
  const int before = get_num_threads();
  for (const ComputeMode compute : kComputes) {
    const auto expected = grouped_on("reference", x, counts, experts.all, computing(compute), nullptr);
    for (const std::string& kernel : grouped_kernels())
      for (const int threads : {1, 2, 5}) {
        if (!takes(kernel, compute) || kernel == "reference") continue;
        set_num_threads(threads);
        EXPECT_TRUE(same_bits(grouped_on(kernel, x, counts, experts.all, computing(compute), nullptr), expected))
            << kernel << " on " << threads;
      }
  }
  set_num_threads(before);
}

TEST(GroupedLinear, StridesOfEveryArgument) {
  const std::int64_t m = 6, n = 20, k = 48;
  const Experts experts = random_experts(3, n, k, {8, 16, Scheme::symmetric});
  const auto x = normal_values(m * k, 34), bias = normal_values(3 * n, 35);
  const Counts counts = {2, 1, 3};
  const TensorView bias_view(bias.data(), DType::f32, {3, n});
  const LinearOptions options = computing(ComputeMode::int8);
  const auto expected = grouped_on("reference", x, counts, experts.all, options, &bias_view);

  std::vector<float> turned(m * k), turned_bias(3 * n);
  for (std::int64_t i = 0; i < m * k; ++i) turned[i % k * m + i / k] = x[i];
  for (std::int64_t i = 0; i < 3 * n; ++i) turned_bias[i % n * 3 + i / n] = bias[i];
  const std::int32_t backwards[] = {3, -9, 1, -9, 2};
  TensorView x_view(turned.data(), DType::f32, {m, k}), b_view(turned_bias.data(), DType::f32, {3, n});
  x_view.strides[0] = 1, x_view.strides[1] = m;
  b_view.strides[0] = 1, b_view.strides[1] = 3;
  TensorView count_view(backwards + 4, DType::i32, {3});
  count_view.strides[0] = -2;
  for (const std::string& kernel : grouped_kernels()) {
    if (!takes(kernel, options.compute)) continue;
    ForceKernel force("grouped_linear", kernel);
    Guarded<float> y(m * n * 2);
    TensorView y_view(y.data(), DType::f32, {m, n});
    y_view.strides[0] = 2, y_view.strides[1] = 2 * m;
    grouped_linear(x_view, experts.all, count_view, &b_view, y_view, options);
    std::vector<float> got;
    for (std::int64_t i = 0; i < m * n; ++i) got.push_back(y[i / n * 2 + i % n * 2 * m]);
    EXPECT_TRUE(same_bits(got, expected)) << kernel;
    for (std::int64_t i = 1; i < y.size(); i += 2) EXPECT_TRUE(y.poisoned(i)) << kernel;
    EXPECT_TRUE(y.guards_intact()) << kernel;
  }
}

TEST(GroupedLinear, BadArgumentsAreNamedAndNothingIsWritten) {
  const std::int64_t m = 4, n = 6, k = 8;
  const QuantizedTensor w = random_weight(3 * n, k, {8, 4, Scheme::symmetric});
  const auto x = normal_values(m * k, 36);
  Guarded<float> y(m * n);
  const TensorView x_view(x.data(), DType::f32, {m, k}), y_view(y.data(), DType::f32, {m, n});
  const auto error = [&](const Counts& counts, const TensorView* bias = nullptr) {
    const TensorView view(counts.data(), DType::i64, {static_cast<std::int64_t>(counts.size())});
    return error_of<ValueError>([&] { grouped_linear(x_view, w, view, bias, y_view, {}); });
  };
  EXPECT_EQ(error({1, -1, 4}), "grouped_linear: row_counts holds -1 at element 1, expected 0 or more");
  EXPECT_EQ(error({1, 1, 1}), "grouped_linear: row_counts sums to 3, expected the M = 4 rows of x");
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(error({1, kMost, kMost}),
            "grouped_linear: row_counts exceeds the rows of x at element 1: " + std::to_string(kMost) +
                " after 1 of the experts before, expected M = 4 in all");
  EXPECT_EQ(error({1, 1, 1, 1}),
            "grouped_linear: the weight has 18 rows, expected E*N: a multiple of the E = 4 elements of row_counts");
  EXPECT_EQ(error({}), "grouped_linear: row_counts has shape [0], expected [E] with at least one expert");
  EXPECT_EQ(error({4, 0}), "grouped_linear: out has shape [4, 6], expected [4, 9]");
  const auto bias = normal_values(3 * n, 37);
  const TensorView flat(bias.data(), DType::f32, {3 * n});
  EXPECT_EQ(error({4, 0, 0}, &flat), "grouped_linear: bias has shape [18], expected [3, 6]");
  const TensorView same(y.data(), DType::f32, {3, n});
  EXPECT_NE(error({4, 0, 0}, &same).find("grouped_linear: out"), std::string::npos);
  for (std::int64_t i = 0; i < y.size(); ++i) EXPECT_TRUE(y.poisoned(i));
  EXPECT_TRUE(y.guards_intact());
}

TEST(GroupedLinear, NoRows) {
  const QuantizedTensor w = random_weight(12, 8, {8, 4, Scheme::symmetric});
  const Counts none = {0, 0, 0};
  float x = 0, y = 7;
  grouped_linear(TensorView(&x, DType::f32, {0, 8}), w, TensorView(none.data(), DType::i64, {3}), nullptr,
                 TensorView(&y, DType::f32, {0, 4}), {});
  EXPECT_EQ(y, 7);
}

}  // namespace
}  // namespace qcore::test
