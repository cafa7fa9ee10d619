#pragma once

#include "formats/image_view.h"
#include "gemm/cuda/sm80_int8_mma/stage.cuh"
#include "gemm/cuda/window.cuh"

// Integer activations under a window: the tiles of linear's fused kernel, whose rows of codes are pixels that change
// from tap to tap. The operations and their order are the reference's; where a tap lies in the padding, zeros are
// added.
namespace qcore::sm80_int8_implicit_gemm {

struct Arguments : sm80_int8_mma::Arguments {  // x: pixels of whole images; first_row: of the results in out.y
  DeviceWindow window;                         // steps in rows of x
  ImageView y;                                 // out.y again
  std::int64_t first_image;                    // of x, counted in out.y
  FirstResult first;                           // first_row again
  int results;                                 // of this launch
  std::int64_t groups;
};

// Needs sm_80, and with several groups whole panels in each.
void run(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm80_int8_implicit_gemm
