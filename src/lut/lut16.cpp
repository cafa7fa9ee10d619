#include "lut/lut16.h"

#if defined(QCORE_X86_KERNELS)
#include <emmintrin.h>
#endif

// Compiled for the baseline on purpose: a load per element is faster than the gathers that g++ makes of this loop for
// AVX2 and AVX-512.
namespace qcore {
namespace {

void take(const std::uint16_t* results, const std::uint16_t* x, std::uint16_t* y, std::int64_t count) {
  constexpr std::int64_t kTogether = 8;  // loads before stores, since y may be x
  std::int64_t i = 0;
  for (; i <= count - kTogether; i += kTogether) {
    std::uint16_t found[kTogether];
    for (std::int64_t k = 0; k < kTogether; ++k) found[k] = results[x[i + k]];
    for (std::int64_t k = 0; k < kTogether; ++k) y[i + k] = found[k];
  }
  for (; i < count; ++i) y[i] = results[x[i]];
}

}  // namespace

void take_lut16(const std::uint16_t* results, const std::uint16_t* x, std::uint16_t* y, std::int64_t count,
                [[maybe_unused]] bool past_cache) {
#if defined(QCORE_X86_KERNELS)
  if (past_cache) {
    // Lines that bypass the caches are written whole: a chunk is made first.
    constexpr std::int64_t kChunk = 1024, kVector = sizeof(__m128i) / sizeof *y;
    alignas(64) std::uint16_t chunk[kChunk];
    const auto beyond = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y) % 64);
    const std::int64_t to_line = (64 - beyond) % 64 / static_cast<std::int64_t>(sizeof *y);
    const std::int64_t head = to_line < count ? to_line : count;
    take(results, x, y, head);
    x += head, y += head, count -= head;
    for (; count >= kChunk; x += kChunk, y += kChunk, count -= kChunk) {
      take(results, x, chunk, kChunk);
      for (std::int64_t i = 0; i < kChunk; i += kVector)
        _mm_stream_si128(reinterpret_cast<__m128i*>(y + i),
                         _mm_load_si128(reinterpret_cast<const __m128i*>(chunk + i)));
    }
    _mm_sfence();
  }
#endif
  take(results, x, y, count);
}

}  // namespace qcore
