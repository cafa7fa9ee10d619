#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace qcore {

// c = a b^T, exactly: every sum must fit in int32.
// Pointers and row lengths are multiples of 16 bytes, and k of 16; m and n are any positive numbers up to the padding:
// b has `n` readable rows and c `n` writable columns, n a multiple of 4.
struct Int8Gemm {
  int m, n, k;
  const std::int8_t* a;  // [M, K], rows lda apart
  std::int64_t lda;
  const std::int8_t* b;  // [N, K], rows ldb apart
  std::int64_t ldb;
  std::int32_t* c;  // [M, N], rows ldc apart
  std::int64_t ldc;
};

// CUTLASS on tensor cores. The kernel for sm_80 compiles for sm_75 to nothing, hence two: choose by compute capability.
void gemm_int8_sm75(const Int8Gemm& gemm, cudaStream_t stream);
void gemm_int8_sm80(const Int8Gemm& gemm, cudaStream_t stream);

}  // namespace qcore
