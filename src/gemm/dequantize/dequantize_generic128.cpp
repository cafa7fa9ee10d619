#include "gemm/dequantize/lanes.h"
#include "simd/vector_generic128.h"

namespace qcore {
namespace {

struct Codes : Generic128 {
  template <int kBits>
  QCORE_NUMERIC Float codes(const std::uint8_t* words, std::int64_t word_bytes, std::int64_t i) {
    std::uint32_t word;
    memcpy(&word, words + i * kBits / 32 * word_bytes, sizeof word);
    if constexpr (kBits == 4) word = word >> (i & 4) & 0x0f0f0f0fu;
    return sub(to_float(load_bytes(&word)), set1(kBits == 4 ? 8.0f : 128.0f));
  }

  static constexpr bool kStreams = false;
  template <std::size_t kBytes>
  QCORE_NUMERIC void stream(void*, const void*, bool) {}
  static void fence() {}
};

}  // namespace

extern const DequantizeKernels kDequantizeGeneric128 = kDequantizeLanes<Codes>;

}  // namespace qcore
