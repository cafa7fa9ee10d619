#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace qcore {

// Scratch memory of one device for work that a stream's capture records. It belongs to the graph and to what is
// instantiated from it: the graph retains a user object, and memory whose object is gone is freed by a later call.
// Nodes that allocate and free would need less code, but a kernel behind such a node cannot overlap with the kernel in
// front of it.
//
// Calls that come one after the other in a graph share memory. It is handed out again only where all work that used it
// comes before what the stream records next, whatever the program did to the capture's dependencies in between. As with
// the tensors that a graph's kernels write, two instances of one graph must not run at the same time.
class GraphMemory {
 public:
  struct Buffer {
    void* memory = nullptr;
    std::int64_t bytes = 0;
    unsigned long long capture = 0;     // its id, of which a process has no two; 0 for none
    std::vector<cudaGraphNode_t> last;  // what the recorded work ended with when the buffer was given back
    bool taken = true;
    std::atomic<bool> abandoned{false};  // the graph and its instances are gone
  };

  // Objects live as long as the process.
  explicit GraphMemory(cudaMemPool_t pool) : pool_(pool) {}

  // Returns null where the stream is not being captured.
  Buffer* take(std::int64_t bytes, cudaStream_t stream);
  // Lets later calls have the memory, behind the work that the stream has recorded until now.
  void give_back(Buffer& buffer, cudaStream_t stream);

 private:
  Buffer* create(std::int64_t bytes, unsigned long long capture, cudaGraph_t graph);
  void free_abandoned();

  const cudaMemPool_t pool_;
  cudaStream_t stream_ = nullptr;  // for allocations, apart from all that are being captured
  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace qcore
