// src/runtime/cuda_*: errors, memory, launches.

#include <gtest/gtest.h>

#include "device_arrays.h"
#include "runtime/cuda/cuda_check.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_scratch.h"

namespace qcore {
namespace {

template <class Call>
std::string cuda_error(Call&& call) {
  try {
    call();
  } catch (const CudaError& error) {
    return error.what();
  }
  return "";
}

TEST(CudaCheck, NamesTheFunctionAndClearsTheError) {
  cuda_host::fail_next("cudaSetDevice", cudaErrorInvalidDevice);
  EXPECT_EQ(cuda_error([] { QCORE_CHECK_CUDA(cudaSetDevice(0)); }),
            "cudaSetDevice failed: invalid device ordinal (101)");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

__global__ void empty_kernel() {}

TEST(CudaLaunch, AFailedLaunchThrows) {
  EXPECT_EQ(cuda_error([] { launch("self_test", empty_kernel, {dim3(0), dim3(32)}, nullptr); }),
            "self_test failed: invalid configuration argument (9)");
  EXPECT_EQ(cuda_error([] { launch("self_test", empty_kernel, {dim3(1), dim3(1025)}, nullptr); }),
            "self_test failed: invalid configuration argument (9)");
}

TEST(CudaDevice, Info) {
  const CudaInfo info = cuda_info();
  EXPECT_TRUE(info.built);
  EXPECT_EQ(info.device_count, 1);
  EXPECT_EQ(info.devices, std::vector<std::string>{"cuda_host, sm_90"});
  EXPECT_EQ(compute_capability(0), 90);
}

TEST(CudaDevice, AllocationsAreFreed) {
  const int before = cuda_host::live_allocations();
  {
    auto memory = cuda_allocate(0, 100);
    auto none = cuda_allocate(0, 0);
    EXPECT_EQ(cuda_host::live_allocations(), before + 2);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 256, 0u);
  }
  EXPECT_EQ(cuda_host::live_allocations(), before);
  cuda_host::fail_next("cudaMalloc", cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda_error([] { cuda_allocate(0, 100); }), "cudaMalloc failed: out of memory (2)");
  EXPECT_EQ(cuda_error([] { cuda_allocate(1, 100); }),
            "there is no device cuda:1: this machine has 1, the first is cuda:0");
}

TEST(CudaDevice, CopiesBothWays) {
  const std::vector<int> values{1, 2, 3};
  DeviceArray<int> device(values);
  std::vector<int> back(3);
  cuda_copy(back.data(), kCpu, device.get(), kCuda, 12);
  EXPECT_EQ(back, values);
  for (const char* function : {"cudaMemcpy", "cudaStreamSynchronize"}) {
    cuda_host::fail_next(function, cudaErrorInvalidValue);
    EXPECT_EQ(cuda_error([&] { cuda_copy(back.data(), kCpu, device.get(), kCuda, 12); }),
              std::string(function) + " failed: invalid argument (1)");
  }
}

TEST(CudaScratch, SlotsAreAlignedAndApart) {
  ScratchPlan plan;
  const auto first = plan.add<char>(3);
  const auto second = plan.add<double>(2);
  const int before = cuda_host::live_allocations();
  {
    CudaScratch scratch(plan, 0, nullptr);
    EXPECT_EQ(reinterpret_cast<char*>(scratch[second]) - scratch[first], 256);
    EXPECT_EQ(cuda_host::live_allocations(), before + 1);
  }
  EXPECT_EQ(cuda_host::live_allocations(), before);
  cuda_host::fail_next("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda_error([&] { CudaScratch(plan, 0, nullptr); }), "cudaMallocFromPoolAsync failed: out of memory (2)");
}

}  // namespace
}  // namespace qcore
