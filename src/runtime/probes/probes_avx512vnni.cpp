#include <immintrin.h>

#include "runtime/probes/probe_kernels.h"
#include "runtime/probes/probe_loops.h"

namespace qcore {
namespace {

struct Vectors {
  using Vector = __m512i;
  static constexpr int kBytes = 64;
  QCORE_NUMERIC Vector load(const char* data) { return _mm512_loadu_si512(data); }
  QCORE_NUMERIC Vector combine(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
  QCORE_NUMERIC std::uint64_t fold(Vector sum) {
    alignas(64) std::uint64_t words[8];
    _mm512_store_si512(words, sum);
    for (int i = 1; i < 8; ++i) words[0] ^= words[i];
    return words[0];
  }
};

struct Dot {
  using Vector = __m512i;
  QCORE_NUMERIC void add(Vector& sum, Vector a, Vector b) {
    asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
};

struct Fma {
  using Vector = __m512;
  QCORE_NUMERIC void add(Vector& sum, Vector a, Vector b) {
    asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
};

}  // namespace

extern const ProbeKernels kProbesAvx512Vnni = {{probe_read_streams<Vectors, 1>, probe_read_streams<Vectors, 2>,
                                                probe_read_streams<Vectors, 4>, probe_read_streams<Vectors, 8>},
                                               probe_multiply<Dot>,
                                               kProbeSums * 2 * 64,
                                               probe_multiply<Fma>,
                                               kProbeSums * 2 * 16};

}  // namespace qcore
