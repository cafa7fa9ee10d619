#pragma once

#include "formats/compute_mode.h"
#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/window/depthwise_strips.cuh"
#include "numerics/block_product.h"
#include "numerics/lanes.h"
#include "numerics/single_block.h"

// Holds the arguments and the arithmetic that both forms of conv2d's depthwise kernel use: run.cu and
// square_window.cuh.
namespace qcore::conv2d_depthwise {

using depthwise::kPixels;
using depthwise::kSlide;
constexpr int kChannels = 2;  // more of them in a thread would be too few threads for small images

struct Arguments {
  DeviceWeight w;
  DeviceOutput out;
  ImageView x, y;
  bool reads_together;
  bool square;  // square_window.cuh takes the call
  ComputeMode compute;
  int mode;                        // of numerics/activation_block.h
  float largest_code, reciprocal;  // numerics::activation_highest() and 1 / it
  depthwise::Strips strips;
};

// Whether quotient() gives the value's scale.
__device__ __forceinline__ bool has_exact_quotient(float x) {
  const std::uint32_t bits = numerics::magnitude_bits(x);
  return bits == 0 || (bits >= numerics::kSmallestExactBits && bits < numerics::kInfinityBits);
}
// Out of line: a copy for each value would be most of the kernel.
inline __device__ __attribute__((noinline)) float signed_scale(float x, int mode) {
  return numerics::signed_scale(x, mode);
}
__device__ __forceinline__ float any_scale(float x, const Arguments& a) {
  return has_exact_quotient(x) ? numerics::quotient<numerics::ScalarLanes>(x, -a.largest_code, a.reciprocal)
                               : signed_scale(x, a.mode);
}

// Terms that a tap adds beside the product of factor and weight.
enum class Terms { scaled, with_offsets, rounded_products };

// Out of line for the same reason.
inline __device__ __attribute__((noinline)) float activated(float y, FusedActivation activation) {
  return activate(y, activation);
}

}  // namespace qcore::conv2d_depthwise
