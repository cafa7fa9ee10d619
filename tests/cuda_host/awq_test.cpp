// The CUDA rows of awq on the machine against the reference kernel: the same bits, and not a byte changed around them;
// the weight packed on the device against the CPU's.

#include "qcore/awq.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "awq/cuda/kernels.h"
#include "device_arrays.h"

namespace qcore {
namespace {

constexpr std::uint16_t kPattern = 0xcdcd;

// The three arrays, each row followed by `apart` elements of nothing.
struct Weight {
  std::int64_t k, n, group_size, apart;
  std::vector<std::int32_t> qweight, qzeros;
  std::vector<std::uint16_t> scales;

  Weight(Random& random, std::int64_t k_, std::int64_t n_, std::int64_t group, std::int64_t apart_ = 0)
      : k(k_), n(n_), group_size(group), apart(apart_) {
    const auto word = [&] { return static_cast<std::int32_t>(random.below(1 << 16) << 16 | random.below(1 << 16)); };
    for (std::int64_t i = 0; i < k * (n / 8 + apart); ++i) qweight.push_back(word());
    for (std::int64_t i = 0; i < k / group * (n / 8 + apart); ++i) qzeros.push_back(word());
    // Subnormal and large ones of both signs, no NaN, whose payload is the device's own.
    for (std::int64_t i = 0; i < k / group * (n + apart); ++i)
      scales.push_back(static_cast<std::uint16_t>(random.below(0x7c01) | random.below(2) << 15));
  }

  AwqWeight pointed_at(const void* words, const void* scale, const void* zeros, Device device) const {
    AwqWeight weight;
    weight.k = k, weight.n = n, weight.group_size = group_size;
    weight.qweight = static_cast<const std::uint32_t*>(words);
    weight.scales = static_cast<const std::uint16_t*>(scale);
    weight.qzeros = static_cast<const std::uint32_t*>(zeros);
    weight.qweight_row = weight.qzeros_row = n / 8 + apart;
    weight.scales_row = n + apart;
    weight.device = device;
    return weight;
  }

  AwqDescriptor descriptor() const {
    TensorView words(qweight.data(), DType::i32, {k, n / 8}), zeros(qzeros.data(), DType::i32, {k / group_size, n / 8}),
        scale(scales.data(), DType::f16, {k / group_size, n});
    words.strides[0] = zeros.strides[0] = n / 8 + apart;
    scale.strides[0] = n + apart;
    return AwqDescriptor::create(words, scale, zeros);
  }
};

// Where out lies: the strides of its elements along K and N, and its first element in a larger array.
struct Out {
  std::int64_t k, n, first;
};

bool is_nan(std::uint16_t half) { return (half & 0x7fff) > 0x7c00; }

void check(const Weight& weight, const Out& out, void (*run)(const AwqProblem&),
           const char* (*unsupported_reason)(const AwqProblem&), const std::string& what) {
  const std::int64_t room = out.first + (weight.k - 1) * out.k + (weight.n - 1) * out.n + 10;
  std::vector<std::uint16_t> expected(static_cast<std::size_t>(room), kPattern);
  {
    const ForceKernel reference("awq", "reference");
    TensorView view(expected.data() + out.first, DType::f16, {weight.k, weight.n});
    view.strides[0] = out.k, view.strides[1] = out.n;
    weight.descriptor().dequantize(view);
  }
  const DeviceArray<std::uint16_t> memory(std::vector<std::uint16_t>(static_cast<std::size_t>(room), kPattern));
  const DeviceArray<std::int32_t> qweight(weight.qweight), qzeros(weight.qzeros);
  const DeviceArray<std::uint16_t> scales(weight.scales);
  AwqProblem problem;
  problem.weight = weight.pointed_at(qweight.get(), scales.get(), qzeros.get(), kCuda);
  problem.out = memory.get() + out.first;
  problem.out_k = out.k, problem.out_n = out.n;
  problem.device = kCuda;
  ASSERT_EQ(unsupported_reason(problem), nullptr) << what;
  run(problem);
  const std::vector<std::uint16_t> given = memory.host();
  for (std::size_t i = 0; i < given.size(); ++i)
    ASSERT_TRUE(given[i] == expected[i] || (is_nan(given[i]) && is_nan(expected[i])))
        << what << ": element " << i << " of the buffer is " << given[i] << ", expected " << expected[i];
}

std::string of(const Weight& weight) {
  return "K " + std::to_string(weight.k) + " N " + std::to_string(weight.n) + " g " + std::to_string(weight.group_size);
}

struct Shape {
  std::int64_t k, n, group_size;
};
constexpr Shape kShapes[] = {{1, 8, 1},   {8, 8, 8},     {30, 24, 10},    {35, 40, 7},
                             {96, 8, 96}, {64, 264, 16}, {256, 520, 128}, {600, 16, 8}};

TEST(AwqCuda, Rows) {
  Random random(1);
  for (const Shape& s : kShapes)
    for (const std::int64_t apart : {0, 8}) {
      const Weight weight(random, s.k, s.n, s.group_size, apart);
      check(weight, {s.n, 1, 0}, run_awq_lop3, awq_lop3_unsupported_reason, of(weight));
      check(weight, {s.n + 16, 1, 8}, run_awq_lop3, awq_lop3_unsupported_reason, of(weight) + ", rows apart");
    }
}

TEST(AwqCuda, Columns) {
  Random random(2);
  for (const Shape& s : kShapes) {
    if (s.group_size % 8) continue;
    const Weight weight(random, s.k, s.n, s.group_size);
    check(weight, {1, s.k, 0}, run_awq_lop3, awq_lop3_unsupported_reason, of(weight));
    check(weight, {1, s.k + 24, 16}, run_awq_lop3, awq_lop3_unsupported_reason, of(weight) + ", columns apart");
  }
}

TEST(AwqCuda, Arithmetic) {
  Random random(3);
  for (const Shape& s : kShapes) {
    const Weight weight(random, s.k, s.n, s.group_size, 3);
    check(weight, {s.n, 1, 0}, run_awq_arithmetic, awq_arithmetic_unsupported_reason, of(weight));
    check(weight, {1, s.k, 1}, run_awq_arithmetic, awq_arithmetic_unsupported_reason, of(weight) + ", by columns");
    check(weight, {2 * s.n + 1, 2, 3}, run_awq_arithmetic, awq_arithmetic_unsupported_reason, of(weight) + ", strided");
  }
}

// More groups of rows than a grid has.
TEST(AwqCuda, ManyRows) {
  Random random(4);
  const Weight weight(random, 66000 * 4 + 5, 8, 1);
  check(weight, {8, 1, 0}, run_awq_lop3, awq_lop3_unsupported_reason, "many rows");
  const Weight fewer(random, 66000, 8, 1);
  check(fewer, {8, 1, 0}, run_awq_arithmetic, awq_arithmetic_unsupported_reason, "many rows");
}

// All 256 differences with scales of every exponent.
TEST(AwqCuda, EveryCodeAndZero) {
  Random random(5);
  Weight weight(random, 256, 64, 16);
  for (std::int64_t k = 0; k < 256; ++k)
    for (std::int64_t word = 0; word < 8; ++word) {
      weight.qweight[static_cast<std::size_t>(k * 8 + word)] = static_cast<std::int32_t>(0x11111111u * (k % 16));
      weight.qzeros[static_cast<std::size_t>(k / 16 * 8 + word)] = static_cast<std::int32_t>(0x11111111u * (k / 16));
    }
  for (std::size_t i = 0; i < weight.scales.size(); ++i)
    weight.scales[i] =
        static_cast<std::uint16_t>(i % 64 / 2 << 10 | random.below(i % 64 < 62 ? 1 << 10 : 1) | (i % 2) << 15);
  check(weight, {64, 1, 0}, run_awq_lop3, awq_lop3_unsupported_reason, "every code");
  check(weight, {1, 256, 0}, run_awq_lop3, awq_lop3_unsupported_reason, "every code, by columns");
  check(weight, {64, 1, 0}, run_awq_arithmetic, awq_arithmetic_unsupported_reason, "every code");
}

TEST(AwqCuda, Refusals) {
  AwqProblem problem;
  EXPECT_STREQ(awq_lop3_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(awq_arithmetic_unsupported_reason(problem), "it runs on CUDA devices");
  problem.device = kCuda;
  problem.out_k = 8;
  EXPECT_EQ(awq_lop3_unsupported_reason(problem), nullptr);
  problem.out = reinterpret_cast<std::uint16_t*>(std::uintptr_t{8});
  EXPECT_NE(awq_lop3_unsupported_reason(problem), nullptr);
  problem.out = nullptr;
  problem.out_k = 12;
  EXPECT_NE(awq_lop3_unsupported_reason(problem), nullptr);
  problem.out_k = 1, problem.out_n = 16;
  EXPECT_NE(awq_lop3_unsupported_reason(problem), nullptr) << "groups of one row";
  problem.weight.group_size = 8;
  EXPECT_EQ(awq_lop3_unsupported_reason(problem), nullptr);
  problem.weight.scales_row = 4;
  EXPECT_STREQ(awq_lop3_unsupported_reason(problem), "it takes rows of scales that are aligned to 16 bytes");
  problem.weight.scales_row = 8;
  problem.weight.qzeros_column = 2;
  EXPECT_STREQ(awq_lop3_unsupported_reason(problem), "it takes weights whose rows are contiguous");
}

TEST(AwqCuda, Pack) {
  Random random(6);
  for (const Shape& s : kShapes) {
    Weight weight(random, s.k, s.n, s.group_size, 5);
    for (std::uint16_t& scale : weight.scales) scale = static_cast<std::uint16_t>(scale & ~0x4000u);  // finite
    const QuantizedTensor expected = weight.descriptor().pack();
    ASSERT_TRUE(expected.packed().has_zero_points && expected.packed().finds_zero_points()) << of(weight);
    const PackedLayout& layout = expected.packed().layout;
    const auto count = static_cast<std::size_t>(layout.parameter_count());
    const DeviceArray<std::int32_t> qweight(weight.qweight), qzeros(weight.qzeros);
    const DeviceArray<std::uint16_t> scales(weight.scales);
    const DeviceArray<std::uint8_t> codes(std::vector<std::uint8_t>(static_cast<std::size_t>(layout.code_bytes()), 1));
    const DeviceArray<float> wide_scales(std::vector<float>(count, -1.0f)), offsets(std::vector<float>(count, -1.0f));
    PackedWeight packed;
    packed.layout = layout;
    packed.codes = codes.get();
    packed.scales.data = wide_scales.get();
    packed.offsets.data = offsets.get();
    const AwqWeight on_device = weight.pointed_at(qweight.get(), scales.get(), qzeros.get(), kCuda);
    pack_awq_on_cuda(on_device, packed);
    wait_for_awq_pack(on_device);
    ASSERT_EQ(std::memcmp(codes.get(), expected.packed().codes, static_cast<std::size_t>(layout.code_bytes())), 0)
        << of(weight);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(wide_scales.get()[i], expected.packed().scales[static_cast<std::int64_t>(i)]) << of(weight) << " " << i;
      ASSERT_EQ(offsets.get()[i], expected.packed().offsets[static_cast<std::int64_t>(i)]) << of(weight) << " " << i;
    }
  }
}

}  // namespace
}  // namespace qcore
