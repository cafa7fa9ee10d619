// Checks which problems the CUDA rows of linear's table take, and that nothing is left when there is no memory for one.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "device_arrays.h"
#include "linear/cuda/kernels.h"
#include "linear/cuda/sm75_gemv/staged_weights.cuh"
#include "runtime/cuda/cuda_check.h"

namespace qcore {
namespace {

constexpr const char* kFaster = "sm90_int8_wgmma computes this faster";

TEST(LinearOnTheMachine, UnsupportedReason) {
  Random random(3);
  const QuantizedTensor weight = random_weight(random, 4, 40, 24, 4, Scheme::symmetric);
  LinearProblem problem;
  problem.weight = &weight.packed();
  EXPECT_STREQ(sm75_int8_sliced_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(simt_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(sm80_int8_mma_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(sm75_gemv_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(sm80_float_mma_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(sm90_int8_wgmma_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(sm90_int8_mma_unsupported_reason(problem), "it runs on CUDA devices");
  EXPECT_STREQ(sm90_float_wgmma_unsupported_reason(problem), "it runs on CUDA devices");
  problem.device = kCuda;
  problem.compute = ComputeMode::int16;
  EXPECT_STREQ(sm90_int8_mma_unsupported_reason(problem), "it computes int8 only");
  EXPECT_STREQ(sm80_int8_mma_unsupported_reason(problem), "it computes int8 and int8_asym only");
  EXPECT_STREQ(sm90_int8_wgmma_unsupported_reason(problem), "it computes int8 and int8_asym only");
  EXPECT_STREQ(sm75_gemv_unsupported_reason(problem), "it computes float, int8 and int8_asym only");
  EXPECT_STREQ(sm75_int8_sliced_unsupported_reason(problem), "it computes int8 and int8_asym only");
  EXPECT_STREQ(sm80_float_mma_unsupported_reason(problem), "it computes float only");
  EXPECT_STREQ(sm90_float_wgmma_unsupported_reason(problem), "it computes float only");
  EXPECT_EQ(simt_unsupported_reason(problem), nullptr);
  problem.compute = ComputeMode::int8;
  EXPECT_EQ(sm75_int8_sliced_unsupported_reason(problem), nullptr);
  EXPECT_STREQ(sm80_int8_mma_unsupported_reason(problem), "it takes block sizes of 16 and multiples of 32");
  EXPECT_STREQ(sm75_gemv_unsupported_reason(problem), "it takes block sizes that are multiples of 32");
  EXPECT_STREQ(sm90_int8_wgmma_unsupported_reason(problem), "it takes block sizes 32, 64 and multiples of 128");
  EXPECT_STREQ(sm90_int8_mma_unsupported_reason(problem), "it takes block sizes 32, 64 and 128, and one block per row");
  const QuantizedTensor whole = random_weight(random, 4, 40, 40, 4, Scheme::symmetric);
  problem.weight = &whole.packed();
  problem.m = 8;
  EXPECT_EQ(sm75_gemv_unsupported_reason(problem), nullptr);
  problem.m = 16;
  EXPECT_EQ(sm75_gemv_unsupported_reason(problem), nullptr);
  PackedWeight wide, bytes;
  wide.layout = PackedLayout(1 << 20, 40, 1, 40, 4);
  bytes.layout = PackedLayout(4, 40, 1, 40, 8);
  for (const PackedWeight* packed : {&wide, &bytes}) {
    problem.weight = packed;
    problem.device = kCuda;
    EXPECT_STREQ(sm75_gemv_unsupported_reason(problem), kFaster);
    problem.device = kAmpere;
    EXPECT_EQ(sm75_gemv_unsupported_reason(problem), nullptr);
  }
  problem.device = kCuda;
  const QuantizedTensor usual = random_weight(random, 4, 40, 32, 4, Scheme::symmetric),
                        shifted = random_weight(random, 4, 40, 32, 4, Scheme::asymmetric),
                        shifted_row = random_weight(random, 4, 40, 40, 4, Scheme::asymmetric);
  problem.weight = &usual.packed();
  EXPECT_EQ(sm90_int8_mma_unsupported_reason(problem), nullptr);
  constexpr const char* kTooFew =
      "it takes M from 2 on, from 5 on of an encoded weight, from 1 on of a plain one with offsets";
  problem.m = 1;
  EXPECT_STREQ(sm90_int8_mma_unsupported_reason(problem), kTooFew);
  problem.m = 129;
  EXPECT_STREQ(sm90_int8_mma_unsupported_reason(problem), "it takes M up to 128");
  struct ShortBlocks {
    std::int64_t n, block_size, most;
    int bits = 4;
    Scheme scheme = Scheme::symmetric;
  };
  constexpr Scheme kShifted = Scheme::asymmetric;
  const std::int64_t all = 64 * multiprocessors(kCuda.index);  // columns whose tiles run at once
  for (const ShortBlocks& c :
       {ShortBlocks{all / 2, 64, 128}, ShortBlocks{all, 128, 64}, ShortBlocks{1 << 20, 128, 8},
        ShortBlocks{1 << 20, 64, 8}, ShortBlocks{1 << 20, 32, 64}, ShortBlocks{all / 2, 128, 32, 8},
        ShortBlocks{all, 128, 16, 8}, ShortBlocks{all, 64, 64, 8}, ShortBlocks{all / 2 * 3, 128, 16},
        ShortBlocks{all / 2, 64, 128, 8}, ShortBlocks{all / 2, 128, 64, 4, kShifted},
        ShortBlocks{all / 2, 64, 128, 4, kShifted}, ShortBlocks{all, 128, 64, 8, kShifted},
        ShortBlocks{1 << 20, 128, 16, 4, kShifted}, ShortBlocks{1 << 20, 128, 8, 8, kShifted},
        ShortBlocks{1 << 20, 64, 16, 8, kShifted}, ShortBlocks{1 << 20, 32, 128, 8, kShifted}}) {
    PackedWeight blocks;
    blocks.scheme = c.scheme;
    blocks.layout = PackedLayout(c.n, 8192, 1, c.block_size, c.bits);
    problem.weight = &blocks;
    problem.m = c.most;
    EXPECT_EQ(sm90_int8_mma_unsupported_reason(problem), nullptr) << c.n << " " << c.block_size;
    ++problem.m;
    EXPECT_NE(sm90_int8_mma_unsupported_reason(problem), nullptr) << c.n << " " << c.block_size;
    // Whatever it leaves is taken by warpgroups, not by gemv.
    EXPECT_NE(sm75_gemv_unsupported_reason(problem), nullptr) << c.n << " " << c.block_size;
  }
  struct FewRows {
    std::int64_t n, k, block_size;
    int bits;
    std::int64_t most;  // that it leaves to gemv
  };
  for (const FewRows& c :
       {FewRows{64, 4096, 128, 4, 3}, FewRows{all, 4096, 128, 4, 3}, FewRows{2 * all, 4096, 128, 4, 4},
        FewRows{1 << 20, 40, 128, 4, 8}, FewRows{32, 4096, 64, 4, 6}, FewRows{64, 4096, 64, 4, 3},
        FewRows{all, 4096, 64, 4, 3}, FewRows{1 << 20, 40, 32, 4, 6}, FewRows{1 << 20, 40, 64, 8, 3},
        FewRows{64, 4104, 128, 4, 2}, FewRows{all, 4104, 128, 4, 1}, FewRows{2 * all, 4104, 128, 4, 3},
        FewRows{32, 4096, 128, 8, 3}, FewRows{64, 4096, 128, 8, 2}, FewRows{all, 4096, 128, 8, 2},
        FewRows{all, 4096, 64, 8, 2}, FewRows{64, 4096, 64, 8, 3},
        FewRows{64, 4095, 128, 4, 1}}) {  // gemv has no short way for 4095 values
    PackedWeight blocks;
    blocks.layout = PackedLayout(c.n, c.k, 1, c.block_size, c.bits);
    problem.weight = &blocks;
    problem.m = c.most;
    EXPECT_STREQ(sm90_int8_mma_unsupported_reason(problem),
                 c.most > 1 ? "sm75_gemv takes so few rows of so many values" : kTooFew);
    EXPECT_EQ(sm75_gemv_unsupported_reason(problem), nullptr);
    if (c.n == 1 << 20) continue;  // sm90_int8_wgmma takes more rows
    ++problem.m;
    EXPECT_EQ(sm90_int8_mma_unsupported_reason(problem), nullptr) << c.n << " " << c.k << " " << c.block_size;
  }
  struct OneBlock {
    std::int64_t n, k;
    int bits;
    std::int64_t fewest, most;
  };
  for (const OneBlock& c :
       {OneBlock{all / 2, 2048, 4, 9, 64}, OneBlock{all / 2, 4096, 4, 5, 64}, OneBlock{1 << 20, 4128, 4, 5, 8},
        OneBlock{2 * all, 4096, 8, 5, 8}, OneBlock{all, 2048, 4, 1, 16}}) {
    PackedWeight one_block;
    one_block.layout = PackedLayout(c.n, c.k, 1, c.k, c.bits);
    problem.weight = &one_block;
    const auto reason = [&](std::int64_t m) {
      problem.m = m;
      return sm90_int8_mma_unsupported_reason(problem);
    };
    EXPECT_STREQ(reason(c.fewest - 1), "sm75_gemv takes so few rows with one block per row");
    EXPECT_EQ(reason(c.fewest), nullptr);
    EXPECT_EQ(reason(c.most), nullptr);
    EXPECT_STREQ(reason(c.most + 1), "sm90_int8_wgmma takes so many rows with one block per row");
  }
  problem.m = 9;
  problem.weight = &shifted.packed();
  EXPECT_EQ(sm90_int8_mma_unsupported_reason(problem), nullptr);
  const QuantizedTensor long_blocks = random_weight(random, 4, 256, 128, 4, Scheme::asymmetric);
  problem.weight = &long_blocks.packed();
  problem.m = 1;
  EXPECT_EQ(sm90_int8_mma_unsupported_reason(problem), nullptr);
  problem.m = 128;
  EXPECT_EQ(sm90_int8_mma_unsupported_reason(problem), nullptr);
  PackedWeight shifted_blocks;
  shifted_blocks.layout = PackedLayout(all / 2, 256, 1, 128, 4);
  shifted_blocks.scheme = kShifted;
  problem.weight = &shifted_blocks;
  problem.m = 65;
  EXPECT_STREQ(sm90_int8_mma_unsupported_reason(problem),
               "sm90_int8_wgmma takes so many rows of a plain weight with offsets in blocks of 128");
  problem.m = 9;
  problem.weight = &shifted_row.packed();
  EXPECT_STREQ(sm90_int8_mma_unsupported_reason(problem),
               "it takes weights with offsets in blocks of 32, 64 and 128 only");
  PackedWeight longer;
  longer.layout = PackedLayout(1 << 20, 4096, 1, 256, 4);
  problem.weight = &longer;
  problem.m = 1;
  EXPECT_STREQ(sm75_gemv_unsupported_reason(problem), kFaster);
  longer.layout = PackedLayout(64, 4096, 1, 256, 4);
  EXPECT_EQ(sm75_gemv_unsupported_reason(problem), nullptr);
  problem.compute = ComputeMode::int8_asym;
  problem.m = 8;
  EXPECT_EQ(sm75_gemv_unsupported_reason(problem), nullptr);
  problem.m = 9;
  EXPECT_STREQ(sm75_gemv_unsupported_reason(problem), kFaster);
  problem.compute = ComputeMode::int8;
  problem.weight = &whole.packed();
  problem.m = 17;
  EXPECT_STREQ(sm75_gemv_unsupported_reason(problem), "it takes M up to 16");
  EXPECT_EQ(sm80_int8_mma_unsupported_reason(problem), nullptr);
  problem.compute = ComputeMode::floating;
  problem.m = 8;
  EXPECT_STREQ(sm75_gemv_unsupported_reason(problem),
               "sm80_float_mma takes float activations from compute capability 8.0 on");
  problem.device = kTuring;
  EXPECT_EQ(sm75_gemv_unsupported_reason(problem), nullptr);
  problem.device = kCuda;
  problem.m = 9;
  EXPECT_STREQ(sm75_gemv_unsupported_reason(problem), "it takes M up to 8 with float activations");
  EXPECT_EQ(sm80_float_mma_unsupported_reason(problem), nullptr);
  problem.x.dtype = DType::f16;
  constexpr const char* kFromMore =
      "it takes M from 17 on, from 9 on of a weight with many columns whose offsets, if any, are zero points";
  longer.layout = PackedLayout(1 << 20, 4096, 1, 128, 4);
  for (const std::int64_t most : {8, 16}) {
    problem.weight = most == 8 ? &longer : &whole.packed();
    problem.m = most;
    EXPECT_STREQ(sm90_float_wgmma_unsupported_reason(problem), kFromMore);
    ++problem.m;
    EXPECT_EQ(sm90_float_wgmma_unsupported_reason(problem), nullptr);
  }
}

// How much shared memory few rows of floats take for a weight on a device, and how it is shared out.
TEST(LinearOnTheMachine, SlotsOfFewRows) {
  constexpr int kMultiprocessors = 132, kHopper = 227 << 10, kAmpere = 163 << 10;
  struct Slots {
    std::int64_t n, k;
    int bits;
    std::int64_t m;
    int blocks, slots;
    bool alone, lacks = false;  // on a multiprocessor; slots
    std::int64_t few_bytes = 0;
    int most_bytes = kHopper;
  };
  for (const Slots& c : {
           Slots{4096, 4096, 4, 1, 128, 8, false},                    // one round, in short stages
           Slots{4096, 4096, 8, 1, 128, 8, true},                     // two rounds, with a slot for each stage
           Slots{4096, 4096, 8, 1, 128, 5, false, false, 128 << 10},  // as one row in int8
           Slots{4096, 11008, 4, 1, 128, 8, true},                    // two of three rounds
           Slots{4096, 11008, 8, 4, 128, 6, true, true},
           Slots{6144, 4096, 4, 1, 192, 8, false},  // two thread blocks on some multiprocessors
           Slots{6144, 4096, 8, 1, 192, 5, false},
           Slots{5120, 13824, 4, 1, 132, 10, true},                   // which have no room for two rows' scales
           Slots{28672, 4096, 4, 1, 132, 8, true},                    // groups of columns in turn
           Slots{4096, 11008, 8, 1, 128, 7, true, true, 0, kAmpere},  // which run_few_rows() takes there
       }) {
    PackedWeight packed;
    packed.layout = PackedLayout(c.n, c.k, 1, 128, c.bits);
    const DeviceWeight w = device_weight(packed);
    constexpr int kWarps = 16;
    const auto first = static_cast<int>(c.m * (round_up(2 * c.k, 128) + 64 + 4 * kWarps * gemv::kColumns));
    gemv::StagedLayout layout(w, kWarps, first);
    ASSERT_TRUE(layout.fill(w, kMultiprocessors, c.most_bytes, c.few_bytes)) << c.n << " x " << c.k;
    EXPECT_EQ(layout.blocks, c.blocks) << c.n << " x " << c.k;
    EXPECT_EQ(layout.slots, c.slots) << c.n << " x " << c.k << ", " << c.bits << " bits";
    EXPECT_EQ(layout.bytes > kHopper / 2, c.alone) << c.n << " x " << c.k;
    EXPECT_EQ(layout.lacks_slots(), c.lacks) << c.n << " x " << c.k;
    EXPECT_LE(layout.bytes, c.most_bytes);
  }
}

// Checks that what the retired row `sliced_epilogue`, and `sm75_gemv` with float activations from 8.0 on, took has a
// kernel that was faster in every case of benchmarks/results/h200/linear.json.
TEST(LinearOnTheMachine, EveryProblemOfTheRetiredRowsHasAKernel) {
  for (const Device& device : {kCuda, kAmpere, kTuring})
    for (const int bits : {4, 8})
      for (const std::int64_t g : {1, 16, 32, 64, 96, 128, 512, 4096})
        for (const std::int64_t k : {1, 31, 40, 4096, 11008})
          for (const std::int64_t m : {1, 2, 8, 16, 17, 128, 5000}) {
            PackedWeight weight;
            weight.layout = PackedLayout(4096, k, 1, g, bits);
            LinearProblem problem;
            problem.weight = &weight;
            problem.device = device;
            problem.m = m;
            problem.compute = ComputeMode::int8;
            EXPECT_EQ(sm75_int8_sliced_unsupported_reason(problem), nullptr);
            problem.compute = ComputeMode::floating;
            const bool was_gemv = m <= 8 && (weight.layout.blocks() <= 1 || g % 32 == 0);
            if (was_gemv) {
              EXPECT_NE(sm75_gemv_unsupported_reason(problem) == nullptr,
                        sm80_float_mma_unsupported_reason(problem) == nullptr)
                  << k << ", " << g;
            }
          }
}

TEST(LinearOnTheMachine, ErrorsLeaveNothingBehind) {
  Random random(4);
  const QuantizedTensor weight = random_weight(random, 4, 40, 32, 4, Scheme::symmetric);
  const auto moved = on_device(weight.packed());
  const DeviceArray<float> x(std::vector<float>(9 * 40)), y(std::vector<float>(9 * 4));
  LinearProblem problem;
  problem.m = 9;  // with fewer rows gemv needs no scratch memory
  problem.x.data = x.get();
  problem.y.data = y.get();
  problem.x.leading = problem.y.leading = 1;
  problem.x.shape[0] = problem.y.shape[0] = 9;
  problem.x.strides[0] = 40;
  problem.y.strides[0] = 4;
  problem.weight = moved.get();
  problem.device = kCuda;
  const int before = cuda_host::live_allocations();
  using Run = void (*)(const LinearProblem&, const ScratchBounds&);
  for (const Run kernel : {Run{run_sm75_gemv}, Run{run_sm80_int8_mma}, Run{run_sm80_float_mma}, Run{run_sm90_int8_mma},
                           Run{run_sm90_int8_wgmma}, Run{run_sm75_int8_sliced}, Run{run_simt}}) {
    cuda_host::fail_next("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation);
    EXPECT_THROW(kernel(problem, {}), CudaError);
    EXPECT_EQ(cuda_host::live_allocations(), before);
  }
}

// Makes a weight of which one block has this scale and offset and all others have zero points, and looks for these.
bool are_zero_points(float scale, float offset, int bits = 4, DType dtype = DType::f32) {
  const std::vector<std::int8_t> codes(3 * 64, 1);
  std::vector<float> scales{0.5f, 0.0f, 0.25f, -0.125f, scale, 3.0f}, offsets{4.0f, 0.0f, -1.75f, 0.25f, offset, 0.0f};
  std::vector<std::uint16_t> half_scales, half_offsets;
  for (const float value : scales) half_scales.push_back(numerics::float_to_half(value));
  for (const float value : offsets) half_offsets.push_back(numerics::float_to_half(value));
  const bool half = dtype == DType::f16;
  const TensorView scales_view(half ? static_cast<void*>(half_scales.data()) : scales.data(), dtype, {3, 2}),
      offsets_view(half ? static_cast<void*>(half_offsets.data()) : offsets.data(), dtype, {3, 2});
  return QuantizedTensor::from_parts(TensorView(codes.data(), DType::i8, {3, 64}), scales_view, &offsets_view, bits, 32)
      .packed()
      .finds_zero_points();
}

TEST(LinearOnTheMachine, ZeroPointsAreFoundWhereTheyAreExact) {
  for (int z = 0; z < 16; ++z)
    for (const float scale : {1.0f, -0x1.554p-2f, 0x1p-24f})
      EXPECT_TRUE(are_zero_points(scale, scale * static_cast<float>(8 - z))) << z << " " << scale;
  EXPECT_TRUE(are_zero_points(0.5f, 1.5f, 4, DType::f16));
  EXPECT_TRUE(are_zero_points(0.0f, 0.0f));
  EXPECT_FALSE(are_zero_points(0.0f, 1.0f));
  EXPECT_FALSE(are_zero_points(0.5f, std::nextafter(1.5f, 2.0f))) << "next to it";
  EXPECT_FALSE(are_zero_points(0x1.fffffep-2f, 3 * 0x1.fffffep-2f)) << "a product that was rounded";
  EXPECT_FALSE(are_zero_points(0.5f, 4.5f)) << "below 0";
  EXPECT_TRUE(are_zero_points(0.5f, -3.5f));
  EXPECT_FALSE(are_zero_points(0.5f, -4.0f)) << "above 15";
  EXPECT_FALSE(are_zero_points(0.5f, 1.5f, 8)) << "8 bits";
  EXPECT_TRUE(are_zero_points(0x1p-100f, 0x1p-100f));
  EXPECT_FALSE(are_zero_points(0x1p-101f, 0x1p-101f)) << "a scale near the ends of fp32's range";
  EXPECT_FALSE(are_zero_points(0x1p101f, 0x1p101f)) << "a scale near the ends of fp32's range";
  Random random(3);
  EXPECT_FALSE(random_weight(random, 4, 64, 32, 4, Scheme::symmetric).packed().finds_zero_points());
}

}  // namespace
}  // namespace qcore
