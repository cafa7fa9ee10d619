#pragma once

#include "runtime/cuda/ptx_half.cuh"
#include "runtime/cuda/ptx_wgmma.cuh"

// Products of whole warpgroups in 16-bit floats; needs sm_90a.
namespace qcore::ptx {

// d = a b, or d + a b: 64 rows, 64 columns, 16 k; products are exact and summed in fp32. Warp w of the warpgroup has
// rows 16*w ..; with group = lane / 4 and quad = lane % 4, a word of a holds two neighbors along k,
//
//   a[i]        row group + 8*(i%2), k 8*(i/2) + 2*quad ..
//   d[4*j + i]  row group + 8*(i/2), column 8*j + 2*quad + i%2
//
// b's columns are rows of shared memory. Neither a nor d may be touched before product_wait().
template <Half kHalf>
__device__ __forceinline__ void product_half(float (&d)[32], const std::uint32_t (&a)[4], SwizzledRows b, bool add) {
#if defined(__CUDACC__)
#define QCORE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define QCORE_D16(i) QCORE_D4(i), QCORE_D4(i + 4), QCORE_D4(i + 8), QCORE_D4(i + 12)
#define QCORE_PRODUCT(type)                                                                                          \
  "{.reg .pred add; setp.ne.b32 add, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type              \
  " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;}"
  if constexpr (kHalf == Half::f16)
    asm volatile(QCORE_PRODUCT("f16")
                 : QCORE_D16(0), QCORE_D16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  else
    asm volatile(QCORE_PRODUCT("bf16")
                 : QCORE_D16(0), QCORE_D16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
#undef QCORE_D4
#undef QCORE_D16
#undef QCORE_PRODUCT
#else
  const cuda_host::WarpWords<4> rows(a, "wgmma");
  const int group = cuda_host::lane() / 4, quad = cuda_host::lane() % 4;
  float values[2][16];  // of both rows
  for (int row = 0; row < 2; ++row) {
    std::uint32_t halves[8];
    for (int i = 0; i < 8; ++i) halves[i] = rows.word(4 * group + i % 4, row + 2 * (i / 4));
    cuda_host::half_values(halves, kHalf == Half::bf16, values[row]);
  }
  cuda_host::product([=, &d] {
    for (int i = 0; i < 16; ++i) {
      std::uint32_t halves[8];
      float column[16];
      load_swizzled(halves, b, 8 * (i / 2) + 2 * quad + i % 2);
      cuda_host::half_values(halves, kHalf == Half::bf16, column);
      for (int row = 0; row < 2; ++row) {
        float& result = d[4 * (i / 2) + 2 * row + i % 2];
        result = cuda_host::add_dot(add ? result : 0.0f, values[row], column);
      }
    }
  });
#endif
}

// All products of the calling warpgroup are done, and d is theirs.
__device__ __forceinline__ void product_wait(float (&d)[32]) {
#if defined(__CUDACC__)
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(d[i])::"memory");
#else
  (void)d;
  cuda_host::products_wait();
#endif
}

}  // namespace qcore::ptx
