#include "hadamard/cpu/hadamard_lanes.h"
#include "simd/vector_avx2.h"

namespace qcore {
namespace {

struct HadamardVector256 : Avx2 {
  // The stages 1, 2 and 4: each lane meets the one whose number differs in one bit, and the lane with that bit set
  // takes the difference.
  QCORE_NUMERIC Float stages(Float a) {
    a = stage<0xaa>(a, _mm256_permute_ps(a, 0xb1));
    a = stage<0xcc>(a, _mm256_permute_ps(a, 0x4e));
    return stage<0xf0>(a, _mm256_permute2f128_ps(a, a, 0x01));
  }

 private:
  template <int upper>
  QCORE_NUMERIC Float stage(Float a, Float other) {
    return _mm256_blend_ps(add(a, other), sub(other, a), upper);
  }
};

}  // namespace

const HadamardKernels kHadamardAvx2{hadamard_transform<HadamardVector256>, hadamard_load<HadamardVector256>,
                                    hadamard_store<HadamardVector256>};

}  // namespace qcore
