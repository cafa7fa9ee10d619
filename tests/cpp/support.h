#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "numerics/half_bits.h"
#include "qcore/qcore.h"
#include "random_numbers.h"

namespace qcore::test {

inline std::vector<float> normal_values(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  NormalNumbers normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

// Says whether threads can be started, as they can't in WebAssembly without the option for them.
inline bool has_threads() {
  try {
    std::thread([] {}).join();
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

inline std::uint32_t bits_of(float x) { return numerics::float_bits(x); }

// An array between guard zones. Elements and guards start out as the same improbable pattern, so that what was written,
// and where, can be told afterwards.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t count) : count_(count), bytes_(count * sizeof(T) + 2 * kGuard, kPoison) {}

  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuard); }
  T& operator[](std::int64_t i) { return data()[i]; }
  std::int64_t size() const { return count_; }

  bool poisoned(std::int64_t i) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(data() + i);
    for (std::size_t b = 0; b < sizeof(T); ++b)
      if (bytes[b] != kPoison) return false;
    return true;
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < kGuard; ++i)
      if (bytes_[i] != kPoison || bytes_[bytes_.size() - 1 - i] != kPoison) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xcb;
  std::int64_t count_;
  std::vector<unsigned char> bytes_;
};

struct WeightCase {
  int bits = 4;
  std::int64_t block_size = 64;
  Scheme scheme = Scheme::symmetric;
};

inline QuantizedTensor random_weight(std::int64_t n, std::int64_t k, const WeightCase& form, unsigned seed = 1) {
  const auto values = normal_values(n * k, seed);
  return QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {n, k}),
                                   {form.bits, form.block_size, form.scheme, Method::rtn});
}

inline LinearOptions computing(ComputeMode compute) {
  LinearOptions options;
  options.compute = compute;
  return options;
}

constexpr ComputeMode kComputes[] = {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym,
                                     ComputeMode::int16};

inline bool takes_bfloat_only(const std::string& kernel) {
  return kernel == "float_avx512bf16" || kernel == "float_amx";
}

// Says whether a kernel takes a mode, by its name: int8_* computes in int8 and int8_asym, and so on; reference in
// everything. Holds for x of fp32 or fp16: the kernels that multiply bf16 directly add in another order, see
// test_linear_bfloat.py.
inline bool takes(const std::string& kernel, ComputeMode compute) {
  if (kernel == "reference") return true;
  if (compute == ComputeMode::floating) return kernel.rfind("float_", 0) == 0 && !takes_bfloat_only(kernel);
  if (compute == ComputeMode::int16) return kernel.rfind("int16_", 0) == 0;
  return kernel.rfind("int8_", 0) == 0;
}

inline std::vector<std::string> available_cpu_kernels() {
  std::vector<std::string> names;
  for (const KernelInfo& row : kernels("linear"))
    if (row.available && row.device == "cpu") names.push_back(row.name);
  return names;
}

// y [M, N] of x [M, K], both contiguous fp32, on one kernel.
inline std::vector<float> linear_on(const std::string& kernel, const std::vector<float>& x, std::int64_t m,
                                    const QuantizedTensor& w, const LinearOptions& options,
                                    const TensorView* bias = nullptr) {
  ForceKernel force("linear", kernel);
  Guarded<float> y(m * w.rows());
  linear(TensorView(x.data(), DType::f32, {m, w.features()}), w, bias, TensorView(y.data(), DType::f32, {m, w.rows()}),
         options);
  EXPECT_EQ(last_kernel("linear"), kernel);
  EXPECT_TRUE(y.guards_intact()) << kernel;
  return {y.data(), y.data() + y.size()};
}

// Bit for bit; any NaN equals any other.
inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != a[i] && b[i] != b[i]) continue;
    if (bits_of(a[i]) != bits_of(b[i]))
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
  }
  return ::testing::AssertionSuccess();
}

template <class Thrown, class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Thrown& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

}  // namespace qcore::test
