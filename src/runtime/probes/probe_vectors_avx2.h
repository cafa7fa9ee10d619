#pragma once

#include <immintrin.h>

#include "runtime/probes/probe_loops.h"

namespace qcore {
namespace {

struct ProbeVectorsAvx2 {
  using Vector = __m256i;
  static constexpr int kBytes = 32;
  QCORE_NUMERIC Vector load(const char* data) { return _mm256_loadu_si256(reinterpret_cast<const Vector*>(data)); }
  QCORE_NUMERIC Vector combine(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
  QCORE_NUMERIC std::uint64_t fold(Vector sum) {
    alignas(32) std::uint64_t words[4];
    _mm256_store_si256(reinterpret_cast<Vector*>(words), sum);
    return words[0] ^ words[1] ^ words[2] ^ words[3];
  }
};

struct FmaAvx2 {
  using Vector = __m256;
  QCORE_NUMERIC void add(Vector& sum, Vector a, Vector b) {
    asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  }
};

constexpr std::int64_t kInt8OperationsAvx2 = kProbeSums * 2 * 32, kFloatOperationsAvx2 = kProbeSums * 2 * 8;

}  // namespace
}  // namespace qcore
