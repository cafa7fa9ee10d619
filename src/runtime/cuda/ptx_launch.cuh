#pragma once

#include <cuda_runtime.h>

// Kernels of one stream that overlap (LaunchShape::overlap): a thread block may start before the kernel in front of it
// has ended. On the CPU, and before sm_90, kernels run one after the other and these calls mean nothing.
namespace qcore::ptx {

// Waits until every earlier kernel of the stream has ended and what it wrote can be read. A kernel that overlaps calls
// it in every thread block before it touches memory that another kernel may write, or writes any.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Once every thread block has called it or has ended, the next kernel's may start, if it overlaps.
//
// A kernel may call this before it waits: a kernel has ended only after all of its thread blocks waited for the kernels
// in front of it, so waiting for one kernel is waiting for all earlier ones. The next kernel then starts while this one
// still waits, and what it does before its own wait, such as asking for weights, is done early.
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace qcore::ptx
