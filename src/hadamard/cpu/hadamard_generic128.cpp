#include "hadamard/cpu/hadamard_lanes.h"
#include "simd/vector_generic128.h"

namespace qcore {
namespace {

struct HadamardGeneric128 : Generic128 {
  // The stages 1 and 2: each lane meets the one whose number differs in one bit, and the lane with that bit set takes
  // the difference.
  QCORE_NUMERIC Float stages(Float a) {
    const Int odd = {0, -1, 0, -1}, upper = {0, 0, -1, -1};
    a = stage(odd, a, __builtin_shufflevector(a, a, 1, 0, 3, 2));
    return stage(upper, a, __builtin_shufflevector(a, a, 2, 3, 0, 1));
  }

 private:
  QCORE_NUMERIC Float stage(Int differences, Float a, Float other) {
    return select(differences, sub(other, a), add(a, other));
  }
};

}  // namespace

extern const HadamardKernels kHadamardGeneric128{hadamard_transform<HadamardGeneric128>,
                                                 hadamard_load<HadamardGeneric128>, hadamard_store<HadamardGeneric128>};

}  // namespace qcore
