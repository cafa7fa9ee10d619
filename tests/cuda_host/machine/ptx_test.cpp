// src/runtime/cuda/ptx.cuh: each instruction's emulation against what the instruction computes.

#include "runtime/cuda/ptx.cuh"

#include <gtest/gtest.h>

#include <vector>

#include "device_arrays.h"
#include "gemm/cuda/sm80_int8_mma16/ptx.cuh"
#include "numerics/activation_block.h"
#include "numerics/half_bits.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_bytes.cuh"
#include "runtime/cuda/ptx_convert.cuh"
#include "runtime/cuda/ptx_half.cuh"
#include "runtime/cuda/ptx_memory.cuh"
#include "runtime/cuda/ptx_wgmma.cuh"

namespace qcore {
namespace {

TEST(Ptx, EmulatesDotProducts) {
  EXPECT_EQ(ptx::add_bytes(0xff0180feu, 5), 0xffu + 0x01u + 0x80u + 0xfeu + 5u);
  const std::uint32_t pair = 0x8001fffeu;   // -2, -32767
  const std::uint32_t bytes = 0x807f02ffu;  // -1, 2, 127, -128
  EXPECT_EQ(ptx::dot2_low(pair, bytes, 10), 10 + 2 - 2 * 32767);
  EXPECT_EQ(ptx::dot2_high(pair, bytes, 10), 10 - 2 * 127 + 128 * 32767);
  EXPECT_EQ(ptx::dot4<true>(0x01ff7f80u, bytes, 10), 10 + 128 + 2 * 127 - 127 - 128);
  EXPECT_EQ(ptx::dot4<false>(0x01ff7f80u, bytes, 10), 10 - 128 + 2 * 127 + 127 * 255 - 128);
}

TEST(Ptx, EmulatesByteOperations) {
  EXPECT_EQ(ptx::add_signed_bytes(0xff0180feu, 5), -1 + 1 - 128 - 2 + 5);
  EXPECT_EQ(ptx::and_or(0x12345678u, 0x0f0f0f0fu, 0x4b000000u), 0x4b040608u | 0x02000000u);
  EXPECT_EQ(ptx::and_xor(0x12345678u, 0xf0f0f0f0u, 0x80808080u), 0x90b0d0f0u);
  EXPECT_EQ(ptx::insert_byte<0>(0x12345678u, 0x4b000000u), 0x4b000078u);
  EXPECT_EQ(ptx::insert_byte<3>(0x12345678u, 0x4b0000ffu), 0x4b000012u);
  std::uint32_t words[4] = {0x03020100u, 0x13121110u, 0x23222120u, 0x33323130u};
  ptx::transpose_bytes(words);
  EXPECT_EQ(words[0], 0x30201000u);
  EXPECT_EQ(words[1], 0x31211101u);
  EXPECT_EQ(words[2], 0x32221202u);
  EXPECT_EQ(words[3], 0x33231303u);
  const uint4 four{1, 2, 3, 4};
  EXPECT_EQ(ptx::load_once(&four).z, 3u);
  uint4 stored{};
  ptx::store_whole(&stored, four);
  EXPECT_EQ(stored.w, four.w);
}

// Row-major matrices of bytes, b transposed, so that a fragment's register is a word of a row.
struct Matrices {
  const std::uint32_t* a;  // [16, 8] words: 32 k
  const std::uint32_t* b;  // [8, 8]
  std::int32_t* c;         // [16, 8]
};

enum class Mma { large, portable, signed_bytes };

__global__ void large_mma_kernel(const Matrices m, Mma which) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
  std::uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = m.a[(group + 8 * (i % 2)) * 8 + 4 * (i / 2) + quad];
  for (int i = 0; i < 2; ++i) b[i] = m.b[group * 8 + 4 * i + quad];
  std::int32_t c[4];
  for (int i = 0; i < 4; ++i) c[i] = m.c[(group + 8 * (i / 2)) * 8 + 2 * quad + i % 2];
  if (which == Mma::portable)
    ptx::mma_u8s8(c, a, b, c);
  else if (which == Mma::large)
    ptx::mma_m16n8k32(c, a, b, c);
  else
    ptx::mma_s8s8(c, a, b, c);
  for (int i = 0; i < 4; ++i) m.c[(group + 8 * (i / 2)) * 8 + 2 * quad + i % 2] = c[i];
}

// Two of these make the upper eight rows.
__global__ void small_mma_kernel(const Matrices m) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
  std::int32_t c[2] = {m.c[group * 8 + 2 * quad], m.c[group * 8 + 2 * quad + 1]};
  for (int half = 0; half < 2; ++half)
    ptx::mma_m8n8k16(c, m.a[group * 8 + 4 * half + quad], m.b[group * 8 + 4 * half + quad], c);
  m.c[group * 8 + 2 * quad] = c[0];
  m.c[group * 8 + 2 * quad + 1] = c[1];
}

TEST(Ptx, MatrixProductsAreMatrixProducts) {
  Random random(1);
  std::vector<std::uint32_t> a(16 * 8), b(8 * 8);
  const auto word = [&] { return static_cast<std::uint32_t>(random.below(1 << 16)) << 16 | random.below(1 << 16); };
  for (auto& value : a) value = word();
  for (auto& value : b) value = word();
  std::vector<std::int32_t> before(16 * 8), expected(16 * 8), expected_signed(16 * 8);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      std::int32_t sum = before[row * 8 + column] = random.below(1000) - 500, signed_sum = sum;
      for (int k = 0; k < 32; ++k) {
        const auto byte = static_cast<std::uint8_t>(a[row * 8 + k / 4] >> (8 * (k % 4)));
        const int other = static_cast<std::int8_t>(b[column * 8 + k / 4] >> (8 * (k % 4)));
        sum += byte * other;
        signed_sum += static_cast<std::int8_t>(byte) * other;
      }
      expected[row * 8 + column] = sum;
      expected_signed[row * 8 + column] = signed_sum;
    }
  for (const Mma which : {Mma::large, Mma::portable, Mma::signed_bytes}) {
    std::vector<std::int32_t> c = before;
    launch("self_test", large_mma_kernel, {dim3(1), dim3(32)}, nullptr, Matrices{a.data(), b.data(), c.data()}, which);
    EXPECT_EQ(c, which == Mma::signed_bytes ? expected_signed : expected);
  }
  std::vector<std::int32_t> c = before;
  launch("self_test", small_mma_kernel, {dim3(1), dim3(32)}, nullptr, Matrices{a.data(), b.data(), c.data()});
  for (int i = 0; i < 8 * 8; ++i) EXPECT_EQ(c[i], expected[i]);
}

struct SharedRows {
  uint4 of[64];
};

// Rows of 16 bytes in shared memory, of which those of b are loaded as one of four matrices.
__global__ void short_mma_kernel(const uint4* a, const uint4* b, std::int32_t* c) {
  auto& rows = block_shared<SharedRows>().of;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
  for (int i = lane; i < 64; i += 32) rows[i] = b[i];
  __syncthreads();
  std::uint32_t codes[4];
  ptx::load_matrices(codes, &rows[2 * lane]);  // every second row
  const auto* words = reinterpret_cast<const std::uint32_t*>(a);
  const std::uint32_t of_a[2] = {words[group * 4 + quad], words[(group + 8) * 4 + quad]};
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::int32_t sums[4] = {1, 2, 3, 4}, products[4];
    ptx::mma_s8s8_k16(products, of_a, codes[matrix], sums);
    for (int i = 0; i < 4; ++i) c[(matrix * 16 + group + 8 * (i / 2)) * 8 + 2 * quad + i % 2] = products[i] - sums[i];
  }
}

TEST(Ptx, ProductsOf16AreMatrixProducts) {
  Random random(3);
  std::vector<uint4> a(16), b(64);
  for (auto* values : {&a, &b})
    for (uint4& value : *values) {
      auto* bytes = reinterpret_cast<std::uint8_t*>(&value);
      for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(random.below(256));
    }
  std::vector<std::int32_t> c(4 * 16 * 8);
  launch("self_test", short_mma_kernel, {dim3(1), dim3(32)}, nullptr, a.data(), b.data(), c.data());
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 8; ++column) {
        const auto* left = reinterpret_cast<const std::int8_t*>(&a[row]);
        const auto* right = reinterpret_cast<const std::int8_t*>(&b[2 * (8 * matrix + column)]);
        int sum = 0;
        for (int k = 0; k < 16; ++k) sum += left[k] * right[k];
        EXPECT_EQ(c[(matrix * 16 + row) * 8 + column], sum);
      }
}

// Row-major matrices of 16-bit floats, b transposed, two in a word.
struct HalfMatrices {
  const std::uint32_t* a;  // [16, 8] words: 16 k
  const std::uint32_t* b;  // [8, 8]
  float* c;                // [16, 8]
};

template <ptx::Half kHalf>
__global__ void half_mma_kernel(const HalfMatrices m) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
  std::uint32_t a[4];
  for (int i = 0; i < 4; ++i) a[i] = m.a[(group + 8 * (i % 2)) * 8 + 4 * (i / 2) + quad];
  float c[4];
  for (int i = 0; i < 4; ++i) c[i] = m.c[(group + 8 * (i / 2)) * 8 + 2 * quad + i % 2];
  ptx::mma_half<kHalf>(c, a, m.b[group * 8 + quad], m.b[group * 8 + 4 + quad]);
  for (int i = 0; i < 4; ++i) m.c[(group + 8 * (i / 2)) * 8 + 2 * quad + i % 2] = c[i];
}

template <ptx::Half kHalf>
void check_half_products() {
  constexpr bool kBf16 = kHalf == ptx::Half::bf16;
  Random random(2);
  std::vector<float> a(16 * 16), b(8 * 16), c(16 * 8), expected(16 * 8);
  for (auto* values : {&a, &b, &c})
    for (float& value : *values) value = static_cast<float>(random.below(256) - 128);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      expected[row * 8 + column] = c[row * 8 + column];
      for (int k = 0; k < 16; ++k) expected[row * 8 + column] += a[row * 16 + k] * b[column * 16 + k];
    }
  const auto packed = [](const std::vector<float>& values) {
    std::vector<std::uint32_t> words;
    for (std::size_t i = 0; i < values.size(); i += 2) words.push_back(ptx::pack_pair<kHalf>(values[i], values[i + 1]));
    return words;
  };
  const std::vector<std::uint32_t> a_words = packed(a), b_words = packed(b);
  launch("self_test", half_mma_kernel<kHalf>, {dim3(1), dim3(32)}, nullptr,
         HalfMatrices{a_words.data(), b_words.data(), c.data()});
  EXPECT_EQ(c, expected);
  EXPECT_EQ(cuda_host::half_value(a_words[1] >> 16, kBf16), a[3]);
  const std::uint32_t sum = ptx::fma_pair<kHalf>(ptx::pack_pair<kHalf>(3.0f, -5.0f), ptx::pack_pair<kHalf>(7.0f, 2.0f),
                                                 ptx::pack_pair<kHalf>(-1.0f, 0.5f));
  EXPECT_EQ(sum, ptx::pack_pair<kHalf>(20.0f, -9.5f));
}

TEST(Ptx, ProductsOfHalvesAreMatrixProducts) {
  check_half_products<ptx::Half::f16>();
  check_half_products<ptx::Half::bf16>();
  EXPECT_EQ((ptx::pick_bytes<0x4140>(0x44332211u, 0x64u)), 0x64226411u);
  EXPECT_EQ(ptx::quotient(3.0f, 2.0f), 1.5f);
  EXPECT_EQ(ptx::reciprocal(4.0f), 0.25f);
}

struct Buffers {
  uint4 first, second, third;
};

__global__ void copy_kernel(const uint4* from, unsigned* seen) {
  auto& shared = block_shared<Buffers>();
  ptx::copy_async(&shared.first, from, true);
  ptx::copy_commit();
  ptx::copy_async(&shared.second, from + 1, true);
  ptx::copy_async(&shared.third, nullptr, false);
  ptx::copy_commit();
  seen[0] = shared.first.x;
  ptx::copy_wait<1>();
  seen[1] = shared.first.x;
  seen[2] = shared.second.y;
  ptx::copy_wait<0>();
  seen[3] = shared.second.y;
  seen[4] = shared.third.w;
}

TEST(Ptx, CopiesArriveWhenTheyAreWaitedFor) {
  const std::vector<uint4> from{{1, 2, 3, 4}, {5, 6, 7, 8}};
  const DeviceArray<uint4> device(from);
  std::vector<unsigned> seen(5);
  launch("self_test", copy_kernel, {dim3(1), dim3(1)}, nullptr, device.get(), seen.data());
  EXPECT_EQ(seen, (std::vector<unsigned>{~0u, 1, ~0u, 6, 0}));
}

TEST(Ptx, LowestBytes) {
  EXPECT_EQ(ptx::lowest_bytes(0xaaaaaa11u, 0xbbbbbb22u, 0xcccccc33u, 0xdddddd44u), 0x44332211u);
}

// No clamp and no conversion, and yet the same codes, down to blocks whose scale hardly has an inverse.
TEST(Numerics, SymmetricCodesByAddition) {
  std::uint32_t state = 1;
  for (int block = 0; block < 200000; ++block) {
    state = state * 1664525u + 1013904223u;
    const float largest = numerics::bits_float(block % 4 ? state >> 1 : state >> 8 & 0x7fffffu);
    if (!numerics::is_finite(largest)) continue;
    const numerics::BlockScale scale =
        numerics::activation_scale(numerics::kActivationInt8, 0.0f, 0.0f, numerics::float_bits(largest));
    for (const float part : {1.0f, -1.0f, 0.99999994f, 0.5f, -0.3333f, 0.0f}) {
      const float value = largest * part;
      const int expected = numerics::activation_code(value, scale, numerics::kActivationInt8);
      ASSERT_EQ(static_cast<int>(numerics::encode_symmetric(value, scale) - numerics::kBiasedZero), expected)
          << largest << " " << part;
    }
  }
}

// Two thread blocks: the first one brings codes to both.
struct alignas(1024) Shared {
  char codes[32 * 128];
  ptx::Barrier full;
};

__global__ void warpgroup_kernel(const char* codes, const std::uint32_t* a, std::int32_t* d) {
  auto& shared = *reinterpret_cast<Shared*>(dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, group = thread % 32 / 4, quad = thread % 4;
  if (thread == 0) ptx::barrier_init(shared.full, 1);
  ptx::cluster_sync();
  if (thread == 0) {
    ptx::barrier_expect(shared.full, sizeof(shared.codes));
    if (ptx::cluster_rank() == 0) ptx::bulk_copy(shared.codes, codes, sizeof(shared.codes), shared.full, 3);
  }
  ptx::barrier_wait(shared.full, 0);
  std::int32_t sums[16];
  for (int chunk = 0; chunk < 4; ++chunk) {
    std::uint32_t words[4];
    for (int i = 0; i < 4; ++i) words[i] = a[(16 * warp + group + 8 * (i % 2)) * 32 + 8 * chunk + 4 * (i / 2) + quad];
    ptx::product_fence();
    ptx::product<32>(sums, words, ptx::next_k(ptx::swizzled_rows(shared.codes), 32 * chunk), chunk > 0);
    ptx::product_commit();
    ptx::product_wait(sums);
  }
  for (int i = 0; i < 16; ++i)
    d[(64 * ptx::cluster_rank() + 16 * warp + group + i / 2 % 2 * 8) * 32 + 8 * (i / 4) + 2 * quad + i % 2] = sums[i];
  ptx::cluster_sync();
}

TEST(Ptx, WarpgroupsMultiplySwizzledRows) {
  Random random(2);
  std::vector<std::int8_t> a(64 * 128), b(32 * 128);
  for (auto& value : a) value = static_cast<std::int8_t>(random.below(256) - 128);
  for (auto& value : b) value = static_cast<std::int8_t>(random.below(256) - 128);
  std::vector<char> codes(b.size());
  for (int row = 0; row < 32; ++row)
    for (int k = 0; k < 128; ++k) codes[128 * row + (k ^ row % 8 * 16)] = static_cast<char>(b[128 * row + k]);
  const DeviceArray<char> device_codes(codes);
  const DeviceArray<std::uint32_t> device_a(reinterpret_cast<const std::uint32_t*>(a.data()), a.size() / 4);
  std::vector<std::int32_t> d(2 * 64 * 32);
  launch("self_test", warpgroup_kernel, {dim3(2), dim3(128), sizeof(Shared), dim3(2)}, nullptr, device_codes.get(),
         device_a.get(), d.data());
  for (int i = 0; i < 2 * 64 * 32; ++i) {
    std::int32_t sum = 0;
    for (int k = 0; k < 128; ++k) sum += a[i / 32 % 64 * 128 + k] * b[i % 32 * 128 + k];
    ASSERT_EQ(d[i], sum) << i;
  }
}

}  // namespace
}  // namespace qcore
