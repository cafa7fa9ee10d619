#include "gemm/dequantize/lanes.h"
#include "simd/vector_neon.h"

namespace qcore {
namespace {

struct Codes : Neon {
  template <int kBits>
  QCORE_NUMERIC Float codes(const std::uint8_t* words, std::int64_t word_bytes, std::int64_t i) {
    std::uint32_t word;
    memcpy(&word, words + i * kBits / 32 * word_bytes, sizeof word);
    if constexpr (kBits == 4) word = word >> (i & 4) & 0x0f0f0f0fu;
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(word));
    const Float stored = vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
    return sub(stored, set1(kBits == 4 ? 8.0f : 128.0f));
  }

  static constexpr bool kStreams = false;
  template <std::size_t kBytes>
  QCORE_NUMERIC void stream(void*, const void*, bool) {}
  static void fence() {}
};

}  // namespace

extern const DequantizeKernels kDequantizeNeon = kDequantizeLanes<Codes>;

}  // namespace qcore
