#pragma once

#include <cstdint>

#include "qcore/tensor_view.h"

namespace qcore {

// One run over all steps of a layer in one direction. x, y and states are each either codes (int8 where the format has
// at most 8 bits, else int16) or numbers (fp32, fp16, bf16), which are rounded to codes first or made of codes last.
// Strides are in elements.
struct RecurrentProblem {
  std::int64_t steps = 0, batch = 0;  // T, B
  TensorView x, y;                    // [T, B, C], [T, B, S] with S the size of h
  TensorView h0, last;                // [B, S]; data null for none
  TensorView c0, last_cell;           // [B, H], the cell state of layers that have one; data null for none
  TensorView lengths, gates;          // int32 [B], int32 [T, B, ...]; data null for none
  TensorView trace;                   // int32 [T, B, ...]; data null for none. Only the reference has it
  bool reverse = false;
  Device device;
  void* stream = nullptr;
};

}  // namespace qcore
