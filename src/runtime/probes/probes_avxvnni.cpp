#include "runtime/probes/probe_kernels.h"
#include "runtime/probes/probe_vectors_avx2.h"
#include "simd/vnni_encoding.h"

namespace qcore {
namespace {

struct DotAvxVnni {
  using Vector = __m256i;
  QCORE_NUMERIC void add(Vector& sum, Vector a, Vector b) {
    asm volatile(QCORE_VNNI_ENCODING "vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  }
};

}  // namespace

extern const ProbeKernels kProbesAvxVnni = {
    {probe_read_streams<ProbeVectorsAvx2, 1>, probe_read_streams<ProbeVectorsAvx2, 2>,
     probe_read_streams<ProbeVectorsAvx2, 4>, probe_read_streams<ProbeVectorsAvx2, 8>},
    probe_multiply<DotAvxVnni>,
    kInt8OperationsAvx2,
    probe_multiply<FmaAvx2>,
    kFloatOperationsAvx2};

}  // namespace qcore
