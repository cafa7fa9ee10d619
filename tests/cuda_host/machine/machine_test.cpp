// The machine itself: what a kernel may rely on, and what it is told when it breaks a rule.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"

namespace {

using cuda_host::MachineError;
using qcore::LaunchShape;

template <class... Parameters, class... Arguments>
void run(void (*kernel)(Parameters...), dim3 grid, dim3 block, const Arguments&... arguments) {
  qcore::launch("self_test", kernel, LaunchShape{grid, block}, nullptr, arguments...);
}

template <class Call>
std::string machine_error(Call&& call) {
  try {
    call();
  } catch (const MachineError& error) {
    return error.what();
  }
  return "";
}

__global__ void indices_kernel(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
}

TEST(Machine, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<unsigned> out(2 * 3 * 4 * 5 * 6 * 7, 0);
  run(indices_kernel, dim3(2, 3, 4), dim3(5, 6, 7), out.data());
  EXPECT_EQ(out, std::vector<unsigned>(out.size(), 1));
}

__global__ void reduce_kernel(int* sums, float* smallest) {
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = qcore::warp_sum(thread + 1);
  smallest[thread] = qcore::warp_min(static_cast<float>(thread % 32) - 7.5f);
}

TEST(Machine, ShufflesReduceEachWarp) {
  std::vector<int> sums(64);
  std::vector<float> smallest(64);
  for (int order = 0; order < 2; ++order) {
    run(reduce_kernel, 1, 64, sums.data(), smallest.data());
    EXPECT_EQ(sums[0], 32 * 33 / 2);
    EXPECT_EQ(sums[63], 32 * 33 / 2 + 32 * 32);
    EXPECT_EQ(smallest[40], -7.5f);
  }
}

__global__ void shuffle_kernel(long long* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const long long value = 1000000000000ll + lane;
  out[lane] = __shfl_sync(0xffffffffu, value, 3);
  out[32 + lane] = __shfl_up_sync(0xffffffffu, value, 1, 8);
  out[64 + lane] = __shfl_down_sync(0xffffffffu, value, 2, 16);
  out[96 + lane] = __shfl_xor_sync(0xffffffffu, value, 5);
  if (lane < 8) out[128 + lane] = __shfl_xor_sync(0xffu, value, 1);
}

TEST(Machine, ShufflesKeepToTheirGroupAndMask) {
  std::vector<long long> out(160, 0);
  run(shuffle_kernel, 1, 32, out.data());
  const long long base = 1000000000000ll;
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(out[lane], base + 3);
    EXPECT_EQ(out[32 + lane], base + (lane % 8 ? lane - 1 : lane));
    EXPECT_EQ(out[64 + lane], base + (lane % 16 < 14 ? lane + 2 : lane));
    EXPECT_EQ(out[96 + lane], base + (lane ^ 5));
    EXPECT_EQ(out[128 + lane], lane < 8 ? base + (lane ^ 1) : 0);
  }
}

struct Exchange {
  int values[96];
};

__global__ void rotate_kernel(int* out, int rounds) {
  auto& shared = qcore::block_shared<Exchange>();
  const int thread = static_cast<int>(threadIdx.x), count = static_cast<int>(blockDim.x);
  int value = thread;
  for (int round = 0; round < rounds; ++round) {
    shared.values[thread] = value;
    __syncthreads();
    value = shared.values[(thread + 1) % count];
    __syncthreads();
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

TEST(Machine, BarriersOrderSharedMemory) {
  std::vector<int> out(3 * 96);
  for (int order = 0; order < 2; ++order) {
    run(rotate_kernel, 3, 96, out.data(), 10);
    for (int i = 0; i < 3 * 96; ++i) EXPECT_EQ(out[i], (i % 96 + 10) % 96);
  }
}

__global__ void read_unwritten_kernel(float* out) {
  auto& shared = qcore::block_shared<float[32]>();
  out[blockIdx.x] = shared[5];
  shared[5] = 1.0f;
}

TEST(Machine, SharedMemoryIsPoisonedForEveryBlock) {
  std::vector<float> out(3, 0.0f);
  run(read_unwritten_kernel, 3, 1, out.data());
  for (float value : out) EXPECT_TRUE(std::isnan(value));
}

__global__ void dynamic_shared_kernel(int* out) {
  int* shared = cuda_host::dynamic_shared<int>();
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST(Machine, DynamicSharedMemory) {
  std::vector<int> out(40);
  qcore::launch("self_test", dynamic_shared_kernel, LaunchShape{1, 40, 40 * sizeof(int)}, nullptr, out.data());
  for (int i = 0; i < 40; ++i) EXPECT_EQ(out[i], 39 - i);
}

__global__ void atomics_kernel(int* sum, int* largest, int* taken) {
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(sum, thread);
  atomicMax(largest, thread);
  if (atomicCAS(taken, 0, 1) == 0) atomicAdd(taken, 100);
}

TEST(Machine, Atomics) {
  int sum = 0, largest = 0, taken = 0;
  run(atomics_kernel, 4, 100, &sum, &largest, &taken);
  EXPECT_EQ(sum, 399 * 400 / 2);
  EXPECT_EQ(largest, 399);
  EXPECT_EQ(taken, 101);
}

__global__ void divergent_barrier_kernel() {
  if (threadIdx.x < 5) return;
  __syncthreads();
}

__global__ void two_barriers_kernel() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncwarp();
  __syncthreads();
}

__global__ void partial_shuffle_kernel() {
  if (threadIdx.x != 7) qcore::warp_sum(1);
}

__global__ void mixed_shuffle_kernel() {
  if (threadIdx.x < 16)
    __shfl_xor_sync(0xffffffffu, 1, 1);
  else
    __shfl_down_sync(0xffffffffu, 1, 1);
}

TEST(Machine, DivergentBarriersAreErrorsNotHangs) {
  const std::string returned = machine_error([] { run(divergent_barrier_kernel, 1, 64); });
  EXPECT_NE(returned.find("59 wait at __syncthreads, 5 have returned"), std::string::npos) << returned;
  const std::string unequal = machine_error([] { run(two_barriers_kernel, 1, 64); });
  EXPECT_NE(unequal.find("wait at __syncthreads"), std::string::npos) << unequal;
  const std::string lane = machine_error([] { run(partial_shuffle_kernel, 2, 32); });
  EXPECT_NE(lane.find("31 wait at __shfl_xor_sync, 1 have returned"), std::string::npos) << lane;
  const std::string mixed = machine_error([] { run(mixed_shuffle_kernel, 1, 32); });
  EXPECT_NE(mixed.find("lanes of one warp are at __shfl_"), std::string::npos) << mixed;
}

TEST(Machine, RunsOnAfterAnError) {
  machine_error([] { run(divergent_barrier_kernel, 1, 64); });
  std::vector<int> out(96);
  run(rotate_kernel, 1, 96, out.data(), 1);
  EXPECT_EQ(out[0], 1);
}

struct TooMuch {
  char bytes[48 * 1024 + 1];
};
__global__ void too_much_shared_kernel() { qcore::block_shared<TooMuch>().bytes[0] = 0; }

TEST(Machine, SharedMemoryIsBounded) {
  const std::string error = machine_error([] { run(too_much_shared_kernel, 1, 32); });
  EXPECT_NE(error.find("49153 bytes of shared memory"), std::string::npos) << error;
}

}  // namespace
