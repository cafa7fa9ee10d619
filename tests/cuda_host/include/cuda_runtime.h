#pragma once

// Stands in for the CUDA toolkit's header of this name, so that a C++ compiler takes qcore's .cu files as they are and
// their kernels run on the CPU. It holds what those files use, and no more. Static shared memory is declared through
// block_shared<T>() of runtime/cuda/cuda_launch.h, which gives every thread block its own poisoned copy; `__shared__`
// is not defined.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "half_values.h"
#include "machine/machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline void __syncthreads() { cuda_host::sync_threads(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { cuda_host::exchange(mask, 0, "__syncwarp"); }

// `source` maps (lane, first lane of its group) to the lane that is read.
template <class T, class Source>
T shuffle(unsigned mask, T value, int width, const char* where, Source source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const int lane = cuda_host::lane(), group = lane & ~(width - 1);
  int from = source(lane, group);
  if (from < 0 || from >= group + width) from = lane;
  bits = cuda_host::exchange(mask, bits, where).read(from);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return shuffle(mask, value, width, "__shfl_sync", [=](int, int group) { return group + (source & (width - 1)); });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return shuffle(mask, value, width, "__shfl_up_sync", [=](int lane, int group) {
    const int from = lane - static_cast<int>(delta);
    return from < group ? lane : from;
  });
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return shuffle(mask, value, width, "__shfl_down_sync", [=](int lane, int) { return lane + static_cast<int>(delta); });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  return shuffle(mask, value, width, "__shfl_xor_sync", [=](int lane, int) { return lane ^ lane_mask; });
}

// Threads of the machine take turns only at barriers and shuffles, so plain operations are atomic.
template <class T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  const T old = *address;
  if (old < value) *address = value;
  return old;
}
template <class T>
T atomicCAS(T* address, T expected, T value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

// The runtime: one device of compute capability 9.0 whose memory is the host's, with AddressSanitizer's red zones.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDefault = 4 };
constexpr unsigned cudaStreamNonBlocking = 1;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
struct cudaMemPoolProps {
  cudaMemAllocationType allocType;
  cudaMemLocation location;
};
struct cudaDeviceProp {
  char name[256];
  int major, minor;
};
using cudaStream_t = struct FakeStream*;
using cudaMemPool_t = struct FakePool*;

// A stream is captured where a test says so (cuda_host::capture); what is launched into it runs at once all the same.
#define CUDART_VERSION 13000
#define CUDART_CB
struct FakeGraphNode {
  std::vector<FakeGraphNode*> dependencies;
};
using cudaGraphNode_t = FakeGraphNode*;
using cudaGraph_t = struct FakeGraph*;
using cudaUserObject_t = struct FakeUserObject*;
struct cudaGraphEdgeData {};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
constexpr unsigned cudaUserObjectNoDestructorSync = 1, cudaGraphUserObjectMove = 1;

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* index);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int index);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, std::size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, std::size_t* count);
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies, cudaGraphEdgeData* edges,
                                         std::size_t* count);
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, void (*destroy)(void*), unsigned references,
                                 unsigned flags);
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count);
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags);

namespace cuda_host {

// The next call of `function` returns `status` and does nothing.
void fail_next(const char* function, cudaError_t status);

// Allocations that have not been freed.
int live_allocations();

// Streams are captured into `graph` from here on, and what they record next depends on `last`; or no stream is.
void capture(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& last);
void end_capture();
cudaGraph_t create_graph();
void destroy_graph(cudaGraph_t graph);

template <class... Parameters, class... Arguments>
cudaError_t launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   unsigned cluster, const Arguments&... arguments) {
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "kernel parameters exceed 4 KiB");
  if (!launchable(grid, block, shared_bytes, cluster)) return cudaErrorInvalidConfiguration;
  record(name, reinterpret_cast<const void*>(kernel));
  auto body = [&] { kernel(arguments...); };
  run_grid(
      name, grid, block, shared_bytes, cluster, [](void* context) { (*static_cast<decltype(body)*>(context))(); },
      &body);
  return cudaSuccess;
}

}  // namespace cuda_host
