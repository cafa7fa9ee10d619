#pragma once

#include "cuda/window.cuh"
#include "formats/image_view.h"

namespace qcore::static_gemm {

// Weights of one group and one tap as rows for a GEMM.
struct Unpacking {
  const std::uint32_t* words;  // of StaticLayer: [panels, steps, 16]
  std::int64_t rows;           // panels * 16
  int steps;
  std::int8_t* to;  // [rows, depth], zeros behind the last step
  int depth;
};
void unpack(const Unpacking& unpacking, cudaStream_t stream);

// The pixels of results under a 1x1 window of stride 1, as rows for a GEMM.
struct RowPacking {
  ImageView x;
  DeviceWindow window;
  FirstResult first;
  int results;
  std::int64_t k;
  int depth;        // a multiple of 16; bytes behind k count nothing
  std::int8_t* to;  // [results, depth]
};
void pack_rows(const RowPacking& packing, cudaStream_t stream);

}  // namespace qcore::static_gemm
