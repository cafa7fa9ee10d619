#include "runtime/probes/probe_kernels.h"
#include "runtime/probes/probe_vectors_neon.h"

namespace qcore {
namespace {

// The four instructions that the baseline needs for the dot products of bytes of any value.
struct DotNeon {
  using Vector = int32x4_t;
  QCORE_NUMERIC void add(Vector& sum, Vector a, Vector b) {
    Vector low, high;
    asm volatile(
        "smull %1.8h, %3.8b, %4.8b\n\tsmull2 %2.8h, %3.16b, %4.16b\n\t"
        "sadalp %0.4s, %1.8h\n\tsadalp %0.4s, %2.8h"
        : "+w"(sum), "=&w"(low), "=&w"(high)
        : "w"(a), "w"(b));
  }
};

}  // namespace

extern const ProbeKernels kProbesNeon = {
    {probe_read_streams<ProbeVectorsNeon, 1>, probe_read_streams<ProbeVectorsNeon, 2>,
     probe_read_streams<ProbeVectorsNeon, 4>, probe_read_streams<ProbeVectorsNeon, 8>},
    probe_multiply<DotNeon>,
    kInt8OperationsNeon,
    probe_multiply<FmaNeon>,
    kFloatOperationsNeon};

}  // namespace qcore
