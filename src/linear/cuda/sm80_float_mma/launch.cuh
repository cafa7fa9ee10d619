#pragma once

#include "gemm/cuda/sm80_float_mma/arguments.cuh"

namespace qcore::sm80_float_mma {

// Few rows: as many thread blocks as there are groups of 32 columns, with K spread over the warps. Many rows: the
// larger a tile, the fewer bytes of the second-level cache per operation.
enum class Size { rows8, rows16, medium, large };

struct Tuning {
  static constexpr Shape shape(Size size, int planes) {
    switch (size) {
      case Size::rows8:
        return {1, 1, 8, 1, 1, 8};
      case Size::rows16:
        return {1, 1, 8, 1, 2, 8};
      case Size::medium:
        return {2, 2, 2, 1, 4, planes == 1 ? 4 : 2};
      default:
        return {2, 4, 1, 2, 4, 2};
    }
  }
  static constexpr int blocks_per_sm(Size size, int planes) {
    return planes == 1 && (size == Size::rows8 || size == Size::rows16) ? 2 : 1;
  }
  static constexpr std::int64_t kMaxFewRows = 32;   // in tiles of 8 or 16 rows
  static constexpr std::int64_t kEnoughTiles = 96;  // with fewer large tiles than this, medium ones
};

// y = act(x W^T + bias). Needs sm_80.
void run_f16(const Arguments& arguments, cudaStream_t stream);
void run_bf16(const Arguments& arguments, cudaStream_t stream);
void run_f32(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm80_float_mma
