#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Instructions that C++ has no words for, each with what it means in plain C++: that is what runs on the CPU.
namespace qcore::ptx {

// Returns the value, of which the compiler knows nothing: what is computed from it stays where it is written, and is
// not moved in front of a loop, where it would take registers.
__device__ __forceinline__ std::int32_t opaque(std::int32_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// Sum of the four unsigned bytes of `word`, plus c.
__device__ __forceinline__ std::uint32_t add_bytes(std::uint32_t word, std::uint32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp4a(word, 0x01010101u, c);
#else
  for (int i = 0; i < 4; ++i) c += word >> (8 * i) & 0xffu;
  return c;
#endif
}

// Likewise of four signed bytes.
__device__ __forceinline__ std::int32_t add_signed_bytes(std::uint32_t word, std::int32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp4a(static_cast<int>(word), 0x01010101, c);
#else
  for (int i = 0; i < 4; ++i) c += static_cast<std::int8_t>(word >> (8 * i) & 0xffu);
  return c;
#endif
}

// c + a.lo16 * b[0] + a.hi16 * b[1], all signed, b[i] the bytes of `bytes`.
__device__ __forceinline__ std::int32_t dot2_low(std::uint32_t pair, std::uint32_t bytes, std::int32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp2a_lo(static_cast<int>(pair), static_cast<int>(bytes), c);
#else
  return c + static_cast<std::int16_t>(pair) * static_cast<std::int8_t>(bytes) +
         static_cast<std::int16_t>(pair >> 16) * static_cast<std::int8_t>(bytes >> 8);
#endif
}

// Likewise with b[2] and b[3].
__device__ __forceinline__ std::int32_t dot2_high(std::uint32_t pair, std::uint32_t bytes, std::int32_t c) {
#if defined(__CUDA_ARCH__)
  return __dp2a_hi(static_cast<int>(pair), static_cast<int>(bytes), c);
#else
  return dot2_low(pair, bytes >> 16, c);
#endif
}

// (word & mask) | bits, one LOP3.
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t word, std::uint32_t mask, std::uint32_t bits) {
#if defined(__CUDACC__)
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
#else
  return (word & mask) | bits;
#endif
}

// Byte `index` of `word` as the lowest byte of `upper`, whose own lowest byte is dropped.
template <int index>
__device__ __forceinline__ std::uint32_t insert_byte(std::uint32_t word, std::uint32_t upper) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(word, upper, 0x7650u | index);
#else
  return (upper & ~0xffu) | (word >> (8 * index) & 0xffu);
#endif
}

// Four of the bytes 0 to 3 of a and 4 to 7 of b: the numbers of 4 bits in the lower half of `select`, which are below
// 8, say which, lowest byte first.
__device__ __forceinline__ std::uint32_t select_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t select) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, select);
#else
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t from = select >> (4 * i) & 7u;
    result |= ((from < 4 ? a : b) >> (8 * (from % 4)) & 0xffu) << (8 * i);
  }
  return result;
#endif
}

// Loads 16 bytes that are not read again, so that they do not displace others from the first-level cache.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
#if defined(__CUDACC__)
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
#else
  return *from;
#endif
}

// Copies to shared memory that overtake the thread: 16 bytes, both addresses multiples of 16; zeros unless `valid`, and
// then nothing is read. The bytes are there for the calling thread after copy_wait(), for others after a barrier too.
// Before sm_80 the copy is done on the spot.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid ? 16 : 0) : "memory");
#else
  *static_cast<uint4*>(shared) = valid ? *static_cast<const uint4*>(global) : uint4{0, 0, 0, 0};
#endif
#else
  cuda_host::copy_async(shared, valid ? global : nullptr, 16);
#endif
}

// Likewise 4 bytes; needs sm_80.
__device__ __forceinline__ void copy_async_word(void* shared, const void* global, bool valid) {
#if defined(__CUDACC__)
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(valid ? 4 : 0) : "memory");
#else
  cuda_host::copy_async(shared, valid ? global : nullptr, 4);
#endif
}

// Closes a group of copies.
__device__ __forceinline__ void copy_commit() {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
#else
  cuda_host::copy_commit();
#endif
}

// Waits for all but the last `groups` groups of the calling thread.
template <int groups>
__device__ __forceinline__ void copy_wait() {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
#else
  cuda_host::copy_wait(groups);
#endif
}

// Matrix products of a warp, d = a b + c: a of unsigned bytes, b of signed ones, c and d of int32, modulo 2^32. With
// group = lane / 4 and quad = lane % 4, a register of four bytes holds, lowest first, four neighbors along k:
//
//   m8n8k16    a      row group,                  k 4*quad ..
//              b      column group,               k 4*quad ..
//              d[i]   row group,                  column 2*quad + i
//   m16n8k32   a[i]   row group + 8*(i%2),        k 16*(i/2) + 4*quad ..
//              b[i]   column group,               k 16*i + 4*quad ..
//              d[i]   row group + 8*(i/2),        column 2*quad + i%2
//
// All lanes must call.
__device__ __forceinline__ void mma_m8n8k16(std::int32_t (&d)[2], std::uint32_t a, std::uint32_t b,
                                            const std::int32_t (&c)[2]) {
#if defined(__CUDACC__)
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(a), "r"(b), "r"(c[0]), "r"(c[1]));
#else
  const cuda_host::WarpWords<2> warp({a, b}, "mma.m8n8k16");
  std::uint32_t sums[2];
  for (int i = 0; i < 2; ++i) {
    sums[i] = static_cast<std::uint32_t>(c[i]);
    const int row = cuda_host::lane() / 4, column = 2 * (cuda_host::lane() % 4) + i;
    for (int k = 0; k < 16; ++k)
      sums[i] += static_cast<std::uint32_t>(warp.unsigned_byte(4 * row + k / 4, 0, k % 4) *
                                            warp.signed_byte(4 * column + k / 4, 1, k % 4));
  }
  for (int i = 0; i < 2; ++i) d[i] = static_cast<std::int32_t>(sums[i]);
#endif
}

#if !defined(__CUDACC__)
// The meaning of m16n8k32, `words` being a and b. Not inlined: kernels hold hundreds of them.
inline void cuda_host_mma_m16n8k32(std::int32_t (&d)[4], const std::uint32_t (&words)[6], const std::int32_t (&c)[4],
                                   bool a_signed, bool b_signed = true) {
  const cuda_host::WarpWords<6> warp(words, "mma.m16n8k32");
  std::uint32_t sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = static_cast<std::uint32_t>(c[i]);
  cuda_host::add_byte_products(sums, warp.lanes(), cuda_host::lane(), a_signed, b_signed);
  for (int i = 0; i < 4; ++i) d[i] = static_cast<std::int32_t>(sums[i]);
}
#endif

__device__ __forceinline__ void mma_m16n8k32(std::int32_t (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2], const std::int32_t (&c)[4]) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
  cuda_host_mma_m16n8k32(d, {a[0], a[1], a[2], a[3], b[0], b[1]}, c, false);
#endif
}

// Likewise with signed bytes in a too. sm_80 and later.
__device__ __forceinline__ void mma_s8s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                                         const std::int32_t (&c)[4]) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
  cuda_host_mma_m16n8k32(d, {a[0], a[1], a[2], a[3], b[0], b[1]}, c, true);
#endif
}

// The fragments and the product of m16n8k32, on sm_75 too, which has the small shape only.
__device__ __forceinline__ void mma_u8s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                                         const std::int32_t (&c)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int half = 0; half < 2; ++half) {
    std::int32_t sums[2] = {c[2 * half], c[2 * half + 1]};
    mma_m8n8k16(sums, a[half], b[0], sums);
    mma_m8n8k16(sums, a[half + 2], b[1], sums);
    d[2 * half] = sums[0];
    d[2 * half + 1] = sums[1];
  }
#else
  mma_m16n8k32(d, a, b, c);
#endif
}

}  // namespace qcore::ptx
