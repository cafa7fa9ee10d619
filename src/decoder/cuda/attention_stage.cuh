#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "decoder/cuda/elements.cuh"

// Elements of a cache on their way through shared memory, where they keep their dtype: each is read by one thread.
namespace qcore {

// A warp-uniform copy of rows of bytes from a cache to shared memory in two steps, so that loads of the next rows are
// under way while these are computed with. Row r is `row_bytes` long and lies at `global + r * stride`; rows before
// `begin` and from `end` on become zeros and are not read.
//
// kVectors is the number of 16-byte vectors that a thread holds between the steps.
template <int kThreads, int kVectors>
class RowStage {
 public:
  // `row_bytes` is a multiple of 16 and everything is aligned to 16, if `vectors`.
  __device__ __forceinline__ explicit RowStage(bool vectors) : vectors_(vectors) {}

  __device__ __forceinline__ void load(const char* global, std::int64_t stride, int row_bytes, int rows, int begin,
                                       int end) {
    if (!vectors_) {
      global_ = global;
      stride_ = stride;
    }
    row_bytes_ = row_bytes;
    rows_ = rows;
    begin_ = begin;
    end_ = end;
    if (!vectors_) return;
    Place place(row_bytes);
#pragma unroll
    for (int v = 0; v < kVectors; ++v, place.advance()) {
      held_[v].x = held_[v].y = held_[v].z = held_[v].w = 0;
      if (place.row >= rows || place.row < begin || place.row >= end) continue;
      held_[v] = *reinterpret_cast<const uint4*>(global + place.row * stride + place.vector * 16);
    }
  }

  // Writes the rows to `shared + r * pitch`, pitch a multiple of 4.
  __device__ __forceinline__ void store(char* shared, int pitch) {
    if (vectors_) {
      Place place(row_bytes_);
#pragma unroll
      for (int v = 0; v < kVectors; ++v, place.advance()) {
        if (place.row >= rows_) continue;
        auto* to = reinterpret_cast<std::uint32_t*>(shared + place.row * pitch + place.vector * 16);
        to[0] = held_[v].x, to[1] = held_[v].y, to[2] = held_[v].z, to[3] = held_[v].w;
      }
      return;
    }
    const int count = rows_ * row_bytes_;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const int row = i / row_bytes_, byte = i - row * row_bytes_;
      shared[row * pitch + byte] = row < begin_ || row >= end_ ? 0 : global_[row * stride_ + byte];
    }
  }

 private:
  // The vectors of a thread, kThreads apart, without a division for each.
  struct Place {
    int row, vector;
    const int per_row, row_step, vector_step;
    __device__ __forceinline__ explicit Place(int row_bytes)
        : per_row(row_bytes / 16), row_step(kThreads / per_row), vector_step(kThreads - row_step * per_row) {
      row = static_cast<int>(threadIdx.x) / per_row;
      vector = static_cast<int>(threadIdx.x) - row * per_row;
    }
    __device__ __forceinline__ void advance() {
      row += row_step;
      vector += vector_step;
      if (vector >= per_row) {
        vector -= per_row;
        ++row;
      }
    }
  };

  const bool vectors_;
  const char* global_ = nullptr;
  std::int64_t stride_ = 0;
  int row_bytes_ = 0, rows_ = 0, begin_ = 0, end_ = 0;
  uint4 held_[kVectors];
};

}  // namespace qcore
