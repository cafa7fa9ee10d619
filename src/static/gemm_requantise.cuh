#pragma once

#include "cuda/window.cuh"
#include "formats/image_view.h"
#include "static/requantised_channels.cuh"

namespace qcore::static_gemm {

// Where a GEMM's results lie: pixels of y.
struct ResultPixels {
  ImageView y;
  // If pixels follow each other at one distance, y begins with the first result and this is that distance.
  bool evenly_spaced;
  std::int64_t step;
  // Otherwise results are found by their window.
  DeviceWindow window;
  FirstResult first;

  __device__ std::uint8_t* of(int result) const {
    auto* data = static_cast<std::uint8_t*>(const_cast<void*>(y.data));
    if (evenly_spaced) return data + result * step;
    const ResultPlace place(window, first, result);
    return data + y.offset(place.image, 0, place.row, place.column);
  }
};

// y = requantize(start + a b^T), made where the products are: no sum is stored.
// Pointers and row lengths of a and b are multiples of 16 bytes, as is k; b has `columns` rows, a multiple of 16, of
// which n count.
struct RequantisingGemm {
  static constexpr int kMostK = 1 << 16;           // 255 * 128 * k fits in int32: nothing saturates
  static constexpr int kMostColumns = 65535 * 64;  // a grid's second axis takes as many tiles

  int m, columns, k;
  const std::int8_t* a;  // [M, K], rows lda apart
  std::int64_t lda;
  bool a_signed;
  const std::int8_t* b;  // [columns, K], rows ldb apart, signed
  std::int64_t ldb;

  std::int64_t n;
  Requantisation requantisation;
  ResultPixels results;
  std::int64_t enough_tiles;  // with fewer large ones, small tiles
};

// CUTLASS on tensor cores; see cuda/gemm_int8.cuh for why there are two.
void gemm_requantise_sm75(const RequantisingGemm& gemm, cudaStream_t stream);
void gemm_requantise_sm80(const RequantisingGemm& gemm, cudaStream_t stream);

}  // namespace qcore::static_gemm
