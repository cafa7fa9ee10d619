#include <gtest/gtest.h>

#include "static/gemm_requantise.cuh"

// In the place of CUTLASS: a loop with the same contract. What becomes of sums is the kernel's own code.
namespace qcore::static_gemm {
namespace {

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

template <class Element>
void multiply(const RequantisingGemm& gemm) {
  constexpr int kMost = RequantisedChannels::kMost;
  for (int i = 0; i < gemm.m; ++i)
    for (int j = 0; j < gemm.columns && j < gemm.n; j += kMost) {
      std::int32_t sums[kMost] = {};
      for (int c = 0; c < kMost; ++c)
        for (int k = 0; k < gemm.k; ++k)
          sums[c] += reinterpret_cast<const Element*>(gemm.a)[i * gemm.lda + k] * gemm.b[(j + c) * gemm.ldb + k];
      const RequantisedChannels channels(gemm.requantisation, j, gemm.n);
      const std::int64_t step = gemm.results.y.channel;
      channels.store(gemm.results.of(i) + j * step, step, channels.codes(sums));
    }
}

void run(const RequantisingGemm& gemm) {
  EXPECT_TRUE(aligned(gemm.a) && aligned(gemm.b));
  EXPECT_TRUE(gemm.lda % 16 == 0 && gemm.ldb % 16 == 0 && gemm.lda >= gemm.k && gemm.ldb >= gemm.k);
  EXPECT_TRUE(gemm.m >= 1 && gemm.k >= 1 && gemm.k % 16 == 0 && gemm.k <= RequantisingGemm::kMostK);
  EXPECT_TRUE(gemm.n >= 1 && gemm.n <= gemm.columns && gemm.columns % 16 == 0);
  if (gemm.a_signed)
    multiply<std::int8_t>(gemm);
  else
    multiply<std::uint8_t>(gemm);
}

}  // namespace

void gemm_requantise_sm75(const RequantisingGemm& gemm, cudaStream_t) { run(gemm); }
void gemm_requantise_sm80(const RequantisingGemm& gemm, cudaStream_t) { run(gemm); }

}  // namespace qcore::static_gemm
