"""The C99 of exported tables, without their numbers: what src/numerics/lut_eval.h does, operation by operation.

``@`` stands for the exported name. Nothing relies on what C leaves to the implementation, but for IEEE floats that are
evaluated as such, in the default rounding mode.
"""

from __future__ import annotations

HEAD = """
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "-ffast-math changes the bits of the results"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error "floats must be evaluated as floats; for 32-bit x86 use -msse2 -mfpmath=sse"
#endif
"""

# Subnormal numbers are made by a multiplication: as operands they might be flushed to zero.
HALF_ENTRY = """
static inline float @_entry(int32_t q) {
  const uint32_t h = @_values[q], exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff;
  float magnitude = (float)mantissa * 0x1p-24f;
  if (exponent != 0) {
    const uint32_t bits = ((exponent + 112) << 23) | (mantissa << 13);
    memcpy(&magnitude, &bits, sizeof magnitude);
  }
  return h >> 15 ? -magnitude : magnitude;
}
"""

FLOAT_ENTRY = """
static inline float @_entry(int32_t q) { return @_values[q]; }
"""

LOOK_UP = """
/* The table alone. */
static inline float @_look_up(float x) {
  const int32_t last = (int32_t)(sizeof @_values / sizeof *@_values) - 1;
  int32_t i = 0, j, q;
  float p, length, delta;
  x = x > @_cuts[0] ? x : @_cuts[0];
  x = x < @_cuts[@_INTERVALS] ? x : @_cuts[@_INTERVALS];
  while (i < @_INTERVALS && x >= @_cuts[i + 1]) ++i;
  length = i < @_INTERVALS ? (float)(@_firsts[i + 1] - @_firsts[i]) : 0.0f;
  p = (x - @_cuts[i]) * @_scales[i];
  p = p < length ? p : length;
  j = (int32_t)p;
  q = @_firsts[i] + j;
  delta = q < last ? @_entry(q + 1) - @_entry(q) : 0.0f;
  return fmaf(p - (float)j, delta, @_entry(q));
}
"""

_BITS = """
static inline uint32_t @_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
"""

_FLOAT = """
static inline float @_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
"""

_POWER = """
/* 2^(n - 127); 0 for n <= 0. */
static inline float @_power(int32_t n) { return @_float(n > 0 ? (uint32_t)n << 23 : 0); }
"""

_RESULT = """
static inline float @_result(float y) {
  y = y > -65504.0f ? y : -65504.0f;
  return y < 65504.0f ? y : 65504.0f;
}
"""

_NONE = """
static inline float @(float x) {
  return x != x ? @_float(0x7fc00000) : @_result(@_look_up(x));
}
"""

_EXP = """
/* e^x = 2^n * 2^f with x / ln 2 = n + f: the table is of 2^f on [0, 1]. */
static inline float @(float x) {
  float z = x * 0x1.715476p+0f, n;
  if (x != x) return @_float(0x7fc00000);
  z = z > -127.0f ? z : -127.0f;
  z = z < 127.0f ? z : 127.0f;
  n = floorf(z);
  return @_result(@_look_up(z - n) * @_power((int32_t)n + 127));
}
"""

_LOG = """
/* log(m * 2^e) = e * ln 2 + log(m): the table is of log(m) on [sqrt(1/2), sqrt(2)]. */
static inline float @(float x) {
  int32_t shifted = 0, e;
  uint32_t u;
  if (x != x || x < 0.0f) return @_float(0x7fc00000);
  if (!(x > 0.0f)) return -65504.0f;
  if (x > 0x1.fffffep+127f) return 65504.0f;
  if (x < 0x1p-126f) {
    x *= 0x1p+24f;
    shifted = 24;
  }
  u = @_bits(x);
  e = (int32_t)((u + 0x40000000 - 0x3f3504f3) >> 23) - 128;
  return @_result(fmaf((float)(e - shifted), 0x1.62e43p-1f, @_look_up(@_float(u - ((uint32_t)e << 23)))));
}
"""

_RECIPROCAL = """
/* 1 / (m * 2^e) = 1/m * 2^-e: the table is of 1/m on [1, 2]. */
static inline float @(float x) {
  const float least = 0x1p-17f, magnitude = fabsf(x) > least ? fabsf(x) : least;
  const uint32_t u = @_bits(magnitude);
  float y;
  if (x != x) return @_float(0x7fc00000);
  y = @_look_up(@_float((u & 0x7fffff) | 0x3f800000)) * @_power(254 - (int32_t)(u >> 23));
  return @_result(@_float(@_bits(y) | (@_bits(x) & 0x80000000)));
}
"""

_SQRT = """
/* sqrt(m * 4^h) = sqrt(m) * 2^h: the table is of sqrt(m) on [1, 4]. */
static inline float @(float x) {
  float magnitude = fabsf(x), y = 0.0f;
  if (x != x || x < 0.0f) return @_float(0x7fc00000);
  if (magnitude > 0.0f) {
    const int32_t subnormal = magnitude < 0x1p-126f;
    uint32_t u;
    int32_t h;
    if (subnormal) magnitude *= 0x1p+24f;
    u = @_bits(magnitude);
    h = (int32_t)(((u >> 23) + 1) >> 1) - 64;
    y = @_look_up(@_float(u - ((uint32_t)h << 24))) * @_power(h + (subnormal ? 127 - 12 : 127));
  }
  return @_result(@_float(@_bits(y) | (@_bits(x) & 0x80000000)));
}
"""

_RSQRT = """
/* 1 / sqrt(m * 4^h) = 1/sqrt(m) * 2^-h: the table is of 1/sqrt(m) on [1, 4]. */
static inline float @(float x) {
  const float least = 0x1p-34f, magnitude = fabsf(x) > least ? fabsf(x) : least;
  const uint32_t u = @_bits(magnitude);
  const int32_t h = (int32_t)(((u >> 23) + 1) >> 1) - 64;
  float y;
  if (x != x || x < 0.0f) return @_float(0x7fc00000);
  y = @_look_up(@_float(u - ((uint32_t)h << 24))) * @_power(127 - h);
  if (magnitude > 0x1.fffffep+127f) y = 0.0f;
  return @_result(@_float(@_bits(y) | (@_bits(x) & 0x80000000)));
}
"""

_PERIODIC = """
/* f(x - 2 pi k) with k = round(x / 2 pi) and 2 pi in three parts: the table covers [-pi, pi]. */
static inline float @(float x) {
  float k;
  if (!(fabsf(x) <= 0x1.fffffep+127f)) return @_float(0x7fc00000);
  k = 0.0f - rintf(x * 0x1.45f306p-3f);
  x = fmaf(k, -0x1.ee59dap-48f, fmaf(k, -0x1.777a5cp-23f, fmaf(k, 0x1.921fb6p+2f, x)));
  return @_result(@_look_up(x));
}
"""

FUNCTIONS = {
    "none": _FLOAT + _RESULT + _NONE,
    "exp": _FLOAT + _POWER + _RESULT + _EXP,
    "log": _FLOAT + _BITS + _RESULT + _LOG,
    "reciprocal": _FLOAT + _BITS + _POWER + _RESULT + _RECIPROCAL,
    "sqrt": _FLOAT + _BITS + _POWER + _RESULT + _SQRT,
    "rsqrt": _FLOAT + _BITS + _POWER + _RESULT + _RSQRT,
    "periodic": _FLOAT + _RESULT + _PERIODIC,
}
"""By range reduction."""
