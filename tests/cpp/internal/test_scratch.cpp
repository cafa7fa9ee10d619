#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/memory.h"
#include "support.h"

namespace qcore {
namespace {

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0; }

TEST(AllocateAligned, SizesAndAlignment) {
  for (const std::int64_t bytes : {0, 1, 63, 64, 65, 1 << 20, 9 << 20}) {
    const auto memory = allocate_aligned(bytes);
    ASSERT_TRUE(memory);
    EXPECT_TRUE(aligned(memory.get())) << bytes;
    std::memset(memory.get(), 0x5a, static_cast<std::size_t>(bytes));
  }
  EXPECT_THROW(allocate_aligned(-1), std::bad_alloc);
}

TEST(AllocateLongLived, BlocksAreAlignedAndSeparate) {
  std::vector<std::shared_ptr<void>> blocks;
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 60; ++i) {
    const std::int64_t bytes = i == 7 ? 20 << 20 : i % 3 == 0 ? 100 * i : (64 << 10) + 77777 * i;
    blocks.push_back(allocate_long_lived(bytes));
    sizes.push_back(bytes);
    EXPECT_TRUE(aligned(blocks.back().get()));
    std::memset(blocks.back().get(), i, static_cast<std::size_t>(bytes));
    if (i % 4 == 3) {  // freed between others, whose memory stays
      blocks[i - 2].reset();
      sizes[i - 2] = 0;
    }
  }
  for (int i = 0; i < 60; ++i)
    for (std::int64_t j = 0; j < sizes[i]; j += 997)
      ASSERT_EQ(static_cast<unsigned char*>(blocks[i].get())[j], i) << "block " << i << ", byte " << j;
  EXPECT_THROW(allocate_long_lived(-1), std::bad_alloc);
}

TEST(AllocateLongLived, ThreadsMayAllocateAtOnce) {
  if (!test::has_threads()) GTEST_SKIP() << "no threads";
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t, &wrong] {
      for (int i = 0; i < 50; ++i) {
        const auto block = allocate_long_lived(300000);
        std::memset(block.get(), t, 300000);
        for (int j = 0; j < 300000; j += 4096) wrong += static_cast<char*>(block.get())[j] != t;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Scratch, ArraysAreAlignedAndSeparate) {
  Scratch scratch;
  char* arrays[50];
  for (int i = 0; i < 50; ++i) {
    arrays[i] = scratch.take<char>(i * 3700);
    EXPECT_TRUE(aligned(arrays[i]));
    std::memset(arrays[i], i, i * 3700);
  }
  for (int i = 0; i < 50; ++i)
    for (int j = 0; j < i * 3700; ++j) ASSERT_EQ(arrays[i][j], i);
}

TEST(Scratch, TheNextCallGetsTheSameMemory) {
  void* first = nullptr;
  for (int call = 0; call < 10; ++call) {
    Scratch scratch;
    void* memory = scratch.take<float>(1000);
    if (call == 0) first = memory;
    EXPECT_EQ(memory, first) << "call " << call;
  }
}

TEST(Scratch, AfterGrowingOneChunkServesTheCall) {
  const auto call = [](std::int64_t* distance) {
    Scratch scratch;
    char* a = scratch.take<char>(100 << 10);
    char* b = scratch.take<char>(200 << 10);
    char* c = scratch.take<char>(300 << 10);
    *distance = c - a;
    std::memset(a, 1, 100 << 10);
    std::memset(b, 2, 200 << 10);
    std::memset(c, 3, 300 << 10);
    return a;
  };
  std::int64_t distance = 0;
  call(&distance);
  char* second = call(&distance);
  EXPECT_EQ(distance, 300 << 10);
  EXPECT_EQ(call(&distance), second);
}

TEST(Scratch, ScopesNest) {
  Scratch outer;
  int* a = outer.take<int>(100);
  for (int i = 0; i < 100; ++i) a[i] = i;
  int* inner_memory = nullptr;
  for (int call = 0; call < 3; ++call) {
    Scratch inner;
    int* b = inner.take<int>(1 << 20);
    b[0] = b[(1 << 20) - 1] = -1;
    EXPECT_TRUE(!inner_memory || b == inner_memory);
    inner_memory = b;
  }
  int* c = outer.take<int>(10);
  c[0] = -2;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(a[i], i);
}

TEST(Scratch, ThreadsHaveTheirOwn) {
  if (!test::has_threads()) GTEST_SKIP() << "no threads";
  Scratch scratch;
  void* here = scratch.take<float>(64);
  void* there = nullptr;
  std::thread([&] {
    Scratch other;
    there = other.take<float>(64);
    std::memset(there, 0, 256);
  }).join();
  EXPECT_NE(here, there);
}

}  // namespace
}  // namespace qcore
