#include "runtime/probes/probe_kernels.h"
#include "runtime/probes/probe_vectors_neon.h"

namespace qcore {
namespace {

struct DotNeonDotprod {
  using Vector = int32x4_t;
  QCORE_NUMERIC void add(Vector& sum, Vector a, Vector b) {
    asm volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
  }
};

}  // namespace

extern const ProbeKernels kProbesNeonDotprod = {
    {probe_read_streams<ProbeVectorsNeon, 1>, probe_read_streams<ProbeVectorsNeon, 2>,
     probe_read_streams<ProbeVectorsNeon, 4>, probe_read_streams<ProbeVectorsNeon, 8>},
    probe_multiply<DotNeonDotprod>,
    kInt8OperationsNeon,
    probe_multiply<FmaNeon>,
    kFloatOperationsNeon};

}  // namespace qcore
