#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "runtime/cuda/ptx.cuh"

// Products of 16 k and how their operands come from shared memory; sm_80 and later.
namespace qcore::ptx {

// d = a b + c of a warp, a and b of signed bytes. With group = lane / 4 and quad = lane % 4, m16n8k16:
//
//   a[i]   row group + 8*i,       k 4*quad ..
//   b      column group,          k 4*quad ..
//   d[i]   row group + 8*(i/2),   column 2*quad + i%2
//
// All lanes must call.
__device__ __forceinline__ void mma_s8s8_k16(std::int32_t (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b,
                                             const std::int32_t (&c)[4]) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
  cuda_host_mma_m16n8k32(d, {a[0], a[1], 0, 0, b, 0}, c, true);
#endif
}

// Loads four matrices of 8 rows by 16 bytes from shared memory: lane 8*i + r says where row r of matrix i lies, at a
// multiple of 16. words[i] becomes word lane % 4 of row lane / 4 of matrix i. All lanes must call.
__device__ __forceinline__ void load_matrices(std::uint32_t (&words)[4], const uint4* row) {
#if defined(__CUDACC__)
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
#else
  const auto own = reinterpret_cast<std::uintptr_t>(row);
  const cuda_host::WarpWords<2> warp(
      {static_cast<std::uint32_t>(own), static_cast<std::uint32_t>(std::uint64_t{own} >> 32)}, "ldmatrix");
  const int lane = cuda_host::lane();
  for (int i = 0; i < 4; ++i) {
    const int of = 8 * i + lane / 4;
    const std::uint64_t from = warp.word(of, 0) | std::uint64_t{warp.word(of, 1)} << 32;
    std::memcpy(&words[i], reinterpret_cast<const char*>(from) + 4 * (lane % 4), 4);
  }
#endif
}

}  // namespace qcore::ptx
