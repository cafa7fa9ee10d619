#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

// -- between thread blocks of one kernel, through global memory

// Sets the flag. A thread that reads this value from the flag also sees what the calling warp wrote before
// __syncwarp().
__device__ __forceinline__ void raise_flag(std::uint64_t* flag, std::uint64_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
#else
  *flag = value;
#endif
}

// Waits until the flag has this value. Another thread block raises it that has started before. Whole warps call: a loop
// of a single lane would keep the compiler from holding what is the same in all lanes once.
__device__ __forceinline__ void wait_for_flag(const std::uint64_t* flag, std::uint64_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      ".reg .u64 seen;\n"
      "again:\n"
      "ld.acquire.gpu.global.u64 seen, [%0];\n"
      "setp.eq.u64 over, seen, %1;\n"
      "@!over bra again;\n"
      "}" ::"l"(flag),
      "l"(value)
      : "memory");
#elif !defined(__CUDACC__)
  cuda_host::check_raised(*flag == value);
#endif
}

// 16 bytes that another thread block wrote.
__device__ __forceinline__ float4 load_of_others(const float4* from) {
#if defined(__CUDACC__)
  return __ldcg(from);
#else
  return *from;
#endif
}

}  // namespace qcore::ptx
