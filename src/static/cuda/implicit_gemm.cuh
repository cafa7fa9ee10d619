#pragma once

#include "gemm/cuda/window/window_tile.cuh"
#include "static/cuda/kernels.h"
#include "static/cuda/requantized_channels.cuh"

// Arguments of the products on tensor cores of sm_75 and of sm_90, which compute y = requantize(start + sum of x * w).
namespace qcore::static_gemm {

constexpr int kChunk = 32;  // bytes of a pixel that a product takes

struct Arguments {
  const std::int8_t* words;  // of StaticLayer: [groups, panels, taps, steps, 16, 4]
  std::int64_t n, panels;    // of one group
  std::int64_t steps;        // of one tap
  int groups, parts;         // the window's taps come `parts` times

  const std::int8_t* x;     // pixels at multiples of 16 bytes
  std::int64_t group_step;  // from group to group of a pixel
  int depth;                // bytes of a group of a pixel, a multiple of kChunk; those behind K count nothing
  bool x_signed;
  std::uint32_t zero;                // four codes of the real value 0: what padding is
  DeviceWindow window;               // steps in bytes of x
  std::int64_t first_image, images;  // of which x has so many

  ImageView y;
  FirstResult first;
  int results;
  Requantization requantization;
  std::int64_t enough_tiles;
  bool overlap;  // with the kernel in front of it: see LaunchShape

  __host__ __device__ int taps() const { return parts * window.kernel[0] * window.kernel[1]; }
};

// Launches the product of one part of a problem.
using Product = void (*)(const Arguments& a, cudaStream_t stream);

// Calls it for all parts of a problem that sm75_int8_implicit_gemm takes. Pixels that do not lie as Arguments::x has
// them are copied first.
void for_each_launch(const StaticProblem& problem, const StaticBounds& bounds, Product product);

}  // namespace qcore::static_gemm
