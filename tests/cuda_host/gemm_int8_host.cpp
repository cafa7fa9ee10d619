#include <gtest/gtest.h>

#include <vector>

#include "cuda/gemm_int8.cuh"
#include "numerics/block_product.h"

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

// Through the products, so that the operands are checked as above.
void multiply_accumulate(const Int8GemmAccumulate& gemm) {
  EXPECT_TRUE(aligned(gemm.y) && aligned(gemm.column_scales) && gemm.ldy % 4 == 0 && gemm.panel_stride % 4 == 0);
  std::vector<int4> products(static_cast<std::size_t>(gemm.m) * gemm.n / 4);
  auto* c = reinterpret_cast<std::int32_t*>(products.data());
  multiply({gemm.m, gemm.n, gemm.k, gemm.a, gemm.lda, gemm.b, gemm.ldb, c, gemm.n});
  for (int i = 0; i < gemm.m; ++i)
    for (int j = 0; j < gemm.n; ++j) {
      float& y = gemm.y[i * gemm.ldy + j];
      y = numerics::add_product(gemm.first ? 0.0f : y, c[i * gemm.n + j], gemm.row_scales[i],
                                gemm.column_scales[j / 16 * gemm.panel_stride + j % 16]);
    }
}

}  // namespace

void gemm_int8_sm75(const Int8Gemm& gemm, cudaStream_t) { multiply(gemm); }
void gemm_int8_sm80(const Int8Gemm& gemm, cudaStream_t) { multiply(gemm); }
void gemm_int8_accumulate_sm80(const Int8GemmAccumulate& gemm, cudaStream_t) { multiply_accumulate(gemm); }

}  // namespace qcore
