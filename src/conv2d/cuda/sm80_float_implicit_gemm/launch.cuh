#pragma once

#include "formats/image_view.h"
#include "gemm/cuda/sm80_float_mma/arguments.cuh"
#include "gemm/cuda/window.cuh"

// Float activations under a window: the tiles of float_mma, whose rows of activations are pixels that change from tap
// to tap. Where a tap lies in the padding, zeros are multiplied.
namespace qcore::sm80_float_implicit_gemm {

struct Arguments : sm80_float_mma::Arguments {  // x: pixels; first_row: of the results in out.y
  DeviceWindow window;                          // steps in units of x
  ImageView y;                                  // out.y again
  std::int64_t group_units;                     // from group to group of a pixel
  std::int64_t first_image;                     // of x, counted in out.y
  FirstResult first;                            // first_row again
  int results;                                  // of this launch
  std::int64_t groups;
};

// A few results take tiles whose depth is spread over the warps of a thread block.
enum class Size { small, medium, large };

struct Tuning {
  static constexpr sm80_float_mma::Shape shape(Size size) {
    switch (size) {
      case Size::small:
        return {1, 1, 8, 1, 2, 8};
      case Size::medium:
        return {2, 2, 2, 1, 4, 2};
      default:
        return {2, 4, 1, 2, 4, 1};
    }
  }
  static constexpr int blocks_per_sm(Size size, int planes) { return size == Size::small && planes == 1 ? 2 : 1; }
};

// Needs sm_80, and with several groups whole panels in each.
void run_f16(const Arguments& arguments, cudaStream_t stream);
void run_bf16(const Arguments& arguments, cudaStream_t stream);
void run_f32(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm80_float_implicit_gemm
