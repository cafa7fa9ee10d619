#pragma once

#include <cstdint>

// How a layer lies on a device.
//
// Codes of up to 8 bits are one plane of signed bytes; wider ones are two, v = 256 * high + low, high signed and low
// unsigned. Products of planes are products of bytes on tensor cores, without a correction.
namespace qcore {

constexpr int kGruRows = 16;   // of a product on tensor cores
constexpr int kGruStepK = 64;  // of two of them, one 16-byte load per lane and row

// Bytes of k of a row of inputs, and channels of a gate, with their padding.
constexpr std::int64_t gru_row_bytes(std::int64_t features) {
  return (features + kGruStepK - 1) / kGruStepK * kGruStepK;
}
constexpr std::int64_t gru_channels(std::int64_t size) { return (size + kGruRows - 1) / kGruRows * kGruRows; }
constexpr int gru_planes(int bits) { return bits <= 8 ? 1 : 2; }

// Codes in one or two bytes each; value = (entry ^ sign) - sign.
struct GruDeviceTable {
  const void* entries;
  int entry_bytes;
  std::int32_t sign;
};

// Arrays over channels are [3, gru_channels(H)], gate order z, r, g; padding is 0.
//
// Weights are the first operand of m16n8k32 as it lies in registers: [tile, plane, step of 64 k, 2, lane] of 16 bytes,
// where tile 3 * i + gate holds channels 16 * i .. of the gate, and
//
//   [.., half, lane]   row lane / 4 + 8 * half, k 16 * (lane % 4) .. of the step
//
// whose words 2 * m and 2 * m + 1 are a[half] and a[half + 2] of the step's product m. Inputs whose lane loads the same
// k of its column need no permutation.
struct GruDeviceArrays {
  const void *w, *r;
  const std::int64_t *wx_offsets, *rh_offsets;
  const std::int32_t *wx_shifts, *rh_shifts;
  const std::int64_t* biases[4];  // [gru_channels(H)] each, z, r, g, rb; null in the fused pipeline
  const std::int32_t* tables[3];
  GruDeviceTable small_tables[3];  // the same codes
};

}  // namespace qcore
