#include "hadamard/cpu/hadamard_lanes.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

struct HadamardVector128 : Neon {
  // The stages 1 and 2: each lane meets the one whose number differs in one bit, and the lane with that bit set takes
  // the difference.
  QCORE_NUMERIC Float stages(Float a) {
    const uint32x4_t odd = {0, ~0u, 0, ~0u}, upper = {0, 0, ~0u, ~0u};
    a = stage(odd, a, vrev64q_f32(a));
    return stage(upper, a, vextq_f32(a, a, 2));
  }

 private:
  QCORE_NUMERIC Float stage(uint32x4_t differences, Float a, Float other) {
    return vbslq_f32(differences, sub(other, a), add(a, other));
  }
};

}  // namespace

extern const HadamardKernels kHadamardNeon{hadamard_transform<HadamardVector128>, hadamard_load<HadamardVector128>,
                                           hadamard_store<HadamardVector128>};

}  // namespace qcore
