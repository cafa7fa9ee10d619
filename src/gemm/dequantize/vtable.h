#pragma once

#include <cstdint>

// Declares what an instruction set provides for dequantizing. Included by files for one instruction set.
namespace qcore {

// Blocks of one row, whose values are neighbors. Codes lie in words of 32 bits as in PackedLayout.
struct DequantizeRun {
  const std::uint8_t* codes;             // the first block's first word
  std::int64_t word_bytes, block_bytes;  // from word to word of a block, from block to block
  int bits;                              // 4 or 8
  std::int64_t block_size, count;        // values of a block and of all, the last block's among them
  const float *scales, *offsets;         // one for each block
  bool past_cache;                       // y is larger than the caches: its lines need not be read first, nor kept
};

// numerics::decode of each code, to contiguous values.
struct DequantizeKernels {
  void (*to_float)(const DequantizeRun& run, float* y);
  void (*to_half)(const DequantizeRun& run, std::uint16_t* y);
  void (*to_bfloat)(const DequantizeRun& run, std::uint16_t* y);
  void (*fence)();  // called by a thread after runs past the caches; null: there are none
};

extern const DequantizeKernels kDequantizeAvx2;
extern const DequantizeKernels kDequantizeAvx512;
extern const DequantizeKernels kDequantizeNeon;
extern const DequantizeKernels kDequantizeGeneric128;

}  // namespace qcore
