#include <gtest/gtest.h>

#include "linear/cuda/sm75_int8_sliced/gemm_int8.cuh"

// In the place of CUTLASS: the same function and contract, as a loop.
namespace qcore {
namespace {

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

void multiply(const Int8Gemm& gemm) {
  EXPECT_TRUE(aligned(gemm.a) && aligned(gemm.b) && aligned(gemm.c));
  EXPECT_TRUE(gemm.lda % 16 == 0 && gemm.ldb % 16 == 0 && gemm.ldc % 4 == 0);
  EXPECT_TRUE(gemm.m >= 1 && gemm.n >= 1 && gemm.n % 4 == 0 && gemm.k >= 1 && gemm.k % 16 == 0);
  EXPECT_TRUE(gemm.lda >= gemm.k && gemm.ldb >= gemm.k && gemm.ldc >= gemm.n);
  for (int i = 0; i < gemm.m; ++i)
    for (int j = 0; j < gemm.n; ++j) {
      std::int32_t sum = 0;
      for (int k = 0; k < gemm.k; ++k) sum += gemm.a[i * gemm.lda + k] * gemm.b[j * gemm.ldb + k];
      gemm.c[i * gemm.ldc + j] = sum;
    }
}

}  // namespace

void gemm_int8_sm75(const Int8Gemm& gemm, cudaStream_t) { multiply(gemm); }
void gemm_int8_sm80(const Int8Gemm& gemm, cudaStream_t) { multiply(gemm); }

}  // namespace qcore
