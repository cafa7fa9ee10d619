#include "runtime/cuda/graph_memory.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "runtime/cuda/cuda_capture.h"
#include "runtime/cuda/cuda_check.h"

namespace qcore {
namespace {

#if CUDART_VERSION < 13000
constexpr auto capture_info = cudaStreamGetCaptureInfo_v3;
constexpr auto dependencies_of = cudaGraphNodeGetDependencies_v2;
#else
constexpr auto capture_info = cudaStreamGetCaptureInfo;
constexpr auto dependencies_of = cudaGraphNodeGetDependencies;
#endif

// Buffers that a graph has left and that no call has freed yet, of all devices.
std::atomic<int> abandoned_buffers{0};

// CUDA calls it in a thread of its own, where nothing of CUDA may be called and nothing should wait.
void CUDART_CB abandon(void* buffer) {
  static_cast<GraphMemory::Buffer*>(buffer)->abandoned = true;
  ++abandoned_buffers;
}

struct Capture {
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> last;  // what the stream's next node will depend on
};

std::optional<Capture> capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture capture;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;  // not read, but without it a query of programmatic edges fails
  std::size_t count = 0;
  if (capture_info(stream, &status, &capture.id, &capture.graph, &nodes, &edges, &count) != cudaSuccess) {
    cudaGetLastError();  // the stream's next operation reports it
    return std::nullopt;
  }
  if (status != cudaStreamCaptureStatusActive) return std::nullopt;
  capture.last.assign(nodes, nodes + count);
  return capture;
}

// A query without room for the edges' data, or for their number alone, fails where an edge is programmatic.
std::vector<cudaGraphNode_t> dependencies(cudaGraphNode_t node) {
  for (std::size_t room = 16;; room *= 4) {
    std::vector<cudaGraphNode_t> found(room);
    std::vector<cudaGraphEdgeData> edges(room);
    std::size_t count = room;
    QCORE_CHECK_CUDA(dependencies_of(node, found.data(), edges.data(), &count));
    if (count == room) continue;
    found.resize(count);
    return found;
  }
}

// Whether each of `earlier` is among `nodes` or comes before one of them; false also where that takes long to find out.
bool precede(const std::vector<cudaGraphNode_t>& earlier, std::vector<cudaGraphNode_t> nodes) {
  constexpr std::size_t kMostNodes = 1024;
  std::unordered_set<cudaGraphNode_t> missing(earlier.begin(), earlier.end()), seen;
  while (!missing.empty() && !nodes.empty() && seen.size() < kMostNodes) {
    const cudaGraphNode_t node = nodes.back();
    nodes.pop_back();
    missing.erase(node);
    if (!seen.insert(node).second) continue;
    for (const cudaGraphNode_t before : dependencies(node)) nodes.push_back(before);
  }
  return missing.empty();
}

}  // namespace

GraphMemory::Buffer* GraphMemory::take(std::int64_t bytes, cudaStream_t stream) {
  if (abandoned_buffers > 0) free_abandoned();
  const std::optional<Capture> capture = capture_of(stream);
  if (!capture) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  Buffer* best = nullptr;
  for (const auto& buffer : buffers_)
    if (!buffer->taken && buffer->capture == capture->id && buffer->bytes >= bytes &&
        (!best || buffer->bytes < best->bytes) && precede(buffer->last, capture->last))
      best = buffer.get();
  if (!best) best = create(bytes, capture->id, capture->graph);
  best->taken = true;
  return best;
}

void GraphMemory::give_back(Buffer& buffer, cudaStream_t stream) {
  const std::optional<Capture> capture = capture_of(stream);
  std::lock_guard<std::mutex> lock(mutex_);
  buffer.taken = false;
  if (capture && capture->id == buffer.capture)
    buffer.last = capture->last;
  else
    buffer.capture = 0;  // what else was recorded is not known any more
}

GraphMemory::Buffer* GraphMemory::create(std::int64_t bytes, unsigned long long capture, cudaGraph_t graph) {
  RelaxedCapture relaxed;
  if (!stream_) QCORE_CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  Buffer& buffer = *buffers_.emplace_back(std::make_unique<Buffer>());
  const auto check = [&](cudaError_t status, const char* function) {
    if (status != cudaSuccess) buffer.taken = false, abandon(&buffer);
    check_cuda(status, function);
  };
  check(cudaMallocFromPoolAsync(&buffer.memory, static_cast<std::size_t>(bytes), pool_, stream_),
        "cudaMallocFromPoolAsync");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  buffer.bytes = bytes;
  buffer.capture = capture;
  cudaUserObject_t object = nullptr;
  check(cudaUserObjectCreate(&object, &buffer, abandon, 1, cudaUserObjectNoDestructorSync), "cudaUserObjectCreate");
  const cudaError_t retained = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (retained != cudaSuccess) {
    buffer.taken = false;
    cudaUserObjectRelease(object, 1);  // calls abandon()
  }
  check_cuda(retained, "cudaGraphRetainUserObject");
  return &buffer;
}

void GraphMemory::free_abandoned() {
  std::lock_guard<std::mutex> lock(mutex_);
  RelaxedCapture relaxed;
  const auto first = std::partition(buffers_.begin(), buffers_.end(),
                                    [](const auto& buffer) { return buffer->taken || !buffer->abandoned; });
  abandoned_buffers -= static_cast<int>(buffers_.end() - first);
  for (auto buffer = first; buffer != buffers_.end(); ++buffer)
    if ((*buffer)->memory && cudaFreeAsync((*buffer)->memory, stream_) != cudaSuccess) cudaGetLastError();
  buffers_.erase(first, buffers_.end());
}

}  // namespace qcore
