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
  for (const char* function : {"cudaDeviceSynchronize", "cudaMemcpy", "cudaStreamSynchronize"}) {
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

// Takes scratch memory and records `node` as the work that uses it; `node` depends on what the stream did.
void* recorded_memory(cudaGraph_t graph, std::int64_t bytes, cudaGraphNode_t node) {
  ScratchPlan plan;
  const auto slot = plan.add<char>(bytes);
  CudaScratch scratch(plan, 0, nullptr);
  cuda_host::capture(graph, {node});
  return scratch[slot];
}

// After a call, which frees what graphs have left.
int allocations() {
  cuda_scratch(0, 1000, nullptr);
  return cuda_host::live_allocations();
}

TEST(GraphMemory, CallsInARowShareMemoryThatIsFreedAfterTheGraph) {
  const int before = allocations();
  const cudaGraph_t graph = cuda_host::create_graph();
  FakeGraphNode first, between{{&first}}, second{{&between}}, third{{&second}}, fourth{{&third}};
  cuda_host::capture(graph, {});
  void* memory = recorded_memory(graph, 1000, &first);
  cuda_host::capture(graph, {&between});
  EXPECT_EQ(recorded_memory(graph, 500, &second), memory);
  void* larger = recorded_memory(graph, 2000, &third);
  EXPECT_NE(larger, memory);
  EXPECT_EQ(recorded_memory(graph, 1000, &fourth), memory) << "the smaller of two that are large enough";
  EXPECT_EQ(cuda_host::live_allocations(), before + 2);
  cuda_host::end_capture();

  const cudaGraph_t other = cuda_host::create_graph();
  FakeGraphNode alone;
  cuda_host::capture(other, {});
  EXPECT_NE(recorded_memory(other, 1000, &alone), memory) << "graphs share no memory";
  cuda_host::end_capture();
  cuda_host::destroy_graph(graph);
  cuda_host::destroy_graph(other);
  EXPECT_EQ(allocations(), before);
}

TEST(GraphMemory, WorkThatMayRunAtTheSameTimeSharesNothing) {
  const int before = allocations();
  const cudaGraph_t graph = cuda_host::create_graph();
  FakeGraphNode root, left{{&root}}, right{{&root}}, join{{&left, &right}};
  cuda_host::capture(graph, {&root});
  void* of_left = recorded_memory(graph, 1000, &left);
  cuda_host::capture(graph, {&root});  // as cudaStreamUpdateCaptureDependencies does, or another stream
  void* of_right = recorded_memory(graph, 1000, &right);
  EXPECT_NE(of_right, of_left);
  cuda_host::capture(graph, {&left, &right});
  void* of_join = recorded_memory(graph, 1000, &join);
  EXPECT_TRUE(of_join == of_left || of_join == of_right);
  {  // two at the same time
    ScratchPlan plan;
    const auto slot = plan.add<char>(1000);
    CudaScratch one(plan, 0, nullptr), two(plan, 0, nullptr);
    EXPECT_NE(one[slot], two[slot]);
  }
  cuda_host::end_capture();
  cuda_host::destroy_graph(graph);
  EXPECT_EQ(allocations(), before);
}

TEST(GraphMemory, MemoryOutlivesItsGraphWhileACallHasIt) {
  const int before = allocations();
  const cudaGraph_t graph = cuda_host::create_graph();
  cuda_host::capture(graph, {});
  auto memory = cuda_scratch(0, 1000, nullptr);
  cuda_host::end_capture();
  cuda_host::destroy_graph(graph);
  EXPECT_EQ(allocations(), before + 1);
  memory.reset();
  EXPECT_EQ(allocations(), before);
}

TEST(GraphMemory, FailuresAreReportedAndLeakNothing) {
  const int before = allocations();
  for (const char* function :
       {"cudaMallocFromPoolAsync", "cudaStreamSynchronize", "cudaUserObjectCreate", "cudaGraphRetainUserObject"}) {
    const cudaGraph_t graph = cuda_host::create_graph();
    cuda_host::capture(graph, {});
    cuda_host::fail_next(function, cudaErrorInvalidValue);
    EXPECT_EQ(cuda_error([] { cuda_scratch(0, 1000, nullptr); }),
              std::string(function) + " failed: invalid argument (1)");
    cuda_host::end_capture();
    cuda_host::destroy_graph(graph);
    EXPECT_EQ(allocations(), before);
  }
}

}  // namespace
}  // namespace qcore
