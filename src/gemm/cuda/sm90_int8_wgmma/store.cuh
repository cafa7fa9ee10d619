#pragma once

#include "gemm/cuda/sm90_int8_wgmma/stage.cuh"
#include "numerics/block_product.h"
#include "runtime/cuda/ptx_half.cuh"

// How results leave the registers of a consuming warp.
namespace qcore::sm90_int8_wgmma {

constexpr int kRegisterRows = 4;  // neighboring rows of a lane, see TiledRows::column()

// Returns which of eight registers holds row 4*quad + i of column 2*group. The one of the next column is two behind it.
__device__ constexpr int register_of(int i) { return 4 * (i / 2) + i % 2; }

template <class Add>
__device__ __forceinline__ void for_each_row(float4 four, Add&& add) {
  const float of_rows[] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int i = 0; i < kRegisterRows; ++i) add(register_of(i), of_rows[i]);
}
template <class Add>
__device__ __forceinline__ void for_each_row(const float* rows, Add&& add) {
  for_each_row(*reinterpret_cast<const float4*>(rows), add);
}

// Where a tile's results go: rows of the launch, and the place of their weight's bias.
struct Target {
  int column;  // of tiles
  std::int64_t first, end, bias_shift;

  template <bool kWindow>
  __device__ __forceinline__ static Target of(const Arguments& a, Tile tile, int rows) {
    if constexpr (!kWindow) {
      if (a.experts.tiles) {
        const ExpertTile of = a.experts.tiles[tile.row];
        return {tile.column, of.first, of.end, of.expert * a.experts.bias_stride};
      }
    }
    return {tile.column, static_cast<std::int64_t>(tile.row) * rows, a.x.rows, 0};
  }
};

// Stores the results of a tile. results(j, y) returns those of rows 16*j + 4*quad .. in the order of a lane's
// registers; the compiler knows j. kPlainCopy: 16 bits without limits have a copy of the code, which takes a third of
// the other's instructions.
template <class Rows, int kRows, bool kPlainCopy>
class ResultStore {
 public:
  // staging: 16 x 16 floats of the warp.
  __device__ ResultStore(const Arguments& a, float* staging, int panel, int lane)
      : a_(a), panel_(panel), lane_(lane), group_(lane / 4), quad_(lane % 4), staging_(staging) {}

  template <class Results>
  __device__ __forceinline__ void store(const Target& to, const Results& results) {
    const std::int64_t n = to.column * std::int64_t{Tuning::kColumns} + 16 * panel_;
    if (Rows::kWindow && n >= a_.w.n) return;
    const ActivationKind kind = a_.out.activation.kind;
    const bool clamp = kind == ActivationKind::clamp, simple = kind == ActivationKind::none || clamp;
    if (!a_.pairs || !simple || n + 16 > a_.w.n) return store_any(to, n, results);
    float bias[2] = {};
    if (a_.out.bias)
      for (int i = 0; i < 2; ++i)
        bias[i] = load_float(a_.out.bias, a_.out.bias_dtype, to.bias_shift + (n + 2 * group_ + i) * a_.out.bias_stride);
    if constexpr (kPlainCopy)
      if (!clamp && a_.out.y.dtype != DType::f32) return store_pairs<true>(to, n + 2 * group_, bias, results);
    store_pairs<false>(to, n + 2 * group_, bias, results);
  }

 private:
  // Eight lanes write 16 neighboring outputs of a row. Registers can't be indexed, so every eight of them have
  // instructions of their own, which a thread block fetches for a few tiles. Type, bias and limits are asked for at run
  // time: with copies of the code for each, a single tile of 256 rows spent a quarter of its time waiting for
  // instructions.
  template <bool kPlain, class Results>
  __device__ __forceinline__ void store_pairs(const Target& target, std::int64_t n, const float (&bias)[2],
                                              const Results& results) {
    const DType dtype = a_.out.y.dtype;
    const bool has_bias = a_.out.bias != nullptr, clamp = !kPlain && a_.out.activation.kind == ActivationKind::clamp;
    const bool wide = !kPlain && dtype == DType::f32, f16 = dtype == DType::f16;
    const int size = wide ? 4 : 2;
    const std::int64_t stride = a_.out.y.strides[0] * size, row = target.first + Rows::row(kRegisterRows * quad_);
    char* to = static_cast<char*>(const_cast<void*>(a_.out.y.data)) + (a_.first_row + row) * stride + n * size;
    const std::int64_t left = target.end - row;
    const int rows_left = left < kRows ? static_cast<int>(left) : kRows;
#pragma unroll
    for (int j = 0; j < kRows / 16; ++j) {
      float y[2 * kRegisterRows];
      results(j, y);
#pragma unroll
      for (int i = 0; i < 2 * kRegisterRows; ++i) {
        if (has_bias) y[i] += bias[i / 2 % 2];
        if (clamp) y[i] = numerics::clamp_keep_nan(y[i], a_.out.activation.lo, a_.out.activation.hi);
      }
#pragma unroll
      for (int i = 0; i < kRegisterRows; ++i) {
        const float low = y[register_of(i)], high = y[register_of(i) + 2];
        const bool exists = 16 * j + Rows::row(i) < rows_left;
        char* place = to + Rows::row(i) * stride;
        if (wide) {
          if (exists) *reinterpret_cast<float2*>(place) = {low, high};
        } else {
          const std::uint32_t pair = f16 ? ptx::pack_pair<ptx::half_of(DType::f16)>(low, high)
                                         : ptx::pack_pair<ptx::half_of(DType::bf16)>(low, high);
          if (exists) *reinterpret_cast<std::uint32_t*>(place) = pair;
        }
      }
      to += 16 * stride;
    }
  }

  // Through shared memory, so that there is one copy of what finishes a value, not one for each register. Where pixels
  // lie closer than channels, neighboring lanes are pixels.
  template <class Results>
  __device__ void store_any(const Target& target, std::int64_t n, const Results& results) {
    const bool along_rows = !Rows::kWindow || a_.out.y.column_stride == 1;
#pragma unroll 1
    for (int j = 0; j < kRows / 16; ++j) {
#pragma unroll
      for (int known = 0; known < kRows / 16; ++known)
        if (known == j) stage_results(known, results);
      __syncwarp();
#pragma unroll 1
      for (int at = lane_; at < 256; at += kWarpSize) {
        const int i = along_rows ? at / 16 : at % 16, column = along_rows ? at % 16 : at / 16;
        const std::int64_t row = target.first + 16 * j + i;
        if (row < target.end && n + column < a_.w.n)
          Epilogue(a_.out, n + column, target.bias_shift)
              .store(a_.out.y.row_offset(a_.first_row + row), staging_[16 * i + column]);
      }
      __syncwarp();
    }
  }
  template <class Results>
  __device__ __forceinline__ void stage_results(int j, const Results& results) {
    float y[2 * kRegisterRows];
    results(j, y);
#pragma unroll
    for (int i = 0; i < kRegisterRows; ++i)
      reinterpret_cast<float2*>(staging_)[Rows::row(kRegisterRows * quad_ + i) * 8 + group_] = {y[register_of(i)],
                                                                                                y[register_of(i) + 2]};
  }

  const Arguments& a_;
  int panel_, lane_, group_, quad_;
  float* staging_;
};

}  // namespace qcore::sm90_int8_wgmma
