#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "numerics/half_bits.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace qcore::numerics {
namespace {

// The definition of binary16.
double value_of_half(std::uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const double magnitude = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return h >> 15 ? -magnitude : magnitude;
}

bool is_half_nan(std::uint16_t h) { return (h & 0x7fff) > 0x7c00; }

TEST(HalfBits, EveryHalfToFloat) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto h = static_cast<std::uint16_t>(i);
    const float x = half_to_float(h);
    if (is_half_nan(h)) {
      EXPECT_TRUE(std::isnan(x)) << i;
    } else if ((h & 0x7fff) == 0x7c00) {
      EXPECT_EQ(x, h >> 15 ? -INFINITY : INFINITY);
    } else {
      EXPECT_EQ(static_cast<double>(x), value_of_half(h)) << i;
      EXPECT_EQ(std::signbit(x), h >> 15 != 0);
    }
  }
}

TEST(HalfBits, EveryHalfComesBack) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto h = static_cast<std::uint16_t>(i);
    const std::uint16_t quiet = is_half_nan(h) ? h | 0x200 : h;
    EXPECT_EQ(float_to_half(half_to_float(h)), quiet) << i;
  }
}

// Between two neighboring halves: below, at and above the midpoint.
TEST(HalfBits, TiesGoToEven) {
  for (std::uint32_t i = 0; i < 0x7bff; ++i) {
    const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
    const auto middle = static_cast<float>((value_of_half(low) + value_of_half(high)) / 2);
    ASSERT_EQ(float_to_half(middle), i % 2 ? high : low) << i;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), low) << i;
    ASSERT_EQ(float_to_half(std::nextafter(middle, INFINITY)), high) << i;
    ASSERT_EQ(float_to_half(-middle), (i % 2 ? high : low) | 0x8000) << i;
  }
}

TEST(HalfBits, Overflow) {
  EXPECT_EQ(float_to_half(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_half(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-INFINITY), 0xfc00);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_TRUE(is_half_nan(float_to_half(NAN)));
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) std::uint16_t hardware_half(float x) {
  return static_cast<std::uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
}

void compare_with_hardware(std::uint32_t first, std::uint32_t last, std::uint32_t step) {
  for (std::uint64_t u = first; u <= last; u += step)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float x = bits_float(static_cast<std::uint32_t>(u) | sign);
      ASSERT_EQ(float_to_half(x), hardware_half(x)) << "float bits " << std::hex << (u | sign);
    }
}

TEST(HalfBits, FloatToHalfEqualsTheHardware) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C)) GTEST_SKIP() << "this CPU has no F16C";
  compare_with_hardware(0, 0x7fffffff, 2039);          // all magnitudes, NaNs included
  compare_with_hardware(0x32ffff00, 0x38801000, 101);  // results that are subnormal, or just not
  compare_with_hardware(0x477fe000, 0x47800800, 1);    // around the overflow
  compare_with_hardware(0x7f7fff00, 0x7f801000, 1);    // around infinity
}
#endif

TEST(BfloatBits, EveryBfloatComesBack) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto b = static_cast<std::uint16_t>(i);
    const std::uint16_t quiet = (b & 0x7fff) > 0x7f80 ? b | 0x40 : b;
    EXPECT_EQ(float_to_bfloat(bfloat_to_float(b)), quiet) << i;
  }
}

TEST(BfloatBits, TiesGoToEven) {
  for (std::uint32_t i = 0; i < 0x7f80; ++i) {
    const std::uint32_t low = i << 16, even = i % 2 ? i + 1 : i;
    EXPECT_EQ(float_to_bfloat(bits_float(low | 0x8000)), even);
    EXPECT_EQ(float_to_bfloat(bits_float(low | 0x7fff)), i);
    EXPECT_EQ(float_to_bfloat(bits_float(low | 0x8001)), i + 1);
    EXPECT_EQ(float_to_bfloat(bits_float(low | 0x80008000u)), even | 0x8000);
  }
  EXPECT_TRUE(std::isnan(bfloat_to_float(float_to_bfloat(bits_float(0x7f800001)))));  // its payload is all rounded away
}

TEST(RoundHalfEven, EqualsNearbyint) {
  for (int i = -(1 << 21); i < 1 << 21; i += 7) {
    const auto whole = static_cast<float>(i);
    for (const float x :
         {whole, whole + 0.5f, std::nextafter(whole + 0.5f, -INFINITY), std::nextafter(whole + 0.5f, INFINITY)})
      ASSERT_EQ(round_to_int_small(x), std::nearbyint(x)) << x;
  }
}

// The processor's instruction, where it has one: fma() of Windows' runtimes rounds twice.
#if defined(__x86_64__)
__attribute__((target("fma"))) float instruction_fma(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
float exact_fma(float a, float b, float c) {
  unsigned eax, ebx, ecx = 0, edx;
  static const bool has_fma = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_FMA;
  return has_fma ? instruction_fma(a, b, c) : std::fma(a, b, c);
}
#else
float exact_fma(float a, float b, float c) { return std::fma(a, b, c); }
#endif

// Floats of all kinds: any bits, small integers, and neighbors of powers of two, whose sums are often ties.
TEST(FmaByDouble, EqualsFma) {
#if defined(__wasm__)
  GTEST_SKIP() << "fma() of musl rounds twice without the rounding modes that WebAssembly lacks";
#endif
  std::uint64_t state = 1;
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<std::uint32_t>(state >> 32);
    if (bits % 3 == 0) return bits_float(bits);
    if (bits % 3 == 1) return static_cast<float>(static_cast<int>(bits >> 20) - 2048);
    return std::nextafter(std::ldexp(bits & 4096 ? 1.0f : -1.5f, static_cast<int>(bits >> 8 & 255) - 140),
                          bits & 8192 ? INFINITY : 0.0f);
  };
  for (int i = 0; i < 3000000; ++i) {
    const float a = next(), b = next(), c = i % 4 ? next() : -a * b * (1.0f + bits_float(0x33800000));
    const float expected = exact_fma(a, b, c), found = fma_by_double(a, b, c);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(found)) << a << " * " << b << " + " << c;
    } else {
      ASSERT_EQ(float_bits(found), float_bits(expected)) << a << " * " << b << " + " << c;
    }
  }
}

}  // namespace
}  // namespace qcore::numerics
