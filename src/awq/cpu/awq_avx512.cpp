#include "awq/cpu/awq_columns_avx512.h"
#include "awq/cpu/awq_lanes.h"
#include "awq/cpu/awq_vector_avx2.h"
#include "simd/vector_avx512.h"

namespace qcore {
namespace {

// Two words.
struct AwqVector512 : Avx512 {
  using Word = AwqVector256;

  QCORE_NUMERIC Int spread(const std::uint32_t* words) {
    const Int word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const Int shifts = _mm512_broadcast_i64x4(_mm256_setr_epi32(
        numerics::awq_shift(0), numerics::awq_shift(1), numerics::awq_shift(2), numerics::awq_shift(3),
        numerics::awq_shift(4), numerics::awq_shift(5), numerics::awq_shift(6), numerics::awq_shift(7)));
    const Int both = _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(words)));
    return _mm512_srlv_epi32(_mm512_permutexvar_epi32(word, both), shifts);
  }
  QCORE_NUMERIC Float nibbles(Int spread) {
    constexpr int kOrOfAnd = 0xf8;  // a | (b & c)
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(set1(numerics::kAwqBiasBits), spread, set1(15), kOrOfAnd));
  }
  QCORE_NUMERIC Float code(Int spread) {
    return code_at<4>(spread, 0, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
  }
  template <bool stream>
  QCORE_NUMERIC void store_pair(std::uint16_t* to, Float a, Float b) {
    const Int halves = _mm512_inserti64x4(_mm512_castsi256_si512(rounded(a)), rounded(b), 1);
    if constexpr (stream)
      _mm512_stream_si512(reinterpret_cast<Int*>(to), halves);
    else
      store(to, halves);
  }
  QCORE_NUMERIC void fence() { _mm_sfence(); }

 private:
  QCORE_NUMERIC __m256i rounded(Float a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};

}  // namespace

const AwqKernels kAwqAvx512{awq_load_group<AwqVector512>, awq_store_rows_either<AwqVector512>,
                            awq_store_columns<AwqColumns512>, awq_add_products<AwqVector512>,
                            awq_pack_panel<AwqVector512>};

}  // namespace qcore
