#include "runtime/probes/probe_kernels.h"
#include "runtime/probes/probe_vectors_avx2.h"

namespace qcore {
namespace {

// The three instructions that AVX2 needs for the dot products of bytes.
struct DotAvx2 {
  using Vector = __m256i;
  QCORE_NUMERIC void add(Vector& sum, Vector a, Vector b) {
    Vector product;
    asm volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %2, %1, %1\n\tvpaddd %1, %0, %0"
                 : "+x"(sum), "=&x"(product)
                 : "x"(a), "x"(b));
  }
};

}  // namespace

extern const ProbeKernels kProbesAvx2 = {
    {probe_read_streams<ProbeVectorsAvx2, 1>, probe_read_streams<ProbeVectorsAvx2, 2>,
     probe_read_streams<ProbeVectorsAvx2, 4>, probe_read_streams<ProbeVectorsAvx2, 8>},
    probe_multiply<DotAvx2>,
    kInt8OperationsAvx2,
    probe_multiply<FmaAvx2>,
    kFloatOperationsAvx2};

}  // namespace qcore
