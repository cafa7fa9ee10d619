#include <cstdint>

#include "numerics/lanes.h"
#include "numerics/single_block.h"
#include "support.h"

namespace qcore::test {
namespace {

// Scales by powers of two change nothing else, so that the mantissas of one exponent stand for all between the ends.
TEST(SingleBlock, QuotientIsTheDivisionsForEveryMantissa) {
  for (const float divisor : {127.0f, 32767.0f}) {
    const float reciprocal = 1.0f / divisor;
    for (const std::uint32_t exponent : {37u, 38u, 127u, 254u}) {
      for (std::uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
        const float x = numerics::bits_float(exponent << 23 | mantissa);
        const float quotient = numerics::quotient<numerics::ScalarLanes>(x, -divisor, reciprocal);
        if (bits_of(quotient) != bits_of(x / divisor)) FAIL() << x << " / " << divisor << " became " << quotient;
      }
    }
  }
  EXPECT_EQ(bits_of(numerics::bits_float(numerics::kSmallestExactBits)), 37u << 23);
}

TEST(SingleBlock, QuotientOfANegativeIsTheNegativeQuotient) {
  for (std::uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += 97) {
    const float x = numerics::bits_float(127u << 23 | mantissa);
    const auto quotient = [](float value) {
      return numerics::quotient<numerics::ScalarLanes>(value, -127.0f, 1.0f / 127.0f);
    };
    ASSERT_EQ(quotient(-x), -quotient(x));
  }
}

}  // namespace
}  // namespace qcore::test
