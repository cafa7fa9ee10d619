// src/runtime/ptx.cuh: each instruction's emulation against what the instruction computes.

#include "runtime/ptx.cuh"

#include <gtest/gtest.h>

#include <vector>

#include "device_arrays.h"
#include "runtime/cuda_launch.h"
#include "runtime/cuda_warp.cuh"
#include "runtime/ptx_wgmma.cuh"

namespace qcore {
namespace {

TEST(Ptx, EmulatesDotProducts) {
  EXPECT_EQ(ptx::add_bytes(0xff0180feu, 5), 0xffu + 0x01u + 0x80u + 0xfeu + 5u);
  const std::uint32_t pair = 0x8001fffeu;   // -2, -32767
  const std::uint32_t bytes = 0x807f02ffu;  // -1, 2, 127, -128
  EXPECT_EQ(ptx::dot2_low(pair, bytes, 10), 10 + 2 - 2 * 32767);
  EXPECT_EQ(ptx::dot2_high(pair, bytes, 10), 10 - 2 * 127 + 128 * 32767);
}

TEST(Ptx, EmulatesByteOperations) {
  EXPECT_EQ(ptx::add_signed_bytes(0xff0180feu, 5), -1 + 1 - 128 - 2 + 5);
  EXPECT_EQ(ptx::and_or(0x12345678u, 0x0f0f0f0fu, 0x4b000000u), 0x4b040608u | 0x02000000u);
  EXPECT_EQ(ptx::insert_byte<0>(0x12345678u, 0x4b000000u), 0x4b000078u);
  EXPECT_EQ(ptx::insert_byte<3>(0x12345678u, 0x4b0000ffu), 0x4b000012u);
  const uint4 four{1, 2, 3, 4};
  EXPECT_EQ(ptx::load_once(&four).z, 3u);
}

// Row-major matrices of bytes, b transposed, so that a fragment's register is a word of a row.
struct Matrices {
  const std::uint32_t* a;  // [16, 8] words: 32 k
  const std::uint32_t* b;  // [8, 8]
  std::int32_t* c;         // [16, 8]
};

__global__ void large_mma_kernel(const Matrices m, bool portable) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, quad = lane % 4;
  std::uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = m.a[(group + 8 * (i % 2)) * 8 + 4 * (i / 2) + quad];
  for (int i = 0; i < 2; ++i) b[i] = m.b[group * 8 + 4 * i + quad];
  std::int32_t c[4];
  for (int i = 0; i < 4; ++i) c[i] = m.c[(group + 8 * (i / 2)) * 8 + 2 * quad + i % 2];
  if (portable)
    ptx::mma_u8s8(c, a, b, c);
  else
    ptx::mma_m16n8k32(c, a, b, c);
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
  std::vector<std::int32_t> before(16 * 8), expected(16 * 8);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      std::int32_t sum = before[row * 8 + column] = random.below(1000) - 500;
      for (int k = 0; k < 32; ++k)
        sum += static_cast<int>(a[row * 8 + k / 4] >> (8 * (k % 4)) & 0xffu) *
               static_cast<std::int8_t>(b[column * 8 + k / 4] >> (8 * (k % 4)));
      expected[row * 8 + column] = sum;
    }
  for (const bool portable : {false, true}) {
    std::vector<std::int32_t> c = before;
    launch("self_test", large_mma_kernel, {dim3(1), dim3(32)}, nullptr, Matrices{a.data(), b.data(), c.data()},
           portable);
    EXPECT_EQ(c, expected);
  }
  std::vector<std::int32_t> c = before;
  launch("self_test", small_mma_kernel, {dim3(1), dim3(32)}, nullptr, Matrices{a.data(), b.data(), c.data()});
  for (int i = 0; i < 8 * 8; ++i) EXPECT_EQ(c[i], expected[i]);
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
