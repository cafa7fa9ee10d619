#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "formats/image_view.h"
#include "gemm/cuda/window.cuh"
#include "static/cuda/requantized_channels.cuh"

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
  std::uint32_t zero;   // four codes of the real value 0: what padding is
  DeviceWindow window;  // steps in bytes of x
  std::int64_t first_image;

  ImageView y;
  FirstResult first;
  int results;
  Requantization requantization;
  std::int64_t enough_tiles;
};

// y = requantize(start + sum of x * w).
void run(const Arguments& arguments, cudaStream_t stream);

struct Packing {
  ImageView x;
  int batch, rows, columns, groups;
  std::int64_t k;   // channels of a group
  int depth;        // bytes of a row: k rounded up
  std::int8_t* to;  // [batch, rows, columns, groups, depth]
};

// Pixels of any strides, as Arguments::x takes them.
void pack(const Packing& packing, cudaStream_t stream);

}  // namespace qcore::static_gemm
