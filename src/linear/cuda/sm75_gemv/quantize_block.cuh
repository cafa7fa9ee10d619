#pragma once

#include <type_traits>

#include "formats/activation_scales.h"
#include "formats/element.h"
#include "gemm/cuda/stored_run.cuh"
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
  // `parts` [rows, 32] is memory that nothing else uses until then. Without kShifts there are no shifts.
  template <int kBlock, bool kShifts>
  __device__ __forceinline__ void run(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                      std::uint32_t* parts) const {
    constexpr int kLanes = kBlock / kUnit;
    if (source == Source::given) return copy_codes<kShifts>(codes, scales, shifts, kLanes);
    // Each source and each type has code of its own: the usual one must not wait for instructions that it does not
    // need.
    const auto rows_of = [&](auto per_row, auto of) {
      run_rows<decltype(of)::value, kLanes, decltype(per_row)::value, kShifts>(codes, scales, shifts, parts);
    };
    if constexpr (kBlock >= kShortest) {
      if (source == Source::per_row) {
        with_type([&](auto of) { store_largest<decltype(of)::value>(parts); });
        __syncthreads();
        return with_type([&](auto of) { rows_of(std::true_type{}, of); });
      }
    }
    with_type([&](auto of) { rows_of(std::false_type{}, of); });
  }

  // The same for rows of one block, of any length: each row has warps of its own, of which there must be as many as
  // rows at least.
  template <bool kShifts>
  __device__ __forceinline__ void run_one_block(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                                std::uint32_t* parts) const {
    if (source == Source::given) return copy_codes<kShifts>(codes, scales, shifts, k / kUnit);
    with_type([&](auto of) {
      constexpr DType kDType = decltype(of)::value;
      source == Source::fixed ? run_one_row_block<kDType, true, kShifts>(codes, scales, shifts, parts)
                              : run_one_row_block<kDType, false, kShifts>(codes, scales, shifts, parts);
    });
  }

 private:
  static constexpr int kRowBatch = 4;  // units whose loads are under way together

  // Calls `use` with the type of x as a constant.
  template <class Use>
  __device__ __forceinline__ void with_type(Use&& use) const {
    if (dtype == DType::f16)
      use(std::integral_constant<DType, DType::f16>{});
    else if (dtype == DType::bf16)
      use(std::integral_constant<DType, DType::bf16>{});
    else
      use(std::integral_constant<DType, DType::f32>{});
  }

  // Neighboring values as they lie in memory.
  template <DType kDType>
  struct Unit {
    static constexpr int kWords = kDType == DType::f32 ? 8 : 4;
    std::uint32_t words[kWords];

    __device__ __forceinline__ std::uint32_t magnitude() const { return largest_magnitude<kDType>(words); }
    __device__ __forceinline__ float value(int i) const {
      if constexpr (kDType == DType::f32) return numerics::bits_float(words[i]);
      const auto half = static_cast<std::uint16_t>(words[i / 2 % kWords] >> (16 * (i % 2)));
      return kDType == DType::f16 ? numerics::half_to_float(half) : numerics::bfloat_to_float(half);
    }
    template <bool kFixed>
    __device__ __forceinline__ uint2 encode(const numerics::BlockScale& scale) const {
      std::uint32_t biased[kUnit];
#pragma unroll
      for (int i = 0; i < kUnit; ++i)
        biased[i] = kFixed ? numerics::encode_clamped(value(i), scale) : numerics::encode_symmetric(value(i), scale);
      return {ptx::lowest_bytes(biased[0], biased[1], biased[2], biased[3]),
              ptx::lowest_bytes(biased[4], biased[5], biased[6], biased[7])};
    }
  };
  // Zeros behind the row's end: they change neither a block's largest magnitude nor its sum.
  template <DType kDType>
  __device__ __forceinline__ Unit<kDType> load(std::int64_t row, int unit) const {
    Unit<kDType> to{};
    if (unit * kUnit >= k) return to;
    const auto* from =
        reinterpret_cast<const uint4*>(static_cast<const char*>(x) + (row + unit * kUnit) * (Unit<kDType>::kWords / 2));
#pragma unroll
    for (int i = 0; i < Unit<kDType>::kWords / 4; ++i) {
      const uint4 four = from[i];
      to.words[4 * i] = four.x, to.words[4 * i + 1] = four.y;
      to.words[4 * i + 2] = four.z, to.words[4 * i + 3] = four.w;
    }
    return to;
  }
  __device__ __forceinline__ static std::uint32_t sum_of(const uint2& codes) {
    return static_cast<std::uint32_t>(ptx::add_signed_bytes(codes.x, ptx::add_signed_bytes(codes.y, 0)));
  }

  // A unit of 16 bytes is loaded while the one before it is encoded; for more there are no registers.
  template <DType kDType, int kLanes, bool kPerRow, bool kShifts>
  __device__ __forceinline__ void run_rows(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                           const std::uint32_t* parts) const {
    static_assert(kLanes <= kWarpSize && kWarpSize % kLanes == 0, "a warp holds whole blocks");
    const int units = blocks * kLanes, thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int warp_first = thread - thread % kWarpSize;
    if (warp_first >= units) return;
    const auto existing = [units](int unit) { return unit < units ? unit : units - 1; };
    constexpr bool kAhead = kDType != DType::f32;
    Unit<kDType> next;
    if constexpr (kAhead) next = load<kDType>(row_at[0], existing(thread));
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      numerics::BlockScale scale{};
      if constexpr (kPerRow)
        scale = block_scale<false>(largest_part(parts, row, static_cast<int>(blockDim.x) / kWarpSize));
#pragma unroll 1
      for (int first = thread; first - thread % kWarpSize < units; first += threads) {
        const int unit = existing(first);
        const Unit<kDType> now = kAhead ? next : load<kDType>(row_at[row], unit);
        if constexpr (kAhead) {
          const bool same = first + threads - thread % kWarpSize < units;
          if (same || row + 1 < rows)
            next = load<kDType>(row_at[same ? row : row + 1], existing(same ? first + threads : thread));
        }
        if constexpr (!kPerRow) scale = block_scale<false>(largest_of_lanes<kLanes>(now.magnitude()));
        const uint2 words = now.template encode<false>(scale);
        std::uint32_t sum = 0;
        if constexpr (kShifts) sum = sum_of_lanes<kLanes>(sum_of(words));
        if (first >= units) continue;
        *reinterpret_cast<uint2*>(codes + row * code_stride + unit * kUnit) = words;
        if (unit % kLanes) continue;
        scales[row * scale_stride + unit / kLanes] = scale.scale;
        if constexpr (kShifts) shifts[unit / kLanes * rows + row] = shift(sum);
      }
    }
  }

  template <DType kDType, bool kFixed, bool kShifts>
  __device__ __forceinline__ void run_one_row_block(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                                    std::uint32_t* parts) const {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
    const int row_warps = static_cast<int>(blockDim.x) / kWarpSize / rows, row_threads = row_warps * kWarpSize;
    const int row = thread / row_threads, units = row < rows ? k / kUnit : 0;
    const std::int64_t at = units > 0 ? row_at[row] : 0;
    Unit<kDType> values[kRowBatch];
    std::uint32_t magnitude = 0;
#pragma unroll 1
    for (int first = thread % row_threads; first < units; first += kRowBatch * row_threads) {
#pragma unroll
      for (int i = 0; i < kRowBatch; ++i) values[i] = load<kDType>(at, first + i * row_threads);
#pragma unroll
      for (int i = 0; i < kRowBatch; ++i) {
        const std::uint32_t own = values[i].magnitude();
        magnitude = own > magnitude ? own : magnitude;
      }
    }
    magnitude = largest_of_lanes<kWarpSize>(magnitude);
    if (lane == 0 && row < rows) parts[row * kWarpSize + thread / kWarpSize % row_warps] = magnitude;
    if (kShifts && thread < rows) shifts[thread] = 0;
    __syncthreads();
    const numerics::BlockScale scale = block_scale<kFixed>(largest_part(parts, row, row < rows ? row_warps : 0));
    // Most rows are one batch, which is still there.
    const bool one_batch = units <= kRowBatch * row_threads;
    std::uint32_t sum = 0;
#pragma unroll 1
    for (int first = thread % row_threads; first < units; first += kRowBatch * row_threads) {
      if (!one_batch) {
#pragma unroll
        for (int i = 0; i < kRowBatch; ++i) values[i] = load<kDType>(at, first + i * row_threads);
      }
#pragma unroll
      for (int i = 0; i < kRowBatch; ++i) {
        const int unit = first + i * row_threads;
        if (unit >= units) break;
        const uint2 words = values[i].template encode<kFixed>(scale);
        if constexpr (kShifts) sum += sum_of(words);
        *reinterpret_cast<uint2*>(codes + row * code_stride + unit * kUnit) = words;
      }
    }
    if constexpr (kShifts) sum = sum_of_lanes<kWarpSize>(sum);
    if (lane != 0 || row >= rows) return;
    if constexpr (kShifts) atomicAdd(shifts + row, shift(sum));
    scales[row * scale_stride] = scale.scale;
  }

  // Every warp stores the largest magnitude of its part of each row. A barrier must follow.
  template <DType kDType>
  __device__ __forceinline__ void store_largest(std::uint32_t* parts) const {
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      std::uint32_t magnitude = 0;
#pragma unroll 1
      for (int unit = static_cast<int>(threadIdx.x); unit * kUnit < k; unit += static_cast<int>(blockDim.x)) {
        const std::uint32_t own = load<kDType>(row_at[row], unit).magnitude();
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
  template <bool kShifts>
  __device__ __forceinline__ void copy_codes(std::int8_t* codes, float* scales, std::int32_t* shifts,
                                             int block_units) const {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), units = k / kUnit;
    if constexpr (kShifts) {
      for (int i = thread; i < rows * blocks; i += threads) shifts[i] = 0;
      __syncthreads();
    }
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const std::int8_t* from = static_cast<const std::int8_t*>(x) + row_at[row];
#pragma unroll 1
      for (int unit = thread; unit < blocks * block_units; unit += threads) {
        uint2 words{0, 0};
        if (unit < units) words = *reinterpret_cast<const uint2*>(from + unit * kUnit);
        *reinterpret_cast<uint2*>(codes + row * code_stride + unit * kUnit) = words;
        if constexpr (kShifts) atomicAdd(shifts + unit / block_units * rows + row, shift(sum_of(words)));
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
  __device__ __forceinline__ std::int32_t shift(std::uint32_t sum) const {
    return static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(zero_code) * sum);
  }
};

}  // namespace qcore
