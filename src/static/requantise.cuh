#pragma once

#include "static/static_gemm.cuh"

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
  std::uint32_t flip;  // what four codes are xored with: 0x80808080 makes x - 128 of unsigned ones
  int depth;           // a multiple of 16; bytes behind k count nothing
  std::int8_t* to;     // [results, depth]
};
void pack_rows(const RowPacking& packing, cudaStream_t stream);

struct Requantising {
  const std::int32_t* sums;  // [results, columns] of x - shift, or of x itself
  std::int64_t columns;      // n rounded up to whole panels
  const std::int32_t* weight_sums;
  std::int32_t shift;
  std::int64_t n;
  DeviceWindow window;
  FirstResult first;
  int results;
  ImageView y;
  Requantisation requantisation;
};
void requantise(const Requantising& requantising, cudaStream_t stream);

}  // namespace qcore::static_gemm
