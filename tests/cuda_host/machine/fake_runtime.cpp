#include <algorithm>
#include <cstdlib>
#include <string>
#include <unordered_set>
#include <vector>

#include "cuda_runtime.h"

struct FakeUserObject {
  void* data;
  void (*destroy)(void*);
  unsigned references;
};
struct FakeGraph {
  unsigned long long id;
  std::vector<cudaUserObject_t> objects;
};

namespace {

struct Injected {
  std::string function;
  cudaError_t status = cudaSuccess;
};
Injected injected;
cudaError_t last_error = cudaSuccess;
std::unordered_set<void*> allocations;
cudaGraph_t captured_graph = nullptr;
std::vector<cudaGraphNode_t> captured_last;
constexpr std::size_t kAlignment = 256;

cudaError_t fail(cudaError_t status) { return last_error = status; }

cudaError_t begin(const char* function) {
  if (injected.function != function) return cudaSuccess;
  injected.function.clear();
  return fail(injected.status);
}

cudaError_t allocate(void** memory, std::size_t bytes) {
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *memory = std::aligned_alloc(kAlignment, size);
  if (!*memory) return fail(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xff, size);
  allocations.insert(*memory);
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  if (!allocations.erase(memory)) return fail(cudaErrorInvalidValue);
  std::free(memory);
  return cudaSuccess;
}

}  // namespace

namespace cuda_host {

void fail_next(const char* function, cudaError_t status) { injected = {function, status}; }

int live_allocations() { return static_cast<int>(allocations.size()); }

void capture(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& last) {
  captured_graph = graph;
  captured_last = last;
}

void end_capture() { capture(nullptr, {}); }

cudaGraph_t create_graph() {
  static unsigned long long last_id = 0;
  return new FakeGraph{++last_id, {}};
}

void destroy_graph(cudaGraph_t graph) {
  for (const cudaUserObject_t object : graph->objects) cudaUserObjectRelease(object, 1);
  delete graph;
}

}  // namespace cuda_host

#define BEGIN() \
  if (const cudaError_t status = begin(__func__)) return status

cudaError_t cudaGetLastError() {
  const cudaError_t status = last_error;
  last_error = cudaSuccess;
  return status;
}

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    default:
      return "invalid argument";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  BEGIN();
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* index) {
  BEGIN();
  *index = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
  BEGIN();
  return index == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int index) {
  BEGIN();
  // Device 0 is the one that runs; the attributes of kAmpere and kTuring are there for tests of what kernels take.
  constexpr int kMajor[] = {9, 8, 7}, kMinor[] = {0, 0, 5};
  if (index < 0 || index > 2) return fail(cudaErrorInvalidDevice);
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor[index];
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kMinor[index];
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 << 10;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  BEGIN();
  if (index != 0) return fail(cudaErrorInvalidDevice);
  *properties = {"cuda_host", 9, 0};
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  BEGIN();
  return allocate(memory, bytes);
}

cudaError_t cudaFree(void* memory) {
  BEGIN();
  return release(memory);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  BEGIN();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, std::size_t bytes) {
  BEGIN();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  BEGIN();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  BEGIN();
  *stream = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  BEGIN();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  BEGIN();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  BEGIN();
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  BEGIN();
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  BEGIN();
  *pool = reinterpret_cast<cudaMemPool_t>(pool);
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  BEGIN();
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t, cudaStream_t) {
  BEGIN();
  return allocate(memory, bytes);
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t) {
  BEGIN();
  return release(memory);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* state, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, std::size_t* count) {
  BEGIN();
  *state = captured_graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (!captured_graph) return cudaSuccess;
  *id = captured_graph->id;
  *graph = captured_graph;
  *dependencies = captured_last.data();
  *edges = nullptr;
  *count = captured_last.size();
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies, cudaGraphEdgeData*,
                                         std::size_t* count) {
  BEGIN();
  *count = std::min(*count, node->dependencies.size());
  std::copy_n(node->dependencies.begin(), *count, dependencies);
  return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, void (*destroy)(void*), unsigned references,
                                 unsigned) {
  BEGIN();
  *object = new FakeUserObject{data, destroy, references};
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  BEGIN();
  object->references -= count;
  if (object->references > 0) return cudaSuccess;
  object->destroy(object->data);
  delete object;
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned, unsigned) {
  BEGIN();
  graph->objects.push_back(object);
  return cudaSuccess;
}
