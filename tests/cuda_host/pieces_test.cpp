// The kernels one by one: every integer they make equals the definition's.

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <tuple>

#include "activations/cuda/kernels.h"
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
  QuantizedActivations y;
  y.codes = TensorView(codes.data(), sizeof(Code) == 1 ? DType::i8 : DType::i16, {m, k});
  y.scales = TensorView(expected.scales.data(), DType::f32, {m, blocks});
  if (mode == ComputeMode::int8_asym) y.offsets = TensorView(expected.offsets.data(), DType::f32, {m, blocks});
  y.block_size = block_size;
  y.mode = mode;
  quantize_activations(x, y);
  expected.codes.assign(codes.begin(), codes.end());
  for (std::int64_t at = 0; at < m * k; ++at) expected.sums[at / k * blocks + at % k / block_size] += codes[at];
  return expected;
}

// How rows of x are given, and how their codes are wanted.
struct Rows {
  std::int64_t m, k, block_size;
  ComputeMode mode;
  DType dtype = DType::f32;
  std::int64_t row_stride = 0;  // of x, if it is not k
  bool sums = true;             // and offsets, if they are not terms
  bool terms = false;
  std::int64_t padded = 0;  // of a block's codes, if it is not the next multiple of 16
  TiledRows tiled{};        // all but `stages` and `parameters`
};

std::string describe(const Rows& rows) {
  std::ostringstream text;
  text << "M " << rows.m << " K " << rows.k << " g " << rows.block_size << " mode " << static_cast<int>(rows.mode)
       << ' ' << name(rows.dtype) << " stride " << rows.row_stride << " sums " << rows.sums << " terms " << rows.terms
       << " padded " << rows.padded << " shift " << rows.tiled.shift << " arrays " << rows.tiled.arrays << " order "
       << static_cast<int>(rows.tiled.order);
  return text.str();
}

template <class Code>
void check_rows(const std::vector<float>& values, const Rows& given) {
  const auto [m, k, block_size, mode] = std::tie(given.m, given.k, given.block_size, given.mode);
  SCOPED_TRACE(describe(given));
  const std::int64_t stride = given.row_stride ? given.row_stride : k, size = item_size(given.dtype);
  std::vector<char> stored(static_cast<std::size_t>(m * stride * size));
  std::vector<float> rounded(values.size());
  for (std::int64_t i = 0; i < m * k; ++i) {
    const std::int64_t at = i / k * stride + i % k;
    store_float(stored.data(), given.dtype, at, values[i]);
    rounded[i] = load_float(stored.data(), given.dtype, at);
  }
  const TensorView x(rounded.data(), DType::f32, {m, k});
  const Expected expected = mode == ComputeMode::int16 ? expected_rows<std::int16_t>(x, block_size, mode)
                                                       : expected_rows<std::int8_t>(x, block_size, mode);
  const std::int64_t blocks = ceil_div(k, block_size);
  const std::int64_t padded = given.padded ? given.padded : round_up(std::min(block_size, k), 16);
  const std::int64_t tile_rows = given.tiled.shift ? round_up(m, given.tiled.rows()) : m;
  TiledRows tiled = given.tiled;
  tiled.stages = ceil_div(blocks * padded, TiledRows::kStageK);
  const std::int64_t row_codes = tiled.shift ? tiled.stages * TiledRows::kStageK : blocks * padded;
  const DeviceArray<char> device_x(stored);
  const DeviceArray<Code> codes(std::vector<Code>(tile_rows * row_codes, Code{99}));
  const std::vector<float> zeros(static_cast<std::size_t>(m * blocks));
  const DeviceArray<float> scales(zeros), sums(zeros), offsets(zeros),
      parameters(std::vector<float>(tile_rows * blocks * tiled.arrays));
  const DeviceArray<ActivationTerms> terms(std::vector<ActivationTerms>(zeros.size()));
  tiled.parameters = parameters.get();
  RowView rows;
  rows.data = device_x.get();
  rows.dtype = given.dtype;
  rows.leading = 1;
  rows.shape[0] = m;
  rows.strides[0] = stride;
  const bool arrays = !given.terms && tiled.shift == 0;
  QuantizedRows<Code> out{codes.get(), nullptr, nullptr, nullptr, m, blocks, padded};
  if (arrays) out.scales = scales.get();
  if (arrays && given.sums) out.scaled_sums = sums.get(), out.offsets = offsets.get();
  if (given.terms) out.terms = terms.get(), out.zero_code = 8;
  out.tiled = tiled;
  quantize_activations(rows, {}, 0, k, block_size, mode, out, nullptr);

  for (std::int64_t row = 0; row < m; ++row)
    for (std::int64_t p = 0; p < blocks; ++p) {
      const std::int64_t at = p * m + row, reference = row * blocks + p;
      const float scale = expected.scales[reference], offset = expected.offsets[reference],
                  sum = scale * static_cast<float>(expected.sums[reference]);
      if (tiled.shift) {
        const auto parameter = [&](int array) { return parameters.get()[tiled.parameter(row, p, blocks, array)]; };
        ASSERT_TRUE(same(parameter(0), scale));
        if (tiled.arrays > 1) {
          ASSERT_TRUE(same(parameter(1), sum) && same(parameter(2), offset));
        }
      } else if (given.terms) {
        const ActivationTerms& of = terms.get()[at];
        ASSERT_TRUE(same(of.scale, scale) && same(of.scaled_sum, sum) && same(of.offset, offset));
        ASSERT_EQ(of.shift, -8 * expected.sums[reference]);
      } else {
        ASSERT_TRUE(same(scales.get()[at], scale));
        if (given.sums) {
          ASSERT_TRUE(same(sums.get()[at], sum) && same(offsets.get()[at], offset));
        }
      }
      for (std::int64_t i = 0; i < padded; ++i) {
        const std::int64_t column = p * block_size + i;
        const int code = i < block_size && column < k ? expected.codes[row * k + column] : 0;
        const std::int64_t place = tiled.shift ? tiled.code(row, p * padded + i)
                                   : tiled.order == TiledRows::Order::nibbles
                                       ? reference * padded + TiledRows::nibble_order(static_cast<int>(i))
                                       : reference * padded + i;
        ASSERT_EQ(codes.get()[place], code) << "row " << row << " p " << p << " i " << i;
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
        check_rows<std::int16_t>(values, {m, k, block_size, mode});
        if (mode != ComputeMode::int16) check_rows<std::int8_t>(values, {m, k, block_size, mode});
      }
}

// As the public function has them on a device, with given scales too: any strides, and not a byte beside them changed.
TEST(Pieces, QuantizedActivations) {
  Random random(4);
  struct Shape {
    std::int64_t m, k, block_size;
  };
  constexpr Shape kShapes[] = {{5, 192, 64}, {3, 100, 32}, {4, 1072, 1072}, {2, 1040, 528}, {3, 31, 7}};
  for (const Shape& shape : kShapes)
    for (const ComputeMode mode : kModes)
      for (const float fixed : {0.0f, 0.02f})
        for (const bool apart : {false, true}) {
          if (fixed != 0.0f && mode != ComputeMode::int8) continue;
          const auto [m, k, block_size] = shape;
          const std::int64_t blocks = ceil_div(k, block_size), step = apart ? 2 : 1;
          std::vector<float> values = block_values(random, m, k, block_size);
          values[static_cast<std::size_t>(k)] = std::numeric_limits<float>::quiet_NaN();
          const bool words = mode == ComputeMode::int16, has_offsets = mode == ComputeMode::int8_asym;
          std::vector<char> codes(static_cast<std::size_t>(m * k * step * (words ? 2 : 1)), '\xcd');
          std::vector<float> scales(static_cast<std::size_t>(m * blocks * step), -1.0f), offsets = scales;
          const DeviceArray<float> device_x(values), device_scales(scales), device_offsets(offsets);
          const DeviceArray<char> device_codes(codes);
          const auto view = [&](void* data, DType dtype, std::int64_t columns) {
            TensorView array(data, dtype, {m, columns});
            array.strides[0] *= step, array.strides[1] *= step;
            return array;
          };
          const auto arrays = [&](char* to, float* of_scales, float* of_offsets) {
            QuantizedActivations y{
                view(to, words ? DType::i16 : DType::i8, k), view(of_scales, DType::f32, blocks), {}, block_size, mode};
            if (has_offsets) y.offsets = view(of_offsets, DType::f32, blocks);
            return y;
          };
          QuantizeActivationsOptions options;
          options.scale = fixed;
          quantize_activations(TensorView(values.data(), DType::f32, {m, k}),
                               arrays(codes.data(), scales.data(), offsets.data()), options);

          const QuantizedActivations y = arrays(device_codes.get(), device_scales.get(), device_offsets.get());
          ActivationsProblem problem;
          problem.x = row_view(TensorView(device_x.get(), DType::f32, {m, k}));
          problem.m = m, problem.k = k, problem.block_size = std::min(block_size, k), problem.mode = mode;
          problem.fixed_scale = fixed;
          problem.codes = row_view(y.codes), problem.scales = row_view(y.scales);
          if (has_offsets) problem.offsets = row_view(y.offsets);
          problem.device = kCuda;
          ASSERT_EQ(simt_activations_unsupported_reason(problem), nullptr);
          run_simt_activations(problem);
          ASSERT_EQ(device_codes.host(), codes);
          for (std::size_t i = 0; i < scales.size(); ++i) {
            ASSERT_TRUE(same(device_scales.get()[i], scales[i]));
            if (has_offsets) {
              ASSERT_TRUE(same(device_offsets.get()[i], offsets[i]));
            }
          }
        }
}

// Blocks that threads of a warp, and of a thread block, share by runs of 16 values, in every order of the codes.
TEST(Pieces, QuantizeAlignedRows) {
  struct Shape {
    std::int64_t m, k, block_size;
  };
  constexpr std::int64_t kThreadBlockValues = 512 * 16;
  constexpr Shape kShapes[] = {
      {5, 240, 48},                                                // idle lanes in each group
      {3, 1040, 80},                                               //
      {3, 512, 512},                                               // a warp
      {40, 256, 32},                                               // whole blocks of a power of two, for one lane,
      {70, 384, 64},                                               // for two in a row of six,
      {300, 128, 128},                                             // for four, in several thread blocks
      {4, 1072, 528},                                              // a thread block, and a last block of one run
      {2, 2048, 4096},                                             // a block longer than the row
      {1, kThreadBlockValues, kThreadBlockValues},                 // each thread one run
      {2, kThreadBlockValues + 16, kThreadBlockValues + 16},       // two
      {1, 2 * kThreadBlockValues + 48, 3 * kThreadBlockValues},    // four
      {1, 4 * kThreadBlockValues + 1040, 5 * kThreadBlockValues},  // and more
  };
  Random random(3);
  for (const Shape& shape : kShapes) {
    const auto [m, k, block_size] = shape;
    std::vector<float> values = block_values(random, m, k, block_size);
    if (m > 1) {
      values[random.below(static_cast<int>(k))] = std::numeric_limits<float>::quiet_NaN();
      values[random.below(static_cast<int>(k))] = -std::numeric_limits<float>::infinity();
    }
    for (const ComputeMode mode : {ComputeMode::int8, ComputeMode::int8_asym}) {
      check_rows<std::int8_t>(values, {m, k, block_size, mode});
      check_rows<std::int8_t>(values, {m, k, block_size, mode, DType::bf16, k + 8, false});
      check_rows<std::int8_t>(values, {m, k, block_size, mode, DType::f16, k + 1});  // not aligned
      Rows rows{m, k, block_size, mode, DType::f16};
      rows.terms = true;
      check_rows<std::int8_t>(values, rows);
      if (block_size % 32 == 0) {
        rows.terms = false;
        rows.padded = round_up(std::min(block_size, k), 32);
        rows.tiled.order = TiledRows::Order::nibbles;
        check_rows<std::int8_t>(values, rows);
      }
      for (const auto order : {TiledRows::Order::bytes, TiledRows::Order::nibbles}) {
        if (block_size < k && k % TiledRows::kStageK) continue;
        Rows tiled{m, k, block_size, mode, DType::bf16};
        tiled.padded = block_size < k ? block_size : round_up(k, TiledRows::kStageK);
        tiled.tiled.shift = 5;
        tiled.tiled.order = order;
        check_rows<std::int8_t>(values, tiled);
        tiled.tiled.arrays = 3;
        check_rows<std::int8_t>(values, tiled);
      }
    }
  }
}

TEST(Pieces, UnpackWeightAndItsSums) {
  Random random(2);
  for (const int bits : {4, 8})
    for (const std::int64_t block_size : {1, 6, 16, 64, 200, 1500, 3001})
      for (const std::int64_t n : {1, 17, 40})
        for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric}) {
          const std::int64_t k = block_size > 200 ? 3001 : 130;
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
