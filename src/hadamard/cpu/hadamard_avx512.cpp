#include "hadamard/cpu/hadamard_lanes.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

struct HadamardVector512 : Avx512 {
  // The stages 1, 2, 4 and 8, as in hadamard_avx2.cpp.
  QCORE_NUMERIC Float stages(Float a) {
    a = stage<0xaaaa>(a, _mm512_permute_ps(a, 0xb1));
    a = stage<0xcccc>(a, _mm512_permute_ps(a, 0x4e));
    a = stage<0xf0f0>(a, _mm512_shuffle_f32x4(a, a, 0xb1));
    return stage<0xff00>(a, _mm512_shuffle_f32x4(a, a, 0x4e));
  }

 private:
  template <unsigned upper>
  QCORE_NUMERIC Float stage(Float a, Float other) {
    return _mm512_mask_sub_ps(add(a, other), static_cast<__mmask16>(upper), other, a);
  }
};

}  // namespace

const HadamardKernels kHadamardAvx512{hadamard_transform<HadamardVector512>, hadamard_load<HadamardVector512>,
                                      hadamard_store<HadamardVector512>};

}  // namespace qcore
