#include <algorithm>
#include <cstdlib>
#include <thread>

#include "support.h"

namespace qcore::test {
namespace {

void run_once(ComputeMode compute = ComputeMode::int8) {
  static const auto w = random_weight(8, 64, {});
  const auto x = normal_values(64, 2);
  float y[8];
  linear(TensorView(x.data(), DType::f32, {1, 64}), w, nullptr, TensorView(y, DType::f32, {1, 8}), computing(compute));
}

std::uint64_t runs_of(const std::string& kernel) {
  for (const KernelInfo& row : kernels("linear"))
    if (row.name == kernel) return row.runs;
  return 0;
}

TEST(Kernels, ReferenceIsLastAndAlwaysThere) {
  const auto rows = kernels("linear");
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows.back().name, "reference");
  EXPECT_TRUE(rows.back().available);
  EXPECT_GE(kernels().size(), rows.size());
}

TEST(Kernels, AForcedKernelRunsAndIsRecorded) {
  for (const std::string& kernel : available_cpu_kernels())
    for (const ComputeMode compute : kComputes) {
      if (!takes(kernel, compute)) continue;
      const std::uint64_t before = runs_of(kernel);
      ForceKernel force("linear", kernel);
      run_once(compute);
      EXPECT_EQ(last_kernel("linear"), kernel);
      EXPECT_EQ(runs_of(kernel), before + 1);
    }
}

TEST(Kernels, WithoutForceTheFirstThatTakesTheCallRuns) {
  const auto names = available_cpu_kernels();
  for (const ComputeMode compute : kComputes) {
    run_once(compute);
    const auto first = std::find_if(names.begin(), names.end(), [&](const auto& name) {
      return takes(name, compute) && name != "int8_amx" && name != "int16_amx";  // which a single row is too few for
    });
    EXPECT_EQ(last_kernel("linear"), *first);
  }
}

TEST(Kernels, ScopesNestAndEnd) {
  run_once();
  const std::string usual = last_kernel("linear");
  {
    ForceKernel outer("linear", "reference");
    {
      ForceKernel inner("linear", usual);
      run_once();
      EXPECT_EQ(last_kernel("linear"), usual);
    }
    run_once();
    EXPECT_EQ(last_kernel("linear"), "reference");
  }
  run_once();
  EXPECT_EQ(last_kernel("linear"), usual);
}

TEST(Kernels, ForceAndRecordBelongToTheThread) {
  if (!has_threads()) GTEST_SKIP() << "no threads";
  ForceKernel force("linear", "reference");
  run_once();
  std::thread([] {
    EXPECT_EQ(last_kernel("linear"), "");
    run_once();
    EXPECT_EQ(last_kernel("linear") == "reference", available_cpu_kernels().front() == "reference");
  }).join();
  EXPECT_EQ(last_kernel("linear"), "reference");
}

TEST(Kernels, AForcedKernelSaysWhyItRefuses) {
  for (const std::string& kernel : available_cpu_kernels())
    for (const ComputeMode compute : kComputes) {
      if (takes(kernel, compute)) continue;
      ForceKernel force("linear", kernel);
      const std::string text = error_of<ValueError>([&] { run_once(compute); });
      EXPECT_EQ(text.find("linear: the forced kernel '" + kernel + "' does not take this call: it computes in"), 0u)
          << text;
    }
}

TEST(Kernels, UnknownNamesAreRefused) {
  const std::string unknown = error_of<ValueError>([] { kernels("lineer"); });
  EXPECT_EQ(unknown.find("kernels: there is no operator 'lineer', expected one of: "), 0u) << unknown;
  EXPECT_NE(unknown.find("linear"), std::string::npos) << unknown;
  EXPECT_EQ(error_of<ValueError>([] {
              ForceKernel("linear", "fastest");
            }).find("force_kernel: operator 'linear' has no kernel 'fastest', expected one of: "),
            0u);
}

TEST(Kernels, UnavailableKernelsSayWhatTheyNeed) {
  for (const KernelInfo& row : kernels("linear")) {
    if (row.available) continue;
    const std::string text = error_of<ValueError>([&] { ForceKernel(row.op, row.name); });
    EXPECT_EQ(text, "force_kernel: kernel '" + row.name + "' of operator 'linear' is not available here: it needs " +
                        row.needs);
  }
}

TEST(Threads, CountIsChecked) {
  const int before = get_num_threads();
  for (const int bad : {0, -1, 1025})
    EXPECT_EQ(error_of<ValueError>([&] { set_num_threads(bad); }),
              "set_num_threads: n is " + std::to_string(bad) + ", expected 1 to 1024");
  EXPECT_EQ(get_num_threads(), before);
  set_num_threads(3);
  EXPECT_EQ(get_num_threads(), 3);
  set_num_threads(before);
}

TEST(Cuda, WithoutADeviceThereIsAReason) {
  const CudaInfo info = cuda_info();
  EXPECT_EQ(info.devices.size(), static_cast<std::size_t>(info.device_count));
  EXPECT_EQ(info.device_count == 0, !info.reason.empty());
  if (info.device_count == 0) {
    const auto w = random_weight(4, 64, {});
    EXPECT_NE(error_of<CudaError>([&] { w.to({DeviceType::cuda, 0}); }), "no exception");
  }
}

// The three tests of an environment variable are told what to expect by it; tests/cpp/CMakeLists.txt runs them so.
TEST(Environment, IsaIsCapped) {
  const char* cap = std::getenv("QCORE_ISA");
  if (!cap) GTEST_SKIP() << "QCORE_ISA is not set";
  const auto features = cpu_features();
  const auto has = [&](const char* isa) { return std::count(features.begin(), features.end(), isa) > 0; };
  const std::string limit = cap;
  EXPECT_TRUE(limit == "amx" || !has("amx"));
  EXPECT_TRUE(limit == "amx" || limit == "avx512vnni" || !has("avx512vnni"));
  EXPECT_TRUE(limit == "amx" || limit == "avx512vnni" || limit == "avxvnni" || !has("avxvnni"));
  EXPECT_TRUE(limit == "i8mm" || !has("i8mm"));
  EXPECT_TRUE(limit == "i8mm" || limit == "dotprod" || !has("dotprod"));
  EXPECT_TRUE(limit != "baseline" || features.empty());
  for (const std::string& kernel : available_cpu_kernels()) {
    EXPECT_TRUE(limit != "baseline" || kernel == "reference") << kernel;
    EXPECT_TRUE(limit == "amx" || kernel.find("amx") == std::string::npos) << kernel;
    EXPECT_TRUE(limit == "amx" || limit == "avx512vnni" || kernel.find("avx512") == std::string::npos) << kernel;
    EXPECT_TRUE(limit == "i8mm" || kernel.find("i8mm") == std::string::npos) << kernel;
    EXPECT_TRUE(limit != "neon" || kernel.find("dotprod") == std::string::npos) << kernel;
  }
}

TEST(Environment, KernelIsForced) {
  if (!std::getenv("QCORE_FORCE_KERNEL")) GTEST_SKIP() << "QCORE_FORCE_KERNEL is not set";
  run_once();
  EXPECT_EQ(last_kernel("linear"), "reference");
}

TEST(Environment, ThreadsAreSet) {
  const char* value = std::getenv("QCORE_NUM_THREADS");
  if (!value) GTEST_SKIP() << "QCORE_NUM_THREADS is not set";
  EXPECT_EQ(get_num_threads(), std::atoi(value));
}

}  // namespace
}  // namespace qcore::test
