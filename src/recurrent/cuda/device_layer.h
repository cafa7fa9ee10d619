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

constexpr int kMaxVectors = 4, kMaxTables = 5;

// Neighboring entries of a table: entry i is (base + i * slope) >> kLineBits.
struct alignas(8) TableLine {
  std::int32_t base, slope;
};
constexpr int kLineBits = 14;  // lines stay in int32

// A table as lines, 2^shift entries on each (line_table.h).
struct RecurrentDeviceTable {
  const TableLine* lines;
  int count, shift;
};

// One product's rows of weights [gates, outputs], outputs padded by padded_channels(); padding is 0. A row's sum is
// added to its offset and shifted.
//
// Weights are the first operand of m16n8k32 as it lies in registers: [tile, plane, step of 64 k, 2, lane] of 16 bytes,
// where tile gates * i + gate holds outputs 16 * i .. of the gate (zeros follow up to a multiple of kInputTiles), and
//
//   [.., half, lane]   row lane / 4 + 8 * half, k 16 * (lane % 4) .. of the step
//
// whose words 2 * m and 2 * m + 1 are a[half] and a[half + 2] of the step's product m. Inputs whose lane loads the same
// k of its column need no permutation.
struct DeviceProduct {
  const void* weights;
  const std::int64_t* offsets;
  const std::int32_t* shifts;
};

// Vectors and tables are in the cell's order. Vectors have [padded_channels(H)] each and are null where the cell has
// none: the biases of a GRU whose products have not got them, the peepholes of an LSTM.
struct RecurrentDeviceArrays {
  DeviceProduct w, r, second;  // second: of layers with a second product in a step
  const std::int64_t* vectors[kMaxVectors];
  const std::int32_t* tables[kMaxTables];
  RecurrentDeviceTable lines[kMaxTables];  // the same codes
};

// A step's second product, of a GRU that resets the state before R or of an LSTM with a projection: codes of its inputs
// r * h or m, and of its outputs.
struct SecondProduct {
  std::int64_t features = 0, outputs = 0;  // features: 0 without one
  int planes = 0;
  std::int32_t zero = 0;
  numerics::CodeRange range{};
};

// The sizes and formats of a layer, which all kernels take.
struct DeviceLayer {
  std::int64_t input_size, hidden_size, state_size;  // C, H, and the size of h
  int gates, weight_planes, input_planes, state_planes;
  bool has_cell;  // a state c beside h
  CodeFormat x, h, c;
  numerics::CodeRange wx;
  // A step's products and its cell are launches of their own (separate/steps.cuh), R h of as many gates.
  bool separate = false;
  int state_gates = 0;
  numerics::CodeRange rh{};
  SecondProduct second;
};

}  // namespace qcore
