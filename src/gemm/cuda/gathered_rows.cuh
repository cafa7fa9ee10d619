#pragma once

#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/window/window.cuh"
#include "runtime/cuda/ptx.cuh"

// Rows of codes under a window, for tiles that are filled by producers: under each tap a result has the row of another
// pixel. A kernel takes the taps' blocks of a weight as those of one long row, which is how its codes lie.
namespace qcore {

struct GatheredRows {
  DeviceWindow window;  // steps in rows of codes
  FirstResult first;
  std::int64_t first_image;  // whose codes come first
  std::int64_t pixels;       // rows of codes; parameters are [arrays, P, pixels]
  int tap_blocks;            // P: the weight's blocks of one tap, whose parameters serve every tap
  int row_length;            // codes of a row: P times the padded block
};

// The thread's part of copying a tile's rows, kUnits times 16 bytes of each at a time: `kThreads` threads share kRows
// rows, and each copies the same unit of several of them. Padding counts as zeros, and so does what lies behind the
// last tap.
template <int kThreads, int kRows, int kUnits>
class RowGather {
 public:
  static constexpr int kCopies = kRows * kUnits / kThreads;
  static_assert(kThreads % kUnits == 0 && kRows * kUnits % kThreads == 0, "whole copies of rows");

  // `origins` are those of the kRows rows.
  __device__ RowGather(const QuantizedRows<std::int8_t>& x, const GatheredRows& from, const WindowOrigin* origins,
                       int thread)
      : x_(x), from_(from), origins_(origins), unit_(thread % kUnits), first_row_(thread / kUnits) {}

  __device__ int unit() const { return unit_; }
  __device__ int row(int copy) const { return first_row_ + copy * (kThreads / kUnits); }

  // To the first stage of a tile whose origins are there.
  __device__ void begin() {
    k_ = 16 * unit_;
    tap_row_ = tap_column_ = 0;
    find();
    skip_taps();
  }
  __device__ __forceinline__ void next() {
    k_ += 16 * kUnits;
    skip_taps();
  }

  // Row i's unit of codes goes to to(row).
  template <class To>
  __device__ __forceinline__ void copy_codes(const To& to) const {
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      ptx::copy_async(to(row(i)), x_.codes + at(i) * from_.row_length + k_, pixels_[i] >= 0);
  }
  // Parameters of the unit's block go to to(row, array).
  template <class To>
  __device__ __forceinline__ void copy_parameters(int arrays, const To& to) const {
    const std::int64_t p = k_ / static_cast<int>(x_.padded_block);
    for (int array = 0; array < arrays; ++array) {
      const float* from = x_.scales + (array * from_.tap_blocks + p) * from_.pixels;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) ptx::copy_async_word(to(row(i), array), from + at(i), pixels_[i] >= 0);
    }
  }

 private:
  __device__ std::int64_t at(int copy) const { return pixels_[copy] < 0 ? 0 : pixels_[copy]; }
  __device__ __forceinline__ void skip_taps() {
    if (k_ < from_.row_length) return;
    do {
      k_ -= from_.row_length;
      if (++tap_column_ == from_.window.kernel[1]) tap_column_ = 0, ++tap_row_;
    } while (k_ >= from_.row_length);
    find();
  }
  __device__ void find() {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      std::int64_t pixel = 0;
      const bool found =
          tap_row_ < from_.window.kernel[0] && origins_[row(i)].find(from_.window, tap_row_, tap_column_, pixel);
      pixels_[i] = found ? static_cast<int>(pixel) : -1;
    }
  }

  const QuantizedRows<std::int8_t>& x_;
  const GatheredRows& from_;
  const WindowOrigin* origins_;
  int unit_, first_row_;
  int k_ = 0, tap_row_ = 0, tap_column_ = 0;
  int pixels_[kCopies];  // under the tap; -1: none
};

}  // namespace qcore
