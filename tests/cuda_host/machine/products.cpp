// Computes what tensor cores compute. This file is compiled with optimization and without sanitizers, because the tests
// spent up to 41% of their time here otherwise. It touches no memory of the kernels: its callers pass copies of
// registers.

#include "half_values.h"
#include "machine/machine.h"

namespace cuda_host {
namespace {

std::uint32_t dot4(std::uint32_t a, std::uint32_t b, std::uint32_t a_sign, std::uint32_t b_sign) {
  std::uint32_t sum = 0;
  for (int shift = 0; shift < 32; shift += 8)
    sum += (((a >> shift & 0xffu) ^ a_sign) - a_sign) * (((b >> shift & 0xffu) ^ b_sign) - b_sign);
  return sum;
}

std::uint32_t sign_bit(bool is_signed) { return is_signed ? 0x80u : 0; }

}  // namespace

void add_byte_products(std::uint32_t (&sums)[4], const LaneWords* lanes, int lane, bool a_signed, bool b_signed) {
  const std::uint32_t a_sign = sign_bit(a_signed), b_sign = sign_bit(b_signed);
  const LaneWords* const rows = lanes + lane / 4 * 4;
  const LaneWords* const columns = lanes + lane % 4 * 8;
  for (int quad = 0; quad < 4; ++quad)
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 4; ++i)
        sums[i] +=
            dot4(rows[quad][i / 2 + 2 * half], columns[i % 2 * 4 + quad][4 + half], a_sign, b_sign);  // four k each
}

std::uint32_t dot_bytes(const std::uint32_t (&a)[8], const std::uint32_t (&b)[8], bool a_signed, bool b_signed) {
  const std::uint32_t a_sign = sign_bit(a_signed), b_sign = sign_bit(b_signed);
  std::uint32_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += dot4(a[i], b[i], a_sign, b_sign);
  return sum;
}

[[gnu::flatten]] void add_half_products(float (&sums)[4], const LaneWords* lanes, int lane, bool bf16) {
  const LaneWords* const rows = lanes + lane / 4 * 4;
  const LaneWords* const columns = lanes + lane % 4 * 8;
  for (int k = 0; k < 16; ++k) {
    const int quad = k % 8 / 2, half = k / 8, shift = k % 2 * 16;
    const float a[] = {half_value(rows[quad][2 * half] >> shift, bf16),
                       half_value(rows[quad][1 + 2 * half] >> shift, bf16)};
    const float b[] = {half_value(columns[quad][4 + half] >> shift, bf16),
                       half_value(columns[4 + quad][4 + half] >> shift, bf16)};
    for (int i = 0; i < 4; ++i) sums[i] += a[i / 2] * b[i % 2];
  }
}

[[gnu::flatten]] void half_values(const std::uint32_t (&halves)[8], bool bf16, float (&values)[16]) {
  for (int k = 0; k < 16; ++k) values[k] = half_value(halves[k / 2] >> k % 2 * 16, bf16);
}

float add_dot(float sum, const float (&a)[16], const float (&b)[16]) {
  for (int k = 0; k < 16; ++k) sum += a[k] * b[k];
  return sum;
}

}  // namespace cuda_host
