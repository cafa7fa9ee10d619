#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/cuda/ptx.cuh"

// Instructions of sm_90 and sm_90a: barriers in shared memory, bulk copies, clusters of thread blocks and products of
// whole warpgroups, each with what it means in plain C++. Files that use them are compiled for sm_90a alone.
namespace qcore::ptx {

#if defined(__CUDACC__)
__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

// -- clusters ---------------------------------------------------------------------------------------------------------

// Which thread block of its cluster the caller's is.
__device__ __forceinline__ int cluster_rank() {
#if defined(__CUDACC__)
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return cuda_host::cluster_rank();
#endif
}

// Every thread of the cluster must call. What was written before it, the initial state of barriers included, is seen
// after it.
__device__ __forceinline__ void cluster_sync() {
#if defined(__CUDACC__)
  asm volatile(
      "fence.mbarrier_init.release.cluster;\n"
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  cuda_host::cluster_sync();
#endif
}

// Likewise, but of what was written before it only the initial state of barriers is sure to be seen after it.
__device__ __forceinline__ void cluster_meet() {
#if defined(__CUDACC__)
  asm volatile(
      "fence.mbarrier_init.release.cluster;\n"
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  cuda_host::cluster_sync();
#endif
}

// Reads 16 bytes that lie there in the dynamic shared memory of thread block `rank` of the cluster.
__device__ __forceinline__ uint4 cluster_load(const void* shared, int rank) {
  uint4 value;
#if defined(__CUDACC__)
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [remote];\n"
      "}"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "r"(shared_address(shared)), "r"(rank)
      : "memory");
#else
  std::memcpy(&value, cuda_host::shared_of(rank, const_cast<void*>(shared)), sizeof value);
#endif
  return value;
}

// -- barriers ---------------------------------------------------------------------------------------------------------

// In shared memory. A phase is over when `count` threads have arrived and all bytes announced for it are there; then
// the next one begins.
struct alignas(8) Barrier {
  std::uint64_t state;
};

__device__ __forceinline__ void barrier_init(Barrier& barrier, int count) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count) : "memory");
#else
  cuda_host::barrier_init(&barrier.state, count);
#endif
}

// Makes the barriers that the calling thread initialized visible to bulk copies; cluster_sync() does so for all
// threads.
__device__ __forceinline__ void barriers_are_ready() {
#if defined(__CUDACC__)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Arrives, and announces bytes that bulk copies bring.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, int bytes) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
#else
  cuda_host::barrier_arrive(&barrier.state, bytes);
#endif
}

// Arrives at the barrier which lies there in thread block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive(Barrier& barrier, int rank) {
#if defined(__CUDACC__)
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
#else
  cuda_host::barrier_arrive(static_cast<std::uint64_t*>(cuda_host::shared_of(rank, &barrier.state)), 0);
#endif
}

// Waits until the phase of this parity is over: 0 for the first one, then in turns. Threads that wait sleep, for as
// long as the instruction may let them: each look at the barrier takes the others' issue slots.
__device__ __forceinline__ void barrier_wait(Barrier& barrier, unsigned parity) {
#if defined(__CUDACC__)
  constexpr std::uint32_t kLongWait = 10000000;  // nanoseconds
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1, %2;\n"
      "@!over bra again;\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(parity), "r"(kLongWait)
      : "memory");
#else
  cuda_host::barrier_wait(&barrier.state, parity);
#endif
}

// Arrives once the calling thread's open copies (copy_async() of runtime/cuda/ptx.cuh) are there.
__device__ __forceinline__ void barrier_arrive_with_copies(Barrier& barrier) {
#if defined(__CUDACC__)
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
#else
  cuda_host::barrier_arrive_with_copies(&barrier.state);
#endif
}

// -- bulk copies ------------------------------------------------------------------------------------------------------

// Copies to this place, and counts the bytes at this barrier, in every thread block of the cluster whose bit is set.
// Addresses and size are multiples of 16.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, int bytes, Barrier& barrier,
                                          unsigned ranks) {
#if defined(__CUDACC__)
  if (ranks & (ranks - 1))
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(&barrier)), "h"(static_cast<std::uint16_t>(ranks))
        : "memory");
  else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
#else
  for (int rank = 0; ranks >> rank; ++rank)
    if (ranks >> rank & 1u)
      cuda_host::bulk_copy(cuda_host::shared_of(rank, shared), global, static_cast<std::size_t>(bytes),
                           static_cast<std::uint64_t*>(cuda_host::shared_of(rank, &barrier.state)));
#endif
}

// -- products of a warpgroup ------------------------------------------------------------------------------------------

// The place in a matrix in shared memory where the 32 k of a product start. Rows of kRowBytes, 128 or 64, follow each
// other; the 16-byte units of row r lie exclusive-or'ed with r % 8, those of 64 bytes with r / 2 % 4. The matrix starts
// at a multiple of 1024.
#if defined(__CUDACC__)
using SwizzledRows = std::uint64_t;
template <int kRowBytes = 128>
__device__ __forceinline__ SwizzledRows swizzled_rows(const void* shared) {
  static_assert(kRowBytes == 128 || kRowBytes == 64, "the ways to lie that are used");
  constexpr std::uint64_t kUnused = 1, kEightRows = 8 * kRowBytes / 16, kSwizzle = kRowBytes == 128 ? 1 : 2;
  return std::uint64_t{shared_address(shared) >> 4} | kUnused << 16 | kEightRows << 32 | kSwizzle << 62;
}
__device__ __forceinline__ SwizzledRows next_k(SwizzledRows rows, int bytes) { return rows + bytes / 16; }
#else
struct SwizzledRows {
  const char* first;
  int row_bytes;

  const char* at(int row, int byte) const {
    const auto address = reinterpret_cast<std::uintptr_t>(first) + static_cast<std::uintptr_t>(row_bytes * row + byte);
    const std::uintptr_t mask = row_bytes == 128 ? 7 : 3;
    return reinterpret_cast<const char*>(address ^ (address >> 7 & mask) << 4);
  }
};
template <int kRowBytes = 128>
SwizzledRows swizzled_rows(const void* shared) {
  return {static_cast<const char*>(shared), kRowBytes};
}
inline SwizzledRows next_k(SwizzledRows rows, int bytes) { return {rows.first + bytes, rows.row_bytes}; }
inline void load_swizzled(std::uint32_t (&words)[8], SwizzledRows rows, int row) {  // the 32 bytes of a product
  for (int i = 0; i < 2; ++i) {
    const uint4 unit = *reinterpret_cast<const uint4*>(rows.at(row, 16 * i));
    std::memcpy(words + 4 * i, &unit, sizeof unit);
  }
}
#endif

// A warpgroup gives registers back, or takes as many as others gave. All its warps must call.
template <int registers>
__device__ __forceinline__ void fewer_registers() {
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
__device__ __forceinline__ void more_registers() {
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

// Between writing a and d in registers and the next product.
__device__ __forceinline__ void product_fence() {
#if defined(__CUDACC__)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void product_commit() {
#if defined(__CUDACC__)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  cuda_host::products_commit();
#endif
}

// Two warpgroups, number 0 and 1, take turns: each issues products only after the other has issued its own, so that
// one's run while the other adds its sums. Without turns their products would end, and the tensor cores rest, at the
// same time. Number 1 calls let_other_group() once before all; both call the same number of times.
__device__ __forceinline__ void wait_for_turn(int group) {
#if defined(__CUDACC__)
  asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory");
#else
  (void)group;  // an order that changes no result
#endif
}
__device__ __forceinline__ void let_other_group(int group) {
#if defined(__CUDACC__)
  asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
#else
  (void)group;
#endif
}

// Products see what the calling thread has seen in shared memory: copies of copy_async(), which other than bulk copies
// do not go the way of products.
__device__ __forceinline__ void products_see_copies() {
#if defined(__CUDACC__)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// All products of the calling warpgroup are done, and d is theirs.
template <int kCount>
__device__ __forceinline__ void product_wait(std::int32_t (&d)[kCount]) {
#if defined(__CUDACC__)
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
#else
  (void)d;
  cuda_host::products_wait();
#endif
}

// Keeps operands a where they are until here: the compiler takes their registers for free once the products are issued.
template <int kCount>
__device__ __forceinline__ void keep(std::uint32_t (&a)[kCount][4]) {
#if defined(__CUDACC__)
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]));
#else
  (void)a;
#endif
}

// Computes values before here, not behind a wait that follows.
template <int kCount>
__device__ __forceinline__ void keep(float* values) {
#if defined(__CUDACC__)
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i]));
#else
  (void)values;
#endif
}

// d = a b, or d + a b: 64 rows, kColumns columns, 32 k, bytes, of which a's are signed and b's are if kSigned. Warp w
// of the warpgroup has rows 16*w ..; with group = lane / 4 and quad = lane % 4,
//
//   a[i]        row group + 8*(i%2), k 16*(i/2) + 4*quad ..
//   d[4*j + i]  row group + 8*(i/2), column 8*j + 2*quad + i%2
//
// b's columns are rows of shared memory. Neither a nor d may be touched before product_wait().
template <int kColumns, bool kSigned = true>
__device__ __forceinline__ void product(std::int32_t (&d)[kColumns / 2], const std::uint32_t (&a)[4], SwizzledRows b,
                                        bool add) {
  static_assert(kColumns == 64 || kColumns == 128 || (kSigned && (kColumns == 32 || kColumns == 256)),
                "the shapes that are used");
#if defined(__CUDACC__)
#define QCORE_D4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define QCORE_D16(i) QCORE_D4(i), QCORE_D4(i + 4), QCORE_D4(i + 8), QCORE_D4(i + 12)
#define QCORE_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add))
  if constexpr (kColumns == 32) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %21, 0; wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, add;}"
        : QCORE_D16(0)
        : QCORE_OPERANDS);
  } else if constexpr (kColumns == 64) {
#define QCORE_PRODUCT(type)                                                                                    \
  asm volatile("{.reg .pred add; setp.ne.b32 add, %37, 0; wgmma.mma_async.sync.aligned.m64n64k32.s32.s8." type \
               " {"                                                                                            \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "             \
               "{%32, %33, %34, %35}, %36, add;}"                                                              \
               : QCORE_D16(0), QCORE_D16(16)                                                                   \
               : QCORE_OPERANDS)
    if constexpr (kSigned)
      QCORE_PRODUCT("s8");
    else
      QCORE_PRODUCT("u8");
#undef QCORE_PRODUCT
  } else if constexpr (kColumns == 128) {
#define QCORE_PRODUCT(type)                                                                                     \
  asm volatile("{.reg .pred add; setp.ne.b32 add, %69, 0; wgmma.mma_async.sync.aligned.m64n128k32.s32.s8." type \
               " {"                                                                                             \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "              \
               "{%64, %65, %66, %67}, %68, add;}"                                                               \
               : QCORE_D16(0), QCORE_D16(16), QCORE_D16(32), QCORE_D16(48)                                      \
               : QCORE_OPERANDS)
    if constexpr (kSigned)
      QCORE_PRODUCT("s8");
    else
      QCORE_PRODUCT("u8");
#undef QCORE_PRODUCT
  } else {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %133, 0; wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, add;}"
        : QCORE_D16(0), QCORE_D16(16), QCORE_D16(32), QCORE_D16(48), QCORE_D16(64), QCORE_D16(80), QCORE_D16(96),
          QCORE_D16(112)
        : QCORE_OPERANDS);
  }
#undef QCORE_D4
#undef QCORE_D16
#undef QCORE_OPERANDS
#else
  const cuda_host::WarpWords<4> rows(a, "wgmma");
  const int group = cuda_host::lane() / 4, quad = cuda_host::lane() % 4;
  std::uint32_t words[2][8];  // of both rows, 32 k each
  for (int row = 0; row < 2; ++row)
    for (int i = 0; i < 8; ++i) words[row][i] = rows.word(4 * group + i % 4, row + 2 * (i / 4));
  cuda_host::product([=, &d] {
    for (int i = 0; i < kColumns / 4; ++i) {
      std::uint32_t column[8];
      load_swizzled(column, b, 8 * (i / 2) + 2 * quad + i % 2);
      for (int row = 0; row < 2; ++row) {
        std::int32_t& result = d[4 * (i / 2) + 2 * row + i % 2];
        const std::uint32_t sum = cuda_host::dot_bytes(words[row], column, true, kSigned);
        result = static_cast<std::int32_t>(sum + (add ? static_cast<std::uint32_t>(result) : 0));
      }
    }
  });
#endif
}

}  // namespace qcore::ptx
