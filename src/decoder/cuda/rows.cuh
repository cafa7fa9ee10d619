#pragma once

#include <algorithm>

#include "decoder/cuda/elements.cuh"
#include "decoder/problem.h"
#include "numerics/rms_norm.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

// Aligned rows of one dtype, as the kernels of the norm and of the gate take them.
namespace qcore {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr std::int64_t kMaxWarpRow = 512;      // elements that a warp norms by itself
constexpr std::int64_t kMaxSharedRow = 12284;  // elements that a thread block keeps in shared memory
constexpr int kMailFloats = 4;                 // in front of them

static_assert(numerics::kNormSums == kWarpSize);

// Thread blocks that a multiprocessor shall have registers for. While one warp of a row adds up its squares, the other
// rows' loads are under way. float32 has twice the bytes under way, and would spill registers with 4.
template <DType kDType, bool kWarpRows>
constexpr int kNormThreadBlocks = kWarpRows              ? 1
                                  : kDType == DType::f32 ? 3
                                                         : 4;

// The threads that share a row: a warp or all of a thread block. One warp adds up the squares, lane l those of the
// elements i with i mod 32 = l.
template <bool kWarpRows>
struct RowTeam {
  static constexpr int kSize = kWarpRows ? kWarpSize : kThreads;
  const int thread = static_cast<int>(threadIdx.x) % kSize;
  const std::int64_t row =
      kWarpRows ? static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize : blockIdx.x;

  // Memory for `count` elements of the row.
  __device__ __forceinline__ float* values(std::int64_t count) const {
    float* shared = reinterpret_cast<float*>(dynamic_shared());
    return kWarpRows ? shared + static_cast<int>(threadIdx.x) / kWarpSize * static_cast<int>(count)
                     : shared + kMailFloats;
  }
  __device__ __forceinline__ void wait() const {
    if constexpr (kWarpRows)
      __syncwarp();
    else
      __syncthreads();
  }
  // Returns the factor of the row for all threads. get(i) is element i.
  template <int kUnroll, class Index, class Get>
  __device__ __forceinline__ float factor(Index count, float eps, const Get& get) const {
    float* mail = reinterpret_cast<float*>(dynamic_shared());
    float result = 0.0f;
    if (thread < kWarpSize) {
      float sum = 0.0f;
#pragma unroll kUnroll
      for (Index i = thread; i < count; i += kWarpSize) {
        const float value = get(i);
        sum = numerics::fma_once(value, value, sum);
      }
      result = numerics::norm_factor(warp_sum(sum), count, eps);
      if (!kWarpRows && thread == 0) mail[0] = result;
    }
    if constexpr (kWarpRows) return result;
    __syncthreads();
    return mail[0];
  }
};

// Rows of one dtype that lie in whole vectors; strides are in bytes.
struct VectorRows {
  char* data;  // null for none
  std::int64_t stride;
};

struct NormVectors {
  VectorRows x, y, residual;
  const char* weight;  // null for none
  std::int64_t rows;
  int count;
  float eps, offset, multiplier;
  bool wide_weight, round_normalized, normalize;  // wide_weight: it is fp32, otherwise it has the rows' dtype
};

constexpr int kVector = 8;

// A vector of the weight, which is widened only when it is used: until then its load is under way.
template <DType kDType>
class WeightVector {
 public:
  __device__ __forceinline__ void load(const NormVectors& a, int vector) {
    const auto* from = reinterpret_cast<const uint4*>(a.weight) + (a.wide_weight ? kWideVectors : kVectors) * vector;
#pragma unroll
    for (int i = 0; i < kWideVectors; ++i) {
      if (i >= kVectors && !a.wide_weight) break;
      const uint4 four = from[i];
      words_[4 * i] = four.x, words_[4 * i + 1] = four.y, words_[4 * i + 2] = four.z, words_[4 * i + 3] = four.w;
    }
  }
  __device__ __forceinline__ void widen(const NormVectors& a, float (&weight)[kVector]) const {
    if (a.wide_weight) {
      Elements<DType::f32, kVector> wide;
      wide.take(words_);
      wide.widen(weight);
    } else {
      Elements<kDType, kVector> narrow;
      narrow.take(words_);
      narrow.widen(weight);
    }
  }

 private:
  static constexpr int kVectors = Elements<kDType, kVector>::kWords / 4;
  static constexpr int kWideVectors = Elements<DType::f32, kVector>::kWords / 4;
  std::uint32_t words_[4 * kWideVectors];
};

// A row on its way: x, with the residual if there is one, in shared memory, and the factor of its norm.
template <DType kDType, bool kWarpRows>
class NormRowVectors {
 public:
  using Some = Elements<kDType, kVector>;
  const int vectors;

  __device__ __forceinline__ NormRowVectors(const NormVectors& a, const RowTeam<kWarpRows>& team)
      : vectors(a.count / kVector),
        a_(a),
        team_(team),
        values_(team.values(a.count)),
        has_weight_(a.weight && a.normalize) {
    if (has_weight_ && team.thread < vectors) next_weight_.load(a, team.thread);
    load();
    team.wait();
    if (a.normalize) factor_ = team.template factor<16>(a.count, a.eps, [&](int i) { return values_[i]; });
  }

  // Returns vector v of the result. A thread asks for its vectors in order.
  __device__ __forceinline__ Some normalized(int v) {
    Elements<DType::f32, kVector> kept;
    Some y;
    float row[kVector];
    kept.load(reinterpret_cast<const char*>(values_ + v * kVector));
    kept.widen(row);
#pragma unroll
    for (float& value : row) value *= factor_;
    if (a_.round_normalized) {
      y.narrow(row);
      y.widen(row);
    }
    if (has_weight_) {
      float weight[kVector];
      next_weight_.widen(a_, weight);
#pragma unroll
      for (int i = 0; i < kVector; ++i) row[i] *= a_.offset != 0.0f ? weight[i] + a_.offset : weight[i];
      if (v + team_.kSize < vectors) next_weight_.load(a_, v + team_.kSize);
    }
    y.narrow(row);
    return y;
  }

  // The memory of vector v, which nothing needs any more.
  __device__ __forceinline__ char* place(int v) const { return reinterpret_cast<char*>(values_ + v * kVector); }

 private:
  __device__ __forceinline__ void load() {
    const NormVectors& a = a_;
    const RowTeam<kWarpRows>& team = team_;
    float* values = values_;
#pragma unroll 1
    for (int v = team.thread; v < vectors; v += team.kSize) {
      Some x, residual;
      float row[kVector];
      char* residual_at = a.residual.data + team.row * a.residual.stride + v * Some::kBytes;
      x.load(a.x.data + team.row * a.x.stride + v * Some::kBytes);
      if (a.residual.data) residual.load(residual_at);
      x.widen(row);
#pragma unroll
      for (float& value : row) value *= a.multiplier;
      if (a.residual.data) {
        float old[kVector];
        residual.widen(old);
#pragma unroll
        for (int i = 0; i < kVector; ++i) row[i] += old[i];
        residual.narrow(row);
        residual.store(residual_at);
        residual.widen(row);
      }
      Elements<DType::f32, kVector> kept;
      kept.narrow(row);
      kept.store(reinterpret_cast<char*>(values + v * kVector));
    }
  }

  const NormVectors& a_;
  const RowTeam<kWarpRows>& team_;
  float* values_;
  bool has_weight_;
  float factor_ = 1.0f;
  WeightVector<kDType> next_weight_;
};

constexpr std::int64_t kMaxGridY = 65535, kMaxGridX = 0x7fffffff;
constexpr int kPointThreads = 256;           // of kernels that treat each element by itself
constexpr std::int64_t kMaxPairs = 1 << 27;  // elements of a row of pairs: their bytes are counted by ints

inline LaunchShape shape_of(std::int64_t x, std::int64_t y, int threads, int device) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min(x, kMaxGridX)), static_cast<unsigned>(std::min(y, kMaxGridY)));
  shape.block = dim3(static_cast<unsigned>(threads));
  shape.overlap = compute_capability(device) >= 90;
  return shape;
}

// `kept` says whether a row is kept in shared memory.
inline LaunchShape norm_shape(const NormProblem& p, bool by_warps, bool kept) {
  LaunchShape shape = shape_of(by_warps ? ceil_div(p.rows, kWarps) : p.rows, 1, kThreads, p.device.index);
  const std::int64_t floats = by_warps ? kWarps * p.count : (kept ? p.count : 0) + kMailFloats;
  shape.shared_bytes = static_cast<std::size_t>(floats) * sizeof(float);
  return shape;
}

// Whether the rows of a view lie evenly and in pieces of `bytes`; `rows` is then where.
inline bool in_pieces(const RowView& view, DType dtype, std::int64_t bytes, VectorRows& rows) {
  const std::int64_t stride = view.leading > 0 ? view.strides[0] * item_size(view.dtype) : 0;
  rows = {static_cast<char*>(const_cast<void*>(view.data)), stride};
  return !view.data || (view.dtype == dtype && view.leading <= 1 && view.column_stride == 1 && stride % bytes == 0 &&
                        reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) == 0);
}

inline bool in_vectors(const NormProblem& p, NormVectors& a) {
  constexpr std::int64_t kBytes = 16;
  a.weight = p.weight.rank ? static_cast<const char*>(p.weight.data) : nullptr;
  a.rows = p.rows;
  a.count = static_cast<int>(p.count);
  a.eps = p.eps;
  a.offset = p.offset;
  a.multiplier = p.multiplier;
  a.wide_weight = p.weight.dtype == DType::f32;
  a.round_normalized = p.round_normalized;
  a.normalize = p.normalize;
  const bool weight = !a.weight || ((a.wide_weight || p.weight.dtype == p.x.dtype) && p.weight.strides[0] == 1 &&
                                    reinterpret_cast<std::uintptr_t>(a.weight) % kBytes == 0);
  return weight && p.count % kVector == 0 && p.count <= kMaxSharedRow && in_pieces(p.x, p.x.dtype, kBytes, a.x) &&
         in_pieces(p.y, p.x.dtype, kBytes, a.y) && in_pieces(p.residual, p.x.dtype, kBytes, a.residual);
}

}  // namespace qcore
