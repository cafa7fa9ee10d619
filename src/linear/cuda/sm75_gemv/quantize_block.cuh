#pragma once

#include "formats/activation_scales.h"
#include "formats/element.h"
#include "numerics/activation_block.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx.cuh"
#include "runtime/cuda/ptx_convert.cuh"

// A thread block's own int8 quantization of a few rows of x, or its copy of their codes, in shared memory: codes,
// scales and shifts as quantize_activations() makes them, a shift being -zero_code * sum of the block's codes.
namespace qcore {

struct RowQuantizer {
  static constexpr int kMaxRows = 8;
  static constexpr int kUnit = 8;  // values that a lane takes
  // The shortest block that may share its scale with the row: registers do not suffice for 32.
  static constexpr int kShortest = 64;
  using Source = ActivationScales::Source;

  const void* x;  // [rows, k], neighbors along k side by side; k a multiple of 8, rows start at multiples of 16 bytes
  DType dtype;
  int zero_code;  // of the weight
  int rows, blocks, k;
  int code_stride;   // bytes from row to row in shared memory
  int scale_stride;  // values from row to row of the scales: a multiple of 4
  std::int64_t row_at[kMaxRows];
  Source source;
  float fixed;                      // scale
  const float* given;               // scales of codes
  int given_step, given_blocks;     // from scale to scale of a row; of the weight, that share one
  std::int64_t given_at[kMaxRows];  // a row's first scale

  // codes [rows, code_stride], scales [rows, scale_stride], shifts [P, rows].
  // Called by all threads; blocks of kBlock k are shared by kBlock / 8 neighboring lanes. A barrier must follow.
  // `parts` [rows, 32] is memory that nothing else uses until then. With kAhead, which takes 8 registers, a unit is
  // loaded while the one before it is encoded.
  template <int kBlock, bool kAhead = false>
  __device__ __forceinline__ void run(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                      std::uint32_t* parts) const {
    constexpr int kLanes = kBlock / kUnit;
    if (source == Source::given) return copy_codes(codes, scales, shifts, kLanes);
    // Each source has code of its own: the usual one must not wait for instructions that it does not need.
    if constexpr (kBlock >= kShortest) {
      if (source == Source::per_row) {
        store_largest(parts);
        __syncthreads();
        return run_rows<kLanes, true, kAhead>(codes, scales, shifts, parts);
      }
    }
    run_rows<kLanes, false, kAhead>(codes, scales, shifts, parts);
  }

  template <int kLanes, bool kPerRow, bool kAhead>
  __device__ __forceinline__ void run_rows(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                           const std::uint32_t* parts) const {
    static_assert(kLanes <= kWarpSize && kWarpSize % kLanes == 0, "a warp holds whole blocks");
    const int units = blocks * kLanes, thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const auto existing = [units](int unit) { return unit < units ? unit : units - 1; };
    Raw next{};
    if constexpr (kAhead) next = load_raw(row_at[0], existing(thread));
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      numerics::BlockScale scale{};
      if constexpr (kPerRow)
        scale = block_scale<false>(largest_part(parts, row, static_cast<int>(blockDim.x) / kWarpSize));
#pragma unroll 1
      for (int first = thread; first - thread % kWarpSize < units; first += threads) {
        const int unit = existing(first);
        float values[kUnit];
        if constexpr (kAhead) {
          convert(next, values);
          const bool same = first + threads - thread % kWarpSize < units;
          if (same || row + 1 < rows)
            next = load_raw(row_at[same ? row : row + 1], existing(same ? first + threads : thread));
        } else {
          load(values, row_at[row], unit);
        }
        if constexpr (!kPerRow) scale = block_scale<false>(largest_of_lanes<kLanes>(largest(values)));
        uint2 words;
        const std::uint32_t sum = sum_of_lanes<kLanes>(encode<false>(values, scale, words));
        if (first >= units) continue;
        *reinterpret_cast<uint2*>(codes + row * code_stride + unit * kUnit) = words;
        if (unit % kLanes) continue;
        scales[row * scale_stride + unit / kLanes] = scale.scale;
        shifts[unit / kLanes * rows + row] = shift(sum);
      }
    }
  }

  // The same for rows of one block, of any length: each row has warps of its own, of which there must be as many as
  // rows at least.
  __device__ __forceinline__ void run_one_block(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                                std::uint32_t* parts) const {
    if (source == Source::given) return copy_codes(codes, scales, shifts, k / kUnit);
    if (source == Source::fixed) return run_one_row_block<true>(codes, scales, shifts, parts);
    run_one_row_block<false>(codes, scales, shifts, parts);
  }

 private:
  static constexpr int kRowBatch = 4;  // units whose loads are under way together

  template <bool kFixed>
  __device__ __forceinline__ void run_one_row_block(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                                    std::uint32_t* parts) const {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
    const int row_warps = static_cast<int>(blockDim.x) / kWarpSize / rows, row_threads = row_warps * kWarpSize;
    const int row = thread / row_threads, units = row < rows ? k / kUnit : 0;
    const std::int64_t at = units > 0 ? row_at[row] : 0;
    float values[kRowBatch][kUnit];
    std::uint32_t magnitude = 0;
#pragma unroll 1
    for (int first = thread % row_threads; first < units; first += kRowBatch * row_threads) {
#pragma unroll
      for (int i = 0; i < kRowBatch; ++i) load(values[i], at, first + i * row_threads);
#pragma unroll
      for (int i = 0; i < kRowBatch; ++i) {
        const std::uint32_t own = largest(values[i]);
        magnitude = own > magnitude ? own : magnitude;
      }
    }
    magnitude = largest_of_lanes<kWarpSize>(magnitude);
    if (lane == 0 && row < rows) parts[row * kWarpSize + thread / kWarpSize % row_warps] = magnitude;
    if (thread < rows) shifts[thread] = 0;
    __syncthreads();
    const numerics::BlockScale scale = block_scale<kFixed>(largest_part(parts, row, row < rows ? row_warps : 0));
    std::uint32_t sum = 0;
#pragma unroll 1
    for (int first = thread % row_threads; first < units; first += kRowBatch * row_threads) {
#pragma unroll
      for (int i = 0; i < kRowBatch; ++i) load(values[i], at, first + i * row_threads);
#pragma unroll
      for (int i = 0; i < kRowBatch; ++i) {
        const int unit = first + i * row_threads;
        if (unit >= units) break;
        uint2 words;
        sum += encode<kFixed>(values[i], scale, words);
        *reinterpret_cast<uint2*>(codes + row * code_stride + unit * kUnit) = words;
      }
    }
    sum = sum_of_lanes<kWarpSize>(sum);
    if (lane != 0 || row >= rows) return;
    atomicAdd(shifts + row, shift(sum));
    scales[row * scale_stride] = scale.scale;
  }

  // Every warp stores the largest magnitude of its part of each row. A barrier must follow.
  __device__ __forceinline__ void store_largest(std::uint32_t* parts) const {
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      std::uint32_t magnitude = 0;
#pragma unroll 1
      for (int unit = static_cast<int>(threadIdx.x); unit * kUnit < k; unit += static_cast<int>(blockDim.x)) {
        float values[kUnit];
        load(values, row_at[row], unit);
        const std::uint32_t own = largest(values);
        magnitude = own > magnitude ? own : magnitude;
      }
      magnitude = largest_of_lanes<kWarpSize>(magnitude);
      if (threadIdx.x % kWarpSize == 0) parts[row * kWarpSize + threadIdx.x / kWarpSize] = magnitude;
    }
  }
  // By a whole warp, of the parts of `warps` of them.
  __device__ __forceinline__ static std::uint32_t largest_part(const std::uint32_t* parts, int row, int warps) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    return largest_of_lanes<kWarpSize>(lane < warps ? parts[row * kWarpSize + lane] : 0);
  }

  __device__ __forceinline__ static std::uint32_t largest(const float (&values)[kUnit]) {
    std::uint32_t magnitude = 0;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const std::uint32_t bits = numerics::magnitude_bits(values[i]);
      magnitude = bits > magnitude ? bits : magnitude;
    }
    return magnitude;
  }
  template <int kLanes>
  __device__ __forceinline__ static std::uint32_t largest_of_lanes(std::uint32_t magnitude) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const std::uint32_t other = __shfl_xor_sync(kAllLanes, magnitude, distance);
      magnitude = other > magnitude ? other : magnitude;
    }
    return magnitude;
  }
  template <int kLanes>
  __device__ __forceinline__ static std::uint32_t sum_of_lanes(std::uint32_t sum) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    return sum;
  }
  // Copies codes that x holds, and their scales: `block_units` units share a shift, whose sums are made one after the
  // other, and so are the scales.
  __device__ __forceinline__ void copy_codes(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                             int block_units) const {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), units = k / kUnit;
    for (int i = thread; i < rows * blocks; i += threads) shifts[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const std::int8_t* from = static_cast<const std::int8_t*>(x) + row_at[row];
#pragma unroll 1
      for (int unit = thread; unit < blocks * block_units; unit += threads) {
        uint2 words{0, 0};
        if (unit < units) words = *reinterpret_cast<const uint2*>(from + unit * kUnit);
        *reinterpret_cast<uint2*>(codes + row * code_stride + unit * kUnit) = words;
        const std::int32_t sum = ptx::add_signed_bytes(words.x, ptx::add_signed_bytes(words.y, 0));
        atomicAdd(shifts + unit / block_units * rows + row, shift(static_cast<std::uint32_t>(sum)));
      }
#pragma unroll 1
      for (int p = thread; p < blocks; p += threads)
        scales[row * scale_stride + p] = given[given_at[row] + p / given_blocks * given_step];
    }
  }

  template <bool kFixed>
  __device__ __forceinline__ numerics::BlockScale block_scale(std::uint32_t magnitude) const {
    constexpr int kMode = kFixed ? numerics::kActivationInt8Fixed : numerics::kActivationInt8;
    return numerics::activation_scale(kMode, 0.0f, 0.0f, magnitude, fixed);
  }
  // Returns the sum of the codes.
  template <bool kFixed>
  __device__ __forceinline__ static std::uint32_t encode(const float (&values)[kUnit],
                                                         const numerics::BlockScale& scale, uint2& words) {
    std::uint32_t sum = 0, biased[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      biased[i] = kFixed ? numerics::encode_clamped(values[i], scale) : numerics::encode_symmetric(values[i], scale);
      sum += biased[i];
    }
    words.x = ptx::lowest_bytes(biased[0], biased[1], biased[2], biased[3]);
    words.y = ptx::lowest_bytes(biased[4], biased[5], biased[6], biased[7]);
    return sum - kUnit * numerics::kBiasedZero;
  }
  __device__ __forceinline__ std::int32_t shift(std::uint32_t sum) const {
    return static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(zero_code) * sum);
  }
  // Zeros behind the row's end: they change neither a block's largest magnitude nor its sum.
  __device__ __forceinline__ void load(float (&values)[kUnit], std::int64_t row, int unit) const {
    const std::int64_t first = row + unit * kUnit;
    if (unit * kUnit >= k) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) values[i] = 0.0f;
    } else if (dtype == DType::f32) {
      const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(x) + first);
      const float4 a = from[0], b = from[1];
      values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
      values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
    } else {
      spread(*reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(x) + first), values);
    }
  }
  __device__ __forceinline__ void spread(const uint4& halves, float (&values)[kUnit]) const {
    const std::uint32_t words[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const auto half = static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)));
      values[i] = dtype == DType::f16 ? numerics::half_to_float(half) : numerics::bfloat_to_float(half);
    }
  }

  // The same in two steps, of which the first one only loads.
  struct Raw {
    uint4 first, second;  // the latter of fp32 only
  };
  __device__ __forceinline__ Raw load_raw(std::int64_t row, int unit) const {
    Raw raw{};
    if (unit * kUnit >= k) return raw;
    const std::int64_t first = row + unit * kUnit;
    if (dtype == DType::f32) {
      const auto* from = reinterpret_cast<const uint4*>(static_cast<const float*>(x) + first);
      raw.first = from[0], raw.second = from[1];
    } else {
      raw.first = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(x) + first);
    }
    return raw;
  }
  __device__ __forceinline__ void convert(const Raw& raw, float (&values)[kUnit]) const {
    if (dtype != DType::f32) return spread(raw.first, values);
    const std::uint32_t words[kUnit] = {raw.first.x,  raw.first.y,  raw.first.z,  raw.first.w,
                                        raw.second.x, raw.second.y, raw.second.z, raw.second.w};
#pragma unroll
    for (int i = 0; i < kUnit; ++i) values[i] = numerics::bits_float(words[i]);
  }
};

}  // namespace qcore
