#pragma once

#include "formats/element.h"
#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/stored_run.cuh"
#include "numerics/activation_block.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_convert.cuh"

// Computes and stores a block's terms and codes, for all kernels that quantize activations.
namespace qcore::quantization {

using numerics::BlockScale;

template <class Code>
struct Arguments {
  RowView x;
  ActivationScales scales;
  std::int64_t first_row, k, block_size;
  int mode;
  QuantizedRows<Code> out;

  __host__ __device__ bool per_row() const { return scales.source == ActivationScales::Source::per_row; }
};

// Rows whose leading axes don't merge into one, by divisions of 64 bits: out of line, because a copy of them at each
// use would be most of a kernel's instructions, which take time to fetch.
inline __device__ __attribute__((noinline)) std::int64_t uneven_row_offset(const RowView& view, std::int64_t row) {
  return view.row_offset(row);
}
__device__ __forceinline__ std::int64_t row_offset(const RowView& view, std::int64_t row) {
  if (view.leading > 1) return uneven_row_offset(view, row);
  return view.leading ? row * view.strides[0] : 0;
}

// A value of x, or a code that it holds.
__device__ __forceinline__ float load_value(const RowView& x, std::int64_t at) {
  return x.dtype == DType::i8 || x.dtype == DType::i16 ? static_cast<float>(load_code(x.data, x.dtype, at))
                                                       : load_float(x.data, x.dtype, at);
}

// A block's largest 8-bit sum fits in int32 wherever its products do; 16-bit codes may exceed it.
template <class Code>
struct SumOf {
  using Type = std::int32_t;
};
template <>
struct SumOf<std::int16_t> {
  using Type = long long;
};

// Statistics from which a block's parameters are computed.
struct Extremes {
  std::uint32_t magnitude = 0;
  float lo = numerics::kFloatMax, hi = -numerics::kFloatMax;

  __device__ __forceinline__ void add(float value) {
    const std::uint32_t bits = numerics::magnitude_bits(value);
    magnitude = bits > magnitude ? bits : magnitude;
    lo = value < lo ? value : lo;
    hi = value > hi ? value : hi;
  }
  __device__ BlockScale scale(int mode) const { return numerics::activation_scale(mode, lo, hi, magnitude); }
};

// Adds values first, first + step .. of a block of x that begins there.
template <class Code>
__device__ __forceinline__ void add_values(Extremes& of, const Arguments<Code>& a, std::int64_t begin,
                                           std::int64_t length, int first, int step) {
  for (std::int64_t i = first; i < length; i += step) of.add(load_value(a.x, begin + i * a.x.column_stride));
}

// A block's scale, how its values become codes, and its offset, which codes that x holds have without being shifted.
struct BlockTerms {
  BlockScale block;
  float offset;

  __device__ __forceinline__ explicit BlockTerms(const BlockScale& of) : block(of), offset(of.offset) {}
  template <class Code>
  __device__ BlockTerms(const Arguments<Code>& a, std::int64_t row, std::int64_t p, const Extremes& of) {
    if (a.mode != numerics::kActivationCodes) {
      block = numerics::activation_scale(a.mode, of.lo, of.hi, of.magnitude, a.scales.fixed);
      offset = block.offset;
      return;
    }
    const auto parameter = [&](const RowView& from) {
      const std::int64_t column = p / a.scales.blocks_per_scale;
      return static_cast<const float*>(from.data)[row_offset(from, a.first_row + row) + column * from.column_stride];
    };
    block = {parameter(a.scales.scales), 1.0f, 0.0f};
    offset = a.scales.offsets.data ? parameter(a.scales.offsets) : 0.0f;
  }
};

// Extremes of values, the same in every lane.
template <class Code>
__device__ Extremes warp_extremes(const Arguments<Code>& a, std::int64_t begin, std::int64_t length, int lane) {
  Extremes of;
  if (a.mode == numerics::kActivationCodes) return of;
  add_values(of, a, begin, length, lane, kWarpSize);
  of.magnitude = warp_max(of.magnitude);
  if (a.mode == numerics::kActivationInt8Asym) {
    of.lo = warp_min(of.lo);
    of.hi = warp_max(of.hi);
  }
  return of;
}

// `row` is its place, here and below. Plain rows are those of PlainRows, inner ones all others.
template <class Code>
__device__ __forceinline__ std::int64_t inner_code_at(const QuantizedRows<Code>& out, std::int64_t row, std::int64_t p,
                                                      std::int64_t i) {
  if (out.tiled.shift) return out.tiled.code(row, p * out.padded_block + i);
  const bool nibbles = out.tiled.order == TiledRows::Order::nibbles;
  return (row * out.blocks + p) * out.padded_block + (nibbles ? TiledRows::nibble_order(static_cast<int>(i)) : i);
}

template <class Code>
__device__ std::int64_t code_at(const QuantizedRows<Code>& out, std::int64_t row, std::int64_t p, std::int64_t i) {
  if (out.plain.codes.data)
    return row_offset(out.plain.codes, row) + (p * out.padded_block + i) * out.plain.codes.column_stride;
  return inner_code_at(out, row, p, i);
}

template <class Code, class Sum>
__device__ __forceinline__ void store_inner_terms(const QuantizedRows<Code>& out, std::int64_t row, std::int64_t p,
                                                  const BlockTerms& terms, Sum sum) {
  const float scale = terms.block.scale;
  const float scaled_sum = scale * static_cast<float>(sum);
  if (out.tiled.shift) {
    float* parameters = out.tiled.parameters + out.tiled.parameter(row, p, out.blocks, 0);
    parameters[0] = scale;
    if (out.tiled.arrays > 1) {
      parameters[out.tiled.rows()] = scaled_sum;
      if (out.tiled.arrays > 2) parameters[2 * out.tiled.rows()] = terms.offset;
    }
    return;
  }
  const std::int64_t at = p * out.rows + row;
  if (out.terms) {
    out.terms[at] = {scale, static_cast<std::int32_t>(-out.zero_code * sum), scaled_sum, terms.offset};
    return;
  }
  out.scales[at] = scale;
  if (out.scaled_sums) out.scaled_sums[at] = scaled_sum;
  if (out.offsets) out.offsets[at] = terms.offset;
}

template <class Code, class Sum>
__device__ void store_terms(const QuantizedRows<Code>& out, std::int64_t row, std::int64_t p, const BlockTerms& terms,
                            Sum sum) {
  if (out.plain.codes.data) {
    const auto store = [&](const RowView& to, float value) {
      static_cast<float*>(const_cast<void*>(to.data))[row_offset(to, row) + p * to.column_stride] = value;
    };
    store(out.plain.scales, terms.block.scale);
    if (out.plain.offsets.data) store(out.plain.offsets, terms.offset);
    return;
  }
  store_inner_terms(out, row, p, terms, sum);
}

// Neighboring codes, the first of which lies at `at`.
__device__ __forceinline__ void store_run(const QuantizedRows<std::int8_t>& out, std::int64_t at,
                                          const std::uint32_t (&words)[kRun / 4]) {
  if (out.tiled.order == TiledRows::Order::nibbles) {
    *reinterpret_cast<uint2*>(out.codes + at) = {words[0], words[2]};
    // nibble_order(first + 4), and units of 16 bytes are exclusive-or'ed where rows are tiled.
    *reinterpret_cast<uint2*>(out.codes + (at ^ 16)) = {words[1], words[3]};
  } else {
    *reinterpret_cast<uint4*>(out.codes + at) = {words[0], words[1], words[2], words[3]};
  }
}

// Codes first .. first + kRun - 1 of a block.
__device__ __forceinline__ void store_run(const QuantizedRows<std::int8_t>& out, std::int64_t row, std::int64_t p,
                                          std::int64_t first, const std::uint32_t (&words)[kRun / 4]) {
  store_run(out, code_at(out, row, p, first), words);
}

// Adds a run whose largest magnitude is known. Only codes with offsets need the range.
template <int kMode>
__device__ __forceinline__ void add_run(Extremes& of, const float (&values)[kRun], std::uint32_t magnitude) {
  of.magnitude = magnitude > of.magnitude ? magnitude : of.magnitude;
  if constexpr (kMode == numerics::kActivationInt8Asym) {
#pragma unroll
    for (const float value : values) {
      of.lo = value < of.lo ? value : of.lo;
      of.hi = value > of.hi ? value : of.hi;
    }
  }
}

// Returns the sum of the codes, four of which are in a word.
template <int kMode>
__device__ __forceinline__ std::int32_t encode_run(const float (&values)[kRun], const BlockScale& scale,
                                                   std::uint32_t (&words)[kRun / 4]) {
  std::int32_t sum = 0;
#pragma unroll
  for (int word = 0; word < kRun / 4; ++word) {
    std::uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = values[4 * word + i];
      if constexpr (kMode == numerics::kActivationInt8)
        codes[i] = numerics::encode_symmetric(value, scale);
      else
        codes[i] = static_cast<std::uint32_t>(numerics::activation_code(value, scale, kMode));
    }
    words[word] = ptx::lowest_bytes(codes[0], codes[1], codes[2], codes[3]);
    sum = ptx::add_signed_bytes(words[word], sum);
  }
  return sum;
}

// Over the `lanes` lanes that share a block, a power of two.
template <class T, class Combine>
__device__ __forceinline__ T group_reduce(T value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

template <int kMode>
__device__ __forceinline__ void reduce(Extremes& of, int lanes) {
  of.magnitude = group_reduce(of.magnitude, lanes, [](std::uint32_t a, std::uint32_t b) { return a < b ? b : a; });
  if constexpr (kMode == numerics::kActivationInt8Asym) {
    of.lo = group_reduce(of.lo, lanes, [](float a, float b) { return b < a ? b : a; });
    of.hi = group_reduce(of.hi, lanes, [](float a, float b) { return a < b ? b : a; });
  }
}

// Whether sums of codes are stored, other than those of values as they lie.
__host__ __device__ inline bool needs_sums(const QuantizedRows<std::int8_t>& out) {
  return out.tiled.shift ? out.tiled.arrays > 1 : out.terms || out.scaled_sums;
}

}  // namespace qcore::quantization
