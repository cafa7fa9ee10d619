#pragma once

#include "runtime/cuda/ptx_wgmma.cuh"

// A ring of stages in shared memory, which some warps fill while others compute.
namespace qcore {

template <class Stage, int kCount>
struct SmemPipeline {
  Stage stages[kCount];
  ptx::Barrier full[kCount];
  ptx::Barrier empty[kCount];

  // By one thread; bulk copies and other threads see it after cluster_sync() or barriers_are_ready().
  __device__ void init(int full_arrivals, int empty_arrivals) {
    for (int i = 0; i < kCount; ++i) {
      ptx::barrier_init(full[i], full_arrivals);
      ptx::barrier_init(empty[i], empty_arrivals);
    }
  }
  // Dynamic shared memory starts at no particular multiple. Through uintptr_t the
  // address space would be lost, and nvcc would emit generic loads.
  __device__ static SmemPipeline& get(char* shared) {
    const auto behind = reinterpret_cast<std::uintptr_t>(shared) % alignof(Stage);
    return *reinterpret_cast<SmemPipeline*>(shared + (alignof(Stage) - behind) % alignof(Stage));
  }
};

// Position in a ring that producer and consumers walk through in step.
template <int kCount>
struct PipelineState {
  int slot = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++slot == kCount) slot = 0, parity ^= 1u;
  }
  __device__ __forceinline__ void skip(int stages) {
    slot += stages;
    parity ^= static_cast<unsigned>(slot / kCount) & 1u;
    slot %= kCount;
  }
};

}  // namespace qcore
