#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference_results.h"
#include "support.h"

// Encoded weights: every kernel of linear, those of AVX-VNNI among them, against the reference.
namespace qcore::test {
namespace {

// Parts of a random encoded weight.
struct EncodedCase {
  WeightEncoding encoding;
  std::int64_t n, k, block_size;
  std::vector<std::uint8_t> codes, scales, offsets;
  std::vector<std::uint16_t> super_scales, super_offsets;

  QuantizedTensor weight() {
    const std::int64_t blocks = (k + block_size - 1) / block_size;
    const std::int64_t supers = encoding.super_block ? (blocks + encoding.super_block - 1) / encoding.super_block : 0;
    const auto numbers = [&](std::vector<std::uint8_t>& values, ParameterType type, unsigned step) {
      const bool half = type == ParameterType::f16;
      const int bits = type == ParameterType::u6 ? 6 : type == ParameterType::u8 || type == ParameterType::z8 ? 8 : 4;
      values.resize(static_cast<std::size_t>(n * blocks * (half ? 2 : 1)));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = half ? (i % 2 ? 0x24 : static_cast<std::uint8_t>(i * step))
                         : static_cast<std::uint8_t>((i * step + i / 7) % (1u << bits));
      return TensorView(values.data(), half ? DType::f16 : DType::u8, {n, blocks});
    };
    const auto halves = [&](std::vector<std::uint16_t>& values, std::uint16_t first) {
      values.resize(static_cast<std::size_t>(n * supers));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(first + 37 * i % 1024);
      return TensorView(values.data(), DType::f16, {n, supers});
    };
    codes.resize(static_cast<std::size_t>(n * k));
    for (std::size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<std::uint8_t>((i * 2654435761u >> 13) % (1u << encoding.bits));
    const auto is_integer = [](ParameterType type) {
      return type == ParameterType::u4 || type == ParameterType::u6 || type == ParameterType::u8;
    };
    EncodedParts parts;
    parts.codes = TensorView(codes.data(), DType::u8, {n, k});
    parts.scales = numbers(scales, encoding.scales, 11);
    TensorView offsets_view, super_scales_view, super_offsets_view;
    if (encoding.offsets != ParameterType::none) {
      offsets_view = numbers(offsets, encoding.offsets, 5);
      parts.offsets = &offsets_view;
    }
    if (is_integer(encoding.scales)) {
      super_scales_view = halves(super_scales, 0x2000);
      parts.super_scales = &super_scales_view;
    }
    if (is_integer(encoding.offsets)) {
      super_offsets_view = halves(super_offsets, 0x2100);
      parts.super_offsets = &super_offsets_view;
    }
    return QuantizedTensor::from_encoded(encoding, parts, block_size);
  }
};

WeightEncoding encoding(int bits, int zero, ParameterType scales, ParameterType offsets, std::int64_t super_block) {
  WeightEncoding made;
  made.bits = bits;
  made.zero = zero;
  made.scales = scales;
  made.offsets = offsets;
  made.super_block = super_block;
  return made;
}

std::vector<EncodedCase> cases() {
  using Type = ParameterType;
  WeightEncoding codebook = encoding(4, 0, Type::f16, Type::none, 0);
  codebook.has_codebook = true;
  for (int u = 0; u < 16; ++u) codebook.codebook[u] = static_cast<std::int8_t>(17 * u - 127);
  std::vector<EncodedCase> found;
  for (const WeightEncoding& each : {encoding(2, 0, Type::u4, Type::u4, 16), encoding(3, 4, Type::u6, Type::none, 16),
                                     encoding(4, 0, Type::u6, Type::u6, 8), encoding(4, 8, Type::f16, Type::z4, 0),
                                     encoding(5, 0, Type::f16, Type::f16, 0), encoding(6, 32, Type::u8, Type::none, 16),
                                     encoding(8, 128, Type::f16, Type::z8, 0), codebook})
    for (const auto& [n, k, g] : {std::array<std::int64_t, 3>{40, 512, 32}, {80, 256, 16}, {17, 130, 20}})
      found.push_back({each, n, k, g, {}, {}, {}, {}, {}});
  return found;
}

TEST(EncodedWeights, EveryKernelGivesTheReferencesBits) {
  for (EncodedCase& each : cases()) {
    const QuantizedTensor w = each.weight();
    for (const std::int64_t m : {1, 3, 4, 9, 20}) {
      const auto x = normal_values(m * each.k, 21);
      for (const ComputeMode compute : kComputes) {
        const auto expected = linear_on("reference", x, m, w, computing(compute));
        compare_with_unoptimized(expected);
        for (const std::string& kernel : available_cpu_kernels()) {
          if (!takes(kernel, compute)) continue;
          ASSERT_TRUE(same_bits(linear_on(kernel, x, m, w, computing(compute)), expected))
              << kernel << " M " << m << " N " << each.n << " K " << each.k << " g " << each.block_size << " bits "
              << each.encoding.bits << " compute " << static_cast<int>(compute);
        }
      }
    }
  }
}

TEST(EncodedWeights, PartsComeBack) {
  for (EncodedCase& each : cases()) {
    const QuantizedTensor w = each.weight();
    std::vector<std::uint8_t> codes(each.codes.size(), 0xee), scales(each.scales.size()), offsets(each.offsets.size());
    std::vector<std::uint16_t> super_scales(each.super_scales.size()), super_offsets(each.super_offsets.size());
    const std::int64_t n = each.n, blocks = w.blocks();
    const std::int64_t supers =
        each.encoding.super_block ? (blocks + each.encoding.super_block - 1) / each.encoding.super_block : 0;
    const auto parameters = [&](std::vector<std::uint8_t>& values, ParameterType type) {
      return TensorView(values.data(), type == ParameterType::f16 ? DType::f16 : DType::u8, {n, blocks});
    };
    const TensorView offsets_view = parameters(offsets, each.encoding.offsets);
    const TensorView super_scales_view(super_scales.data(), DType::f16, {n, supers});
    const TensorView super_offsets_view(super_offsets.data(), DType::f16, {n, supers});
    EncodedParts out;
    out.codes = TensorView(codes.data(), DType::u8, {n, each.k});
    out.scales = parameters(scales, each.encoding.scales);
    if (!offsets.empty()) out.offsets = &offsets_view;
    if (!super_scales.empty()) out.super_scales = &super_scales_view;
    if (!super_offsets.empty()) out.super_offsets = &super_offsets_view;
    w.encoded_parts(out);
    EXPECT_EQ(codes, each.codes);
    EXPECT_EQ(scales, each.scales);
    EXPECT_EQ(offsets, each.offsets);
    EXPECT_EQ(super_scales, each.super_scales);
    EXPECT_EQ(super_offsets, each.super_offsets);
  }
}

// Rows of ordinary, zero, constant and one-sided blocks.
std::vector<float> mixed_weights(std::int64_t count) {
  auto values = normal_values(count, 33);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t kind = i / 40 % 5;
    values[i] = kind == 1 ? 0.0f : kind == 2 ? 0.25f : kind == 3 ? std::abs(values[i]) : 0.02f * values[i];
  }
  return values;
}

TEST(EncodedWeights, EveryKernelQuantizesToTheReferencesBits) {
  const std::int64_t n = 9, k = 530;
  const auto values = mixed_weights(n * k), counts = mixed_weights(k);
  std::vector<float> importance(counts.size());
  for (std::size_t i = 0; i < importance.size(); ++i) importance[i] = counts[i] * counts[i];
  const TensorView weight(values.data(), DType::f32, {n, k}), importance_view(importance.data(), DType::f32, {k});
  std::vector<WeightEncoding> encodings;
  for (const EncodedCase& each : cases()) encodings.push_back(each.encoding);
  for (const ParameterType type : {ParameterType::e8m0, ParameterType::e4m3}) {
    encodings.push_back(encodings.back());  // the codebook
    encodings.back().scales = type;
    encodings.back().tensor_scale = 0.001f;
  }
  const auto run = [&](const std::string& kernel, const WeightEncoding& encoding, Method method) {
    const ForceKernel force("quantize_encoded", kernel);
    auto w = QuantizedTensor::quantize_encoded(weight, encoding, 32, method,
                                               method == Method::awq ? &importance_view : nullptr);
    EXPECT_EQ(last_kernel("quantize_encoded"), kernel);
    return w;
  };
  for (const WeightEncoding& encoding : encodings)
    for (const Method method : {Method::rtn, Method::mse, Method::awq}) {
      const QuantizedTensor expected = run("reference", encoding, method);
      std::vector<float> decoded(static_cast<std::size_t>(n * k));
      expected.dequantize(TensorView(decoded.data(), DType::f32, {n, k}));
      compare_with_unoptimized(decoded);
      for (const KernelInfo& row : kernels("quantize_encoded")) {
        if (!row.available) continue;
        EXPECT_TRUE(run(row.name, encoding, method).equal(expected)) << row.name;
      }
    }
}

}  // namespace
}  // namespace qcore::test
