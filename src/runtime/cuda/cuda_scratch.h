#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/cuda/graph_memory.h"

namespace qcore {

template <class T>
struct ScratchSlot {
  std::int64_t offset;  // in bytes
};

// The arrays that one call of an operator needs on the device.
class ScratchPlan {
 public:
  template <class T>
  ScratchSlot<T> add(std::int64_t count) {
    const ScratchSlot<T> slot{bytes_};
    bytes_ += (count * static_cast<std::int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return slot;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  static constexpr std::int64_t kAlignment = 256;
  std::int64_t bytes_ = 0;
};

// Uninitialized device memory for work enqueued on `stream` during the object's lifetime. It comes from a memory pool
// that qcore keeps per device, in stream order: calls that repeat reuse the pool's memory without a synchronization,
// calls on several streams or threads do not disturb each other. In a stream that is being captured the memory belongs
// to the graph (graph_memory.h).
class CudaScratch {
 public:
  CudaScratch(const ScratchPlan& plan, int device, cudaStream_t stream);
  ~CudaScratch();
  CudaScratch(const CudaScratch&) = delete;
  CudaScratch& operator=(const CudaScratch&) = delete;

  template <class T>
  T* operator[](ScratchSlot<T> slot) const {
    return reinterpret_cast<T*>(memory_ + slot.offset);
  }

 private:
  char* memory_ = nullptr;
  GraphMemory::Buffer* buffer_ = nullptr;  // which the memory is part of, in a capture
  int device_;
  cudaStream_t stream_;
};

}  // namespace qcore
