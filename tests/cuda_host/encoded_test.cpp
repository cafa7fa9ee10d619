// Encoded weights on the machine: few rows by gemv_encoded, others by expand_weight and the kernels of plain weights,
// against the reference kernel of libqcore, and embedding against the CPU's. The same bits.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "device_arrays.h"
#include "embedding/problem.h"
#include "formats/row_view.h"
#include "gemm/cuda/sm80_int8_mma16/arguments.cuh"
#include "linear/cuda/kernels.h"
#include "linear/grouped/cuda/kernels.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using Type = ParameterType;

struct Form {
  const char* name;
  int bits, zero;
  Type scales, offsets;
  std::int64_t super_block, block_size;
  bool codebook = false;
  int scale_zero = 0;
};

// Every width, every type of parameter, and every size of blocks that gemv_encoded has code for.
constexpr Form kForms[] = {
    {"q2_k", 2, 0, Type::u4, Type::u4, 16, 16},
    {"q3_k", 3, 4, Type::u6, Type::none, 16, 16, false, 32},
    {"q4_k", 4, 0, Type::u6, Type::u6, 8, 32},
    {"q5_k", 5, 0, Type::u6, Type::u6, 8, 32},
    {"q6_k", 6, 32, Type::u8, Type::none, 16, 16, false, 128},
    {"q4_1", 4, 0, Type::f16, Type::f16, 0, 32},
    {"q5_0", 5, 16, Type::f16, Type::none, 0, 32},
    {"tq2_0", 2, 1, Type::f16, Type::none, 0, 256},
    {"iq4_nl", 4, 0, Type::f16, Type::none, 0, 32, true},
    {"iq4_xs", 4, 0, Type::u6, Type::none, 8, 32, true, 32},
    {"mxfp4", 4, 0, Type::e8m0, Type::none, 0, 32, true},
    {"nvfp4", 4, 0, Type::e4m3, Type::none, 0, 16, true},
    {"nf4", 4, 0, Type::f32, Type::none, 0, 64, true},
    {"awq", 4, 8, Type::f16, Type::z4, 0, 128},
    {"hqq", 3, 0, Type::bf16, Type::z8, 0, 64},
    {"hqq of 4 bits", 4, 0, Type::f16, Type::z8, 0, 64},
    {"q4_0", 4, 8, Type::f16, Type::none, 0, 32},
    {"gptq", 8, 128, Type::f32, Type::z8, 0, 128},
    {"wide", 6, 32, Type::bf16, Type::bf16, 0, 128},
    {"row of zeros", 5, 16, Type::f32, Type::f32, 0, 1 << 20},
    {"row", 4, 0, Type::f16, Type::none, 0, 1 << 20, true},
    // Expanded only.
    {"odd blocks", 3, 4, Type::u8, Type::u8, 3, 20},
    {"short codebook", 2, 0, Type::f32, Type::z4, 0, 24, false},
};

// The weight and the arrays that it is made of.
class RandomEncoded {
 public:
  RandomEncoded(const Form& form, std::int64_t n, std::int64_t k, unsigned seed) : random_(seed) {
    encoding_.bits = form.bits, encoding_.zero = form.zero;
    encoding_.scales = form.scales, encoding_.offsets = form.offsets;
    encoding_.super_block = form.super_block, encoding_.scale_zero = form.scale_zero;
    encoding_.tensor_scale = 0.5f;
    encoding_.has_codebook = form.codebook;
    for (int u = 0; u < 16 && form.codebook; ++u) encoding_.codebook[u] = static_cast<std::int8_t>(17 * u - 127);
    n_ = n, k_ = k, block_size_ = form.block_size;
  }

  QuantizedTensor weight() {
    const std::int64_t blocks = ceil_div(k_, block_size_);
    const std::int64_t supers = encoding_.super_block ? ceil_div(blocks, encoding_.super_block) : 0;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n_ * k_));
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random_.below(1 << encoding_.bits));
    std::vector<std::uint8_t> scales, offsets;
    std::vector<std::uint16_t> super_scales = halves(n_ * supers), super_offsets = halves(n_ * supers);
    const auto integer = [](Type type) { return type == Type::u4 || type == Type::u6 || type == Type::u8; };
    EncodedParts parts;
    parts.codes = TensorView(codes.data(), DType::u8, {n_, k_});
    parts.scales = numbers(scales, encoding_.scales, blocks);
    TensorView offsets_view, super_scales_view, super_offsets_view;
    if (encoding_.offsets != Type::none) {
      offsets_view = numbers(offsets, encoding_.offsets, blocks);
      parts.offsets = &offsets_view;
    }
    if (integer(encoding_.scales)) {
      super_scales_view = TensorView(super_scales.data(), DType::f16, {n_, supers});
      parts.super_scales = &super_scales_view;
    }
    if (integer(encoding_.offsets)) {
      super_offsets_view = TensorView(super_offsets.data(), DType::f16, {n_, supers});
      parts.super_offsets = &super_offsets_view;
    }
    return QuantizedTensor::from_encoded(encoding_, parts, block_size_);
  }

 private:
  std::vector<std::uint16_t> halves(std::int64_t count) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
    for (std::uint16_t& value : values) value = static_cast<std::uint16_t>(0x2000 + random_.below(0x400));
    return values;
  }
  TensorView numbers(std::vector<std::uint8_t>& values, Type type, std::int64_t blocks) {
    const bool f32 = type == Type::f32, half = type == Type::f16 || type == Type::bf16;
    values.resize(static_cast<std::size_t>(n_ * blocks * (f32 ? 4 : half ? 2 : 1)));
    for (std::int64_t i = 0; i < n_ * blocks; ++i) {
      if (f32)
        reinterpret_cast<float*>(values.data())[i] = random_.normal() * 0.01f;
      else if (half)
        reinterpret_cast<std::uint16_t*>(values.data())[i] = static_cast<std::uint16_t>(
            (type == Type::f16 ? 0x1c00 : 0x3c00) + random_.below(0x400) + (random_.below(2) << 15));
      else if (type == Type::e8m0)
        values[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(110 + random_.below(20));
      else if (type == Type::e4m3)
        values[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(random_.below(127) + 128 * random_.below(2));
      else
        values[static_cast<std::size_t>(i)] =
            static_cast<std::uint8_t>(random_.below(type == Type::u6                       ? 64
                                                    : type == Type::u4 || type == Type::z4 ? 16
                                                                                           : 256));
    }
    const DType dtype = f32 ? DType::f32 : type == Type::f16 ? DType::f16 : half ? DType::bf16 : DType::u8;
    return TensorView(values.data(), dtype, {n_, blocks});
  }

  Random random_;
  WeightEncoding encoding_;
  std::int64_t n_, k_, block_size_;
};

// The weight as QuantizedTensor::to(cuda) makes it.
std::shared_ptr<PackedWeight> encoded_on_device(const PackedWeight& weight) {
  auto moved = std::make_shared<PackedWeight>();
  moved->layout = weight.layout;
  std::copy(weight.shape, weight.shape + 2, moved->shape);
  moved->scheme = weight.scheme;
  moved->device = kCuda;
  auto memory = cuda_allocate(0, weight.storage_bytes());
  cuda_copy(memory.get(), kCuda, weight.memory.get(), kCpu, weight.storage_bytes());
  moved->set_encoded_memory(weight.encoded->encoding, std::move(memory));
  return moved;
}

struct Call {
  std::int64_t m, n, k;
  ComputeMode compute = ComputeMode::int8;
  bool strided = false;  // columns of x and y are not neighbors
  bool special = false;
  float fixed = 0.0f;
  bool one_scale = false;
  ScratchBounds bounds{};
};

void expect_same(const std::vector<float>& expected, const std::vector<float>& got, const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
    ASSERT_EQ(numerics::float_bits(expected[i]), numerics::float_bits(got[i]))
        << what << ": element " << i << " is " << got[i] << ", expected " << expected[i];
  }
}

void check(const Form& form, const Call& c) {
  RandomEncoded made(form, c.n, c.k, static_cast<unsigned>(c.m * 131 + c.n * 7 + c.k));
  const QuantizedTensor weight = made.weight();
  Random random(static_cast<std::uint64_t>(c.k + c.m));
  const std::int64_t step = c.strided ? 2 : 1;
  std::vector<float> x(static_cast<std::size_t>(std::max<std::int64_t>(c.m * c.k * step, 1))), bias(c.n);
  for (float& value : x) value = random.normal();
  for (float& value : bias) value = random.normal();
  if (c.special) {
    x[0] = std::numeric_limits<float>::quiet_NaN();
    x[x.size() / 2 / step * step] = std::numeric_limits<float>::infinity();
  }
  const auto view = [&](float* data, std::int64_t columns) {
    TensorView array(data, DType::f32, {c.m, columns});
    array.strides[0] = columns * step, array.strides[1] = step;
    return array;
  };
  std::vector<float> expected(static_cast<std::size_t>(c.m * c.n * step), 7.0f);
  const std::vector<float> poison = expected;
  TensorView bias_view(bias.data(), DType::f32, {c.n});
  LinearOptions options;
  options.compute = c.one_scale ? ComputeMode::int8_token : c.compute;
  options.x_scale = c.fixed;
  {
    ForceKernel reference("linear", "reference");
    linear(view(x.data(), c.k), weight, &bias_view, view(expected.data(), c.n), options);
  }
  const DeviceArray<float> device_x(x), device_bias(bias);
  const auto moved = encoded_on_device(weight.packed());
  LinearProblem problem;
  problem.m = c.m;
  problem.x = row_view(view(device_x.get(), c.k));
  problem.weight = moved.get();
  problem.bias = bias_view;
  problem.bias.data = device_bias.get();
  problem.bias.device = kCuda;
  problem.compute = c.compute;
  if (c.one_scale) problem.scales.source = ActivationScales::Source::per_row;
  if (c.fixed != 0.0f) problem.scales.source = ActivationScales::Source::fixed, problem.scales.fixed = c.fixed;
  problem.device = kCuda;
  const int allocated = cuda_host::live_allocations();
  const auto run = [&](const char* name, auto&& kernel) {
    const DeviceArray<float> y(poison);
    problem.y = row_view(view(y.get(), c.n));
    kernel(problem, c.bounds);
    expect_same(expected, y.host(),
                std::string(form.name) + " by " + name + ", M " + std::to_string(c.m) + " N " + std::to_string(c.n) +
                    " K " + std::to_string(c.k) + " compute " + std::to_string(static_cast<int>(c.compute)));
  };
  const bool odd = form.block_size < 128 && form.block_size % 16 != 0 && c.k > form.block_size;
  const bool integer = c.compute == ComputeMode::int8 || c.compute == ComputeMode::int8_asym;
  const bool takes = integer && !odd;
  ASSERT_EQ(!sm75_gemv_encoded_unsupported_reason(problem), takes && c.m <= 8) << form.name;
  // Before compute capability 8.0 it takes more rows of short blocks; its code is the same on all.
  if (takes && c.m <= (form.block_size == 16 ? 128 : 8)) run("gemv_encoded", run_sm75_gemv_encoded);
  ASSERT_EQ(simt_unsupported_reason(problem), nullptr);
  const auto expanded = [&](LinearKernel* kernel, bool extended = false) {
    return
        [=](const LinearProblem& given, const ScratchBounds& bounds) { run_expanded(given, bounds, kernel, extended); };
  };
  run("simt", expanded(run_simt));
  if (!sm80_int8_mma_unsupported_reason(problem)) {
    run("sm80_int8_mma", expanded(run_sm80_int8_mma));
    // Blocks of 16 are computed with every size of tiles.
    for (int tile = 0; form.block_size == sm80_int8_mma16::kBlock && tile < sm80_int8_mma16::kSizes; ++tile)
      run("sm80_int8_mma", [&](const LinearProblem& given, ScratchBounds bounds) {
        bounds.tile = tile;
        run_expanded(given, bounds, run_sm80_int8_mma);
      });
  }
  if (!sm90_int8_mma_unsupported_reason(problem))
    for (const bool extended : {false, true}) run("sm90_int8_mma", expanded(run_sm90_int8_mma, extended));
  if (!sm90_int8_wgmma_unsupported_reason(problem)) run("sm90_int8_wgmma", expanded(run_sm90_int8_wgmma));
  EXPECT_EQ(cuda_host::live_allocations(), allocated);
}

TEST(EncodedOnTheMachine, EqualsTheReference) {
  int cases = 0;
  for (const Form& form : kForms)
    for (const std::int64_t m : {1, 3, 8, 11, 17}) {
      // Rows of x that thread blocks quantize themselves, and others.
      for (const std::int64_t k : {32, 256 + 16 * (cases % 3), 397}) {
        Call c{m, std::int64_t{1} + cases * 13 % 70, k};
        c.compute = cases % 4 == 3 ? ComputeMode::int8_asym : ComputeMode::int8;
        c.strided = cases % 5 == 4;
        c.special = cases % 3 == 0;
        ++cases;
        ASSERT_NO_FATAL_FAILURE(check(form, c));
      }
    }
}

// Several rounds of every warp, and parts of the last one.
TEST(EncodedOnTheMachine, LongRows) {
  for (const Form& form : kForms)
    for (const std::int64_t m : {1, 9}) {
      Call c{m, 33, 2048 + 256 + 16};
      if (form.bits > 4) c.k += 2048;
      ASSERT_NO_FATAL_FAILURE(check(form, c));
      c.compute = ComputeMode::int8_asym;
      c.k -= 3;
      ASSERT_NO_FATAL_FAILURE(check(form, c));
    }
}

TEST(EncodedOnTheMachine, OtherScalesAndModes) {
  for (const Form& form : kForms) {
    Call c{4, 20, 264};
    c.one_scale = true;
    ASSERT_NO_FATAL_FAILURE(check(form, c));
    c.one_scale = false, c.fixed = 0.03f;
    ASSERT_NO_FATAL_FAILURE(check(form, c));
    c.fixed = 0.0f, c.compute = ComputeMode::int16;
    ASSERT_NO_FATAL_FAILURE(check(form, c));
  }
}

// Tiles of every size, more than one of them.
TEST(EncodedOnTheMachine, BlocksOf16) {
  for (const Form& form : kForms) {
    if (form.block_size != 16) continue;
    Call c{70, 70, 400};
    ASSERT_NO_FATAL_FAILURE(check(form, c));
    c = {34, 33, 256 + 16, ComputeMode::int8, true, true};
    ASSERT_NO_FATAL_FAILURE(check(form, c));
  }
}

// Bands of 256 columns, the last one short.
TEST(EncodedOnTheMachine, ExpandsInBands) {
  for (const int form : {2, 10, 15}) {
    Call c{18, 530, 96};
    c.strided = form == 10;
    c.bounds.expanded_bytes = 1;
    ASSERT_NO_FATAL_FAILURE(check(kForms[form], c));
  }
}

TEST(EncodedOnTheMachine, Embedding) {
  for (const Form& form : kForms)
    for (const std::int64_t k : {70, 131}) {
      const std::int64_t n = 21;
      RandomEncoded made(form, n, k, static_cast<unsigned>(k));
      const QuantizedTensor weight = made.weight();
      const std::vector<std::int64_t> indices{0, 20, 16, 7, 7};
      std::vector<float> expected(indices.size() * k);
      embedding(TensorView(const_cast<std::int64_t*>(indices.data()), DType::i64, {5}), weight,
                TensorView(expected.data(), DType::f32, {5, k}));
      const auto moved = encoded_on_device(weight.packed());
      const DeviceArray<std::int64_t> there(indices);
      const DeviceArray<float> y(std::vector<float>(expected.size(), 7.0f));
      RowView index_rows, rows;
      index_rows.data = there.get();
      index_rows.append(5, 1);
      rows.data = y.get();
      rows.append(5, k);
      run_embedding_cuda({*moved, index_rows, true, rows, 5, kCuda, nullptr});
      ASSERT_NO_FATAL_FAILURE(expect_same(expected, y.host(), form.name));
    }
}

}  // namespace
}  // namespace qcore
