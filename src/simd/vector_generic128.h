#pragma once

#include "numerics/portable.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

// Provides the operations of vector_avx2.h by the vector types of GCC and clang, for processors that have no kernels of
// their own. An instruction is named where compilers do not find it in the expression.
namespace qcore {
namespace {

struct Generic128 {
  static constexpr int kLanes = 4;
  using Int = std::int32_t __attribute__((vector_size(16)));
  using Unsigned = std::uint32_t __attribute__((vector_size(16)));
  using Float = float __attribute__((vector_size(16)));
  using Words = std::int16_t __attribute__((vector_size(16)));
  using UnsignedWords = std::uint16_t __attribute__((vector_size(16)));
  using Bytes = std::uint8_t __attribute__((vector_size(16)));
  using Longs = std::int64_t __attribute__((vector_size(16)));
  using Doubles2 = double __attribute__((vector_size(16)));

  QCORE_NUMERIC Int load(const void* p) {
    Int a;
    memcpy(&a, p, sizeof a);
    return a;
  }
  QCORE_NUMERIC void store(void* p, Int a) { memcpy(p, &a, sizeof a); }
  QCORE_NUMERIC Float load(const float* p) {
    Float a;
    memcpy(&a, p, sizeof a);
    return a;
  }
  QCORE_NUMERIC void store(float* p, Float a) { memcpy(p, &a, sizeof a); }
  QCORE_NUMERIC Int set1(std::int32_t a) { return Int{a, a, a, a}; }
  QCORE_NUMERIC Float set1(float a) { return Float{a, a, a, a}; }

  QCORE_NUMERIC Int bit_and(Int a, Int b) { return a & b; }
  QCORE_NUMERIC Int bit_or(Int a, Int b) { return a | b; }
  QCORE_NUMERIC Int high_nibbles(Int a) { return (a >> 4) & set1(0x0f0f0f0f); }
  QCORE_NUMERIC Int add_bytes(Int a, Int b) { return (Int)((Bytes)a + (Bytes)b); }
  QCORE_NUMERIC Int load_table(const void* p) { return load(p); }
  QCORE_NUMERIC Int look_up(Int table, Int indices) {
#if defined(__wasm_simd128__)
    return (Int)wasm_i8x16_swizzle((v128_t)table, (v128_t)indices);
#else
    std::uint8_t bytes[16], at[16];
    store(bytes, table);
    store(at, indices);
    for (std::uint8_t& i : at) i = bytes[i];
    return load(at);
#endif
  }
  // Wraps around, which additions of signed vectors are not defined to do.
  QCORE_NUMERIC Int add(Int a, Int b) { return (Int)((Unsigned)a + (Unsigned)b); }
  QCORE_NUMERIC Int max(Int a, Int b) { return a > b ? a : b; }
  QCORE_NUMERIC Int shift_left_16(Int a, int n) { return (Int)((UnsignedWords)a << n); }
  QCORE_NUMERIC Int shift_right_16(Int a, int n) { return (Int)((UnsignedWords)a >> n); }
  QCORE_NUMERIC Int shift_right_32(Int a, int n) { return (Int)((Unsigned)a >> n); }
  QCORE_NUMERIC Int shift_left_32(Int a, int n) { return (Int)((Unsigned)a << n); }
  using RowBytes = Int;
  QCORE_NUMERIC RowBytes load_rows(const void* p) { return load(p); }
  QCORE_NUMERIC RowBytes row_field(RowBytes a, int right, int mask) {
    const Int moved = right < 0 ? shift_left_16(a, right < 0 ? -right : 0) : shift_right_16(a, right < 0 ? 0 : right);
    return bit_and(moved, set1(mask * 0x01010101));
  }
  QCORE_NUMERIC RowBytes row_or(RowBytes a, RowBytes b) { return bit_or(a, b); }
  QCORE_NUMERIC Int widen_rows(RowBytes a, int part) {
    const Words words = part < 2 ? bytes_low(a) : bytes_high(a);
    return part % 2 ? words_high(words) : words_low(words);
  }
  QCORE_NUMERIC Int load_bytes(const void* p) {
    std::int32_t four;
    memcpy(&four, p, 4);
    return words_low(bytes_low(Int{four, 0, 0, 0}));
  }
  QCORE_NUMERIC Float as_float(Int a) { return (Float)a; }
  QCORE_NUMERIC Int as_int(Float a) { return (Int)a; }

  QCORE_NUMERIC Float add(Float a, Float b) { return a + b; }
  QCORE_NUMERIC Float sub(Float a, Float b) { return a - b; }
  QCORE_NUMERIC Float mul(Float a, Float b) { return a * b; }
  // With a NaN in x these return x.
  QCORE_NUMERIC Float at_least(Float x, Float lo) { return select(lo > x, lo, x); }
  QCORE_NUMERIC Float at_most(Float x, Float hi) { return select(hi < x, hi, x); }

#if defined(QCORE_HAS_FMA)
  QCORE_NUMERIC Float fma(Float a, Float b, Float c) {
    Float y;
    for (int i = 0; i < kLanes; ++i) y[i] = numerics::fma_once(a[i], b[i], c[i]);
    return y;
  }
#else
  // Products are exact in double. Rounding their sum to float after it was rounded to double is wrong only if the sum
  // in double lies between two floats, at the same distance from both: then, and for subnormal results, whose distance
  // is not that of normal ones, each lane is computed by itself.
  QCORE_NUMERIC Float fma(Float a, Float b, Float c) {
    const Doubles2 low = to_doubles_low(a) * to_doubles_low(b) + to_doubles_low(c);
    const Doubles2 high = to_doubles_high(a) * to_doubles_high(b) + to_doubles_high(c);
    const Float y = to_floats(low, high);
    const Int magnitude = as_int(y) & set1(0x7fffffff);
    const Int is_subnormal = (magnitude <= set1(0x00800000)) & (magnitude != set1(0));
    if (__builtin_expect(any(middle_of_floats(low, high) | is_subnormal), 0)) return fma_of_lanes(a, b, c);
    return y;
  }
#endif

  static constexpr int kFolds = 2;
  template <int level>
  QCORE_NUMERIC Int fold_low(Int a, Int b) {
    if constexpr (level == 0)
      return __builtin_shufflevector(a, b, 0, 4, 1, 5);
    else
      return __builtin_shufflevector(a, b, 0, 1, 4, 5);
  }
  template <int level>
  QCORE_NUMERIC Int fold_high(Int a, Int b) {
    if constexpr (level == 0)
      return __builtin_shufflevector(a, b, 2, 6, 3, 7);
    else
      return __builtin_shufflevector(a, b, 2, 3, 6, 7);
  }
  template <int level>
  QCORE_NUMERIC Float fold_low(Float a, Float b) {
    return as_float(fold_low<level>(as_int(a), as_int(b)));
  }
  template <int level>
  QCORE_NUMERIC Float fold_high(Float a, Float b) {
    return as_float(fold_high<level>(as_int(a), as_int(b)));
  }

  QCORE_NUMERIC std::int32_t largest(Int a) {
    a = max(a, fold_high<1>(a, a));
    return a[0] > a[1] ? a[0] : a[1];
  }
  QCORE_NUMERIC float largest(Float a) {
    const float low = a[0] > a[1] ? a[0] : a[1], high = a[2] > a[3] ? a[2] : a[3];
    return low > high ? low : high;
  }
  QCORE_NUMERIC float smallest(Float a) {
    const float low = a[0] < a[1] ? a[0] : a[1], high = a[2] < a[3] ? a[2] : a[3];
    return low < high ? low : high;
  }

  QCORE_NUMERIC Float to_float(Int a) { return __builtin_convertvector(a, Float); }
  static constexpr bool kLooksUpNibbles = false;
  QCORE_NUMERIC Float nibbles(const float* numbers) { return set1(numbers[0]); }

  template <int Bits>
  QCORE_NUMERIC Float code_at(Int stored, int shift, Float lowest) {
    const Int code = bit_and(shift_right_32(stored, shift), set1((1 << Bits) - 1));
    return add(to_float(code), Bits == 4 ? lowest : set1(-128.0f));
  }

  // Rounds half to even, with x's sign: behind 2^23 there are no fraction bits.
  QCORE_NUMERIC Float round_even(Float x) {
    const Int sign = as_int(x) & set1(static_cast<std::int32_t>(0x80000000u));
    const Float magnitude = as_float(as_int(x) & set1(0x7fffffff)), aligning = set1(8388608.0f);
    const Float rounded = as_float(as_int((magnitude + aligning) - aligning) | sign);
    return select(magnitude < aligning, rounded, x);
  }
  QCORE_NUMERIC Int to_int(Float a) {  // half to even
#if defined(__SSE2__)
    return (Int)_mm_cvtps_epi32((__m128)a);
#else
    return __builtin_convertvector(round_even(a), Int);
#endif
  }

  // numerics::half_to_float() in each lane.
  QCORE_NUMERIC Float load_half(const void* p) {
    const Int bits = load_words_unsigned(p), magnitude = shift_left_32(bits & set1(0x7fff), 13);
    const Int sign = shift_left_32(bits & set1(0x8000), 16);
    const Float scaled = mul(as_float(magnitude), set1(numerics::bits_float((254u - 15u) << 23)));
    const Int special = (magnitude >= set1(0x0f800000)) & set1(0x7f800000);  // an infinity or a NaN
    return as_float(as_int(scaled) | special | sign);
  }
  QCORE_NUMERIC Float load_bfloat(const void* p) { return as_float(shift_left_32(load_words_unsigned(p), 16)); }
  // numerics::float_to_half() in each lane.
  QCORE_NUMERIC void store_half(void* p, Float a) { store_low_words(p, half_bits(a)); }
  QCORE_NUMERIC Int half_bits(Float a) {
    const Int bits = as_int(a), magnitude = bits & set1(0x7fffffff);
    const Int sign = shift_right_32(bits, 16) & set1(0x8000);
    const Int odd = shift_right_32(magnitude, 13) & set1(1);
    const Int normal = shift_right_32(add(add(magnitude, set1(0xfff - (112 << 23))), odd), 13);
    // Below the smallest normal fp16: adding 0.5 aligns the last place with 2^-24.
    const Int small = as_int(add(as_float(magnitude), set1(0.5f))) - set1(0x3f000000);
    const Int nan = (shift_right_32(magnitude, 13) & set1(0x3ff)) | set1(0x7e00);
    Int result = select(magnitude < set1(0x38800000), small, normal);
    result = select(magnitude >= set1(0x477ff000), set1(0x7c00), result);
    return select(magnitude > set1(0x7f800000), nan, result) | sign;
  }
  // numerics::float_to_bfloat() in each lane.
  QCORE_NUMERIC void store_bfloat(void* p, Float a) {
    const Int bits = as_int(a), high = shift_right_32(bits, 16);
    const Int rounded = shift_right_32(add(add(bits, set1(0x7fff)), bit_and(high, set1(1))), 16);
    store_low_words(p, select(a == a, rounded, bit_or(high, set1(0x40))));
  }
  QCORE_NUMERIC Int first_lanes(int count) { return Int{0, 1, 2, 3} < set1(count); }
  QCORE_NUMERIC Float load_first(const float* p, int count) {
    float values[kLanes] = {};
    for (int i = 0; i < count && i < kLanes; ++i) values[i] = p[i];
    return load(values);
  }
  QCORE_NUMERIC Int keep_first(Int a, int count) { return bit_and(a, first_lanes(count)); }

  QCORE_NUMERIC Int narrow_to_bytes(const Int (&parts)[4]) {
    const Bytes low = even_bytes(even_words(parts[0], parts[1]), even_words(parts[2], parts[3]));
    return (Int)low;
  }
  QCORE_NUMERIC Int narrow_to_words(const Int (&parts)[2]) {
    return (Int)__builtin_shufflevector((Words)parts[0], (Words)parts[1], 0, 4, 2, 6, 8, 12, 10, 14);
  }

  // ---- beside what the tiles ask for

  QCORE_NUMERIC Float select(Int mask, Float yes, Float no) {
    return as_float((mask & as_int(yes)) | (~mask & as_int(no)));
  }
  QCORE_NUMERIC Int select(Int mask, Int yes, Int no) { return (mask & yes) | (~mask & no); }
  QCORE_NUMERIC bool any(Int mask) {
#if defined(__SSE2__)
    return _mm_movemask_epi8((__m128i)mask) != 0;
#elif defined(__wasm_simd128__)
    return wasm_v128_any_true((v128_t)mask);
#else
    const Longs halves = (Longs)mask;
    return (halves[0] | halves[1]) != 0;
#endif
  }

  // Returns, in each lane, the sum of the products of its two words.
  QCORE_NUMERIC Int multiply_pairs(Int a, Int b) {
#if defined(__SSE2__)
    return (Int)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__wasm_simd128__)
    return (Int)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b);
#else
    return first_words(a) * first_words(b) + (a >> 16) * (b >> 16);
#endif
  }

  // The bytes of a vector's lower and upper half as words, and so on.
  QCORE_NUMERIC Words bytes_low(Int a) {
    return (Words)__builtin_shufflevector((Bytes)a, Bytes{}, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
  QCORE_NUMERIC Words bytes_high(Int a) {
    return (Words)__builtin_shufflevector((Bytes)a, Bytes{}, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                          31);
  }
  QCORE_NUMERIC Int words_low(Words a) { return (Int)__builtin_shufflevector(a, Words{}, 0, 8, 1, 9, 2, 10, 3, 11); }
  QCORE_NUMERIC Int words_high(Words a) { return (Int)__builtin_shufflevector(a, Words{}, 4, 12, 5, 13, 6, 14, 7, 15); }
  QCORE_NUMERIC Words even_words(Int a, Int b) {
    return __builtin_shufflevector((Words)a, (Words)b, 0, 2, 4, 6, 8, 10, 12, 14);
  }
  QCORE_NUMERIC Bytes even_bytes(Words a, Words b) {
    return __builtin_shufflevector((Bytes)a, (Bytes)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  }
  QCORE_NUMERIC Int load_words_unsigned(const void* p) { return words_low((Words)load_eight(p)); }
  QCORE_NUMERIC Int load_words_signed(const void* p) { return shift_left_32(load_words_unsigned(p), 16) >> 16; }
  QCORE_NUMERIC Int load_bytes_signed(const void* p) { return shift_left_32(load_bytes(p), 24) >> 24; }
  QCORE_NUMERIC void store_low_words(void* p, Int a) {
    const Longs words = (Longs)even_words(a, a);
    const std::int64_t four = words[0];
    memcpy(p, &four, 8);
  }
  QCORE_NUMERIC void store_low_bytes(void* p, Int a) {
    const Words words = even_words(a, a);
    const std::int32_t four = ((Int)even_bytes(words, words))[0];
    memcpy(p, &four, 4);
  }

  QCORE_NUMERIC Doubles2 to_doubles_low(Float a) {
#if defined(__SSE2__)
    return (Doubles2)_mm_cvtps_pd((__m128)a);
#elif defined(__wasm_simd128__)
    return (Doubles2)wasm_f64x2_promote_low_f32x4((v128_t)a);
#else
    return Doubles2{static_cast<double>(a[0]), static_cast<double>(a[1])};
#endif
  }
  QCORE_NUMERIC Doubles2 to_doubles_high(Float a) { return to_doubles_low(__builtin_shufflevector(a, a, 2, 3, 2, 3)); }
  QCORE_NUMERIC Float to_floats(Doubles2 low, Doubles2 high) {
#if defined(__SSE2__)
    return __builtin_shufflevector((Float)_mm_cvtpd_ps((__m128d)low), (Float)_mm_cvtpd_ps((__m128d)high), 0, 1, 4, 5);
#elif defined(__wasm_simd128__)
    // The barriers keep clang from joining the two conversions to one of four lanes, which it then makes lane by lane.
    v128_t first = wasm_f32x4_demote_f64x2_zero((v128_t)low), second = wasm_f32x4_demote_f64x2_zero((v128_t)high);
    asm("" : "+r"(first), "+r"(second));
    return __builtin_shufflevector((Float)first, (Float)second, 0, 1, 4, 5);
#else
    return Float{static_cast<float>(low[0]), static_cast<float>(low[1]), static_cast<float>(high[0]),
                 static_cast<float>(high[1])};
#endif
  }
  // Rounds to float.
  QCORE_NUMERIC Doubles2 round_to_floats(Doubles2 a) {
#if defined(__SSE2__)
    return (Doubles2)_mm_cvtps_pd(_mm_cvtpd_ps((__m128d)a));
#elif defined(__wasm_simd128__)
    return (Doubles2)wasm_f64x2_promote_low_f32x4(wasm_f32x4_demote_f64x2_zero((v128_t)a));
#else
    return Doubles2{static_cast<float>(a[0]), static_cast<float>(a[1])};
#endif
  }
  // Returns, in a lane for each double, whether it is as far from the float below as from the one above.
  QCORE_NUMERIC Int middle_of_floats(Doubles2 low, Doubles2 high) {
    return (__builtin_shufflevector((Int)low, (Int)high, 0, 2, 4, 6) & set1(0x1fffffff)) == set1(0x10000000);
  }

 private:
  QCORE_NUMERIC Longs load_eight(const void* p) {
    std::int64_t eight;
    memcpy(&eight, p, 8);
    return Longs{eight, 0};
  }
  QCORE_NUMERIC Int first_words(Int a) { return shift_left_32(a, 16) >> 16; }
#if !defined(QCORE_HAS_FMA)
  __attribute__((noinline, cold)) static Float fma_of_lanes(Float a, Float b, Float c) {
    Float y;
    for (int i = 0; i < kLanes; ++i) y[i] = numerics::fma_by_double(a[i], b[i], c[i]);
    return y;
  }
#endif
};

}  // namespace
}  // namespace qcore
