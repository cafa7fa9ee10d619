#pragma once

#include <cstdint>

#include "numerics/recurrent/lanes.h"
#include "recurrent/code_access.h"

// How a layer lies on a device.
//
// Codes of up to 8 bits are one plane of signed bytes; wider ones are two, v = 256 * high + low, high signed and low
// unsigned. Products of planes are products of bytes on tensor cores, without a correction.
namespace qcore {

constexpr int kTileRows = 16;   // of a product on tensor cores
constexpr int kStepK = 64;      // of two of them, one 16-byte load per lane and row
constexpr int kInputTiles = 3;  // tiles of W that a warp multiplies by its inputs

// Bytes of k of a row of inputs, and channels of a gate, with their padding.
constexpr std::int64_t row_bytes_of(std::int64_t features) { return (features + kStepK - 1) / kStepK * kStepK; }
constexpr std::int64_t padded_channels(std::int64_t size) { return (size + kTileRows - 1) / kTileRows * kTileRows; }
constexpr int planes_of(int bits) { return bits <= 8 ? 1 : 2; }

constexpr int kMaxBiases = 4, kMaxTables = 5;

// Codes in one or two bytes each; value = (entry ^ sign) - sign.
struct RecurrentDeviceTable {
  const void* entries;
  int entry_bytes;
  std::int32_t sign;
};

// Arrays over channels are [gates, padded_channels(H)], gates in the cell's order; padding is 0.
//
// Weights are the first operand of m16n8k32 as it lies in registers: [tile, plane, step of 64 k, 2, lane] of 16 bytes,
// where tile gates * i + gate holds channels 16 * i .. of the gate (zeros follow up to a multiple of kInputTiles), and
//
//   [.., half, lane]   row lane / 4 + 8 * half, k 16 * (lane % 4) .. of the step
//
// whose words 2 * m and 2 * m + 1 are a[half] and a[half + 2] of the step's product m. Inputs whose lane loads the same
// k of its column need no permutation.
struct RecurrentDeviceArrays {
  const void *w, *r;
  const std::int64_t *wx_offsets, *rh_offsets;
  const std::int32_t *wx_shifts, *rh_shifts;
  const std::int64_t* biases[kMaxBiases];  // [padded_channels(H)] each; null where the sums of the products have them
  const std::int32_t* tables[kMaxTables];  // in the cell's order
  RecurrentDeviceTable small_tables[kMaxTables];  // the same codes
};

// The sizes and formats of a layer, which all kernels take.
struct DeviceLayer {
  std::int64_t input_size, hidden_size;  // C, H
  int gates, weight_planes, input_planes, state_planes;
  bool has_cell;  // a state c beside h
  CodeFormat x, h, c;
  numerics::CodeRange wx;
};

}  // namespace qcore
