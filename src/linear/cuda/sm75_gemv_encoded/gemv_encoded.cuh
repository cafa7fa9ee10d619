#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/encoded/parameter_column.cuh"
#include "gemm/cuda/quantize_activations.cuh"
#include "linear/cuda/sm75_gemv/quantize_block.cuh"

// Few rows of x by an encoded weight. A block of threads computes y for two panels, 32 columns n. A warp takes spans of
// 128 k in rounds: their codes are copied into shared memory some rounds ahead, as they lie, and become operands of
// ptx::mma_u8s8 in registers. The exact sums and the blocks' scales of a round go through shared memory to one thread
// per output, which adds them to y block after block, in the order that the reference has.
namespace qcore::gemv_encoded {

constexpr int kMaxRows = 8;  // of a launch
constexpr int kColumns = 2 * PackedLayout::kPanelRows;
constexpr int kChunk = 32;  // k of one step of a warp: a group of the codes' planes
constexpr int kSpanChunks = 4, kSpan = kSpanChunks * kChunk;
constexpr int kMinWarps = kMaxRows, kMaxWarps = 16;  // of a thread block: one for each row at least, who adds its sums
constexpr int kMaxFeatures = 1 << 20;

// Spans of a warp that are in shared memory or on their way there. More of them delay x, whose loads wait behind them.
constexpr int kStages = 2;
constexpr int span_bytes(int bits) { return kColumns * kSpan * bits / 8; }

// Scales or offsets of the weight, see EncodedParameters.
struct Parameters {
  ParameterType type;
  const std::uint8_t* data;
  const std::uint16_t* super;
  int panel_bytes, super_bytes;  // of a panel
  int data_at, super_at;         // the copies of two panels in shared memory; -1: they are read where they are
};

// Dynamic shared memory, in bytes.
struct SharedLayout {
  // Where the arrays of x lie that is quantized here: scales [rows, scale_stride], sums of codes [P, rows], and the
  // products of both [rows, scale_stride].
  int x_scales_at, sums_at, scaled_sums_at;
  int slots_at;  // [2][slots / 4][lines][32][4] words
  int lines;     // of a slot: a sum for each row, scales, offsets, sums of the weight's codes
  int bytes;
};

struct Arguments {
  const std::uint8_t* codes;
  std::int64_t code_panel_bytes, n, panels;
  int k, blocks, block_size;
  int zero;                   // of the stored codes; a codebook's entries have 128 added
  std::uint32_t codebook[4];  // 16 bytes
  ParameterForm form;
  Parameters scales, offsets;
  DeviceOutput out;
  std::int64_t y_at[kMaxRows];  // out.y.row_offset()
  int rows;
  bool activation_offsets;
  // x: quantized by every thread block, or before. "Shifts" of either are the sums of a block's codes.
  RowQuantizer quantizer;
  QuantizedRows<std::int8_t> x;
  int row_codes;
  // The schedule.
  int warps, spans;  // kSpan k each, of a row
  int span_blocks;   // blocks of a span; 1 where a block has spans
  int block_spans;   // spans of a block; 1 where a span has blocks
  SharedLayout shared;
};

// `quantizes`: x is a.quantizer's. `overlap`: the device has compute capability 9.0.
void run(const Arguments& a, int bits, bool codebook, bool quantizes, bool overlap, cudaStream_t stream);

}  // namespace qcore::gemv_encoded
