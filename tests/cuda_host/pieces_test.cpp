// The kernels one by one: every integer they make equals the definition's.

#include <gtest/gtest.h>

#include "device_arrays.h"
#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "linear/cuda/sm75_int8_sliced/unpack_weight.cuh"
#include "numerics/block_product.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr ComputeMode kModes[] = {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16};

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || numerics::float_bits(a) == numerics::float_bits(b);
}

// Results of the public function for x, on the CPU.
struct Expected {
  std::vector<int> codes;
  std::vector<float> scales, offsets;
  std::vector<std::int32_t> sums;
};

template <class Code>
Expected expected_rows(const TensorView& x, std::int64_t block_size, ComputeMode mode) {
  const std::int64_t m = x.shape[0], k = x.shape[1], blocks = ceil_div(k, block_size);
  std::vector<Code> codes(m * k);
  Expected expected{
      {}, std::vector<float>(m * blocks), std::vector<float>(m * blocks), std::vector<std::int32_t>(m * blocks)};
  const TensorView offsets(expected.offsets.data(), DType::f32, {m, blocks});
  quantize_activations(x, block_size, mode,
                       TensorView(codes.data(), sizeof(Code) == 1 ? DType::i8 : DType::i16, {m, k}),
                       TensorView(expected.scales.data(), DType::f32, {m, blocks}), &offsets,
                       TensorView(expected.sums.data(), DType::i32, {m, blocks}));
  expected.codes.assign(codes.begin(), codes.end());
  return expected;
}

template <class Code>
void check_rows(const std::vector<float>& values, std::int64_t m, std::int64_t k, std::int64_t block_size,
                ComputeMode mode) {
  const TensorView x(values.data(), DType::f32, {m, k});
  const Expected expected = mode == ComputeMode::int16 ? expected_rows<std::int16_t>(x, block_size, mode)
                                                       : expected_rows<std::int8_t>(x, block_size, mode);
  const std::int64_t blocks = ceil_div(k, block_size), padded = round_up(std::min(block_size, k), 16);
  const DeviceArray<float> device_x(values);
  const DeviceArray<Code> codes(std::vector<Code>(m * blocks * padded, Code{99}));
  const DeviceArray<float> scales(std::vector<float>(m * blocks)), sums(std::vector<float>(m * blocks)),
      offsets(std::vector<float>(m * blocks));
  RowView rows;
  rows.data = device_x.get();
  rows.leading = 1;
  rows.shape[0] = m;
  rows.strides[0] = k;
  const QuantizedRows<Code> out{codes.get(), scales.get(), sums.get(), offsets.get(), m, blocks, padded};
  quantize_activations(rows, 0, k, block_size, mode, out, nullptr);

  for (std::int64_t row = 0; row < m; ++row)
    for (std::int64_t p = 0; p < blocks; ++p) {
      const std::int64_t at = p * m + row, reference = row * blocks + p;
      ASSERT_TRUE(same(scales.get()[at], expected.scales[reference]));
      ASSERT_TRUE(same(offsets.get()[at], expected.offsets[reference]));
      ASSERT_TRUE(same(sums.get()[at], expected.scales[reference] * static_cast<float>(expected.sums[reference])));
      for (std::int64_t i = 0; i < padded; ++i) {
        const std::int64_t column = p * block_size + i;
        const int code = i < block_size && column < k ? expected.codes[row * k + column] : 0;
        ASSERT_EQ(codes.get()[(row * blocks + p) * padded + i], code) << "row " << row << " p " << p << " i " << i;
      }
    }
}

TEST(Pieces, QuantizeActivations) {
  Random random(1);
  for (const std::int64_t block_size : {1, 16, 33, 64, 300})
    for (const std::int64_t k : {1, 31, 64, 130})
      for (const ComputeMode mode : kModes) {
        const std::int64_t m = 5;
        std::vector<float> values = block_values(random, m, k, block_size);
        values[random.below(static_cast<int>(values.size()))] = std::numeric_limits<float>::quiet_NaN();
        values[random.below(static_cast<int>(values.size()))] = -std::numeric_limits<float>::infinity();
        check_rows<std::int16_t>(values, m, k, block_size, mode);
        if (mode != ComputeMode::int16) check_rows<std::int8_t>(values, m, k, block_size, mode);
      }
}

TEST(Pieces, UnpackWeightAndItsSums) {
  Random random(2);
  for (const int bits : {4, 8})
    for (const std::int64_t block_size : {1, 6, 16, 64, 200})
      for (const std::int64_t n : {1, 17, 40})
        for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric}) {
          const std::int64_t k = 130;
          const QuantizedTensor weight = random_weight(random, n, k, block_size, bits, scheme);
          const PackedWeight& packed = weight.packed();
          const PackedLayout& layout = packed.layout;
          const auto moved = on_device(packed);
          DeviceWeight w = device_weight(*moved);

          const std::int64_t padded = round_up(std::min(block_size, k), 16);
          const std::int64_t first = layout.blocks() / 3, blocks = layout.blocks() - first;
          const DeviceArray<std::int8_t> codes(std::vector<std::int8_t>(round_up(n, 16) * blocks * padded, 99));
          unpack_weight(w, first, blocks, padded, codes.get(), nullptr);
          for (std::int64_t row = 0; row < round_up(n, 16); ++row)
            for (std::int64_t p = first; p < layout.blocks(); ++p)
              for (std::int64_t i = 0; i < padded; ++i) {
                const bool valid = row < n && i < layout.block_length(p);
                ASSERT_EQ(codes.get()[(row * blocks + p - first) * padded + i],
                          valid ? packed.code(row, p * block_size + i) : 0);
              }

          const DeviceArray<float> sums(std::vector<float>(layout.parameter_count(), -1.0f));
          add_weight_sums(w, sums.get(), nullptr);
          for (std::int64_t row = 0; row < n; ++row)
            for (std::int64_t p = 0; p < layout.blocks(); ++p) {
              std::int64_t sum = 0;
              for (std::int64_t i = 0; i < layout.block_length(p); ++i) sum += packed.code(row, p * block_size + i);
              const float expected =
                  numerics::block_weight_sum(sum, layout.block_length(p), packed.scale(row, p), packed.offset(row, p));
              ASSERT_TRUE(same(sums.get()[layout.parameter_index(row, p)], expected));
            }
        }
}

}  // namespace
}  // namespace qcore
