#pragma once

#include <cstdint>

#include "gru/gru_storage.h"
#include "qcore/tensor_view.h"

namespace qcore {

// Size of GruRun::trace for a step and row, in units of H.
constexpr int kTraceTensors = 17;

// One run over all steps. x, y, h0 and last are each either codes (int8 where the format has at most 8 bits, else
// int16) or numbers (fp32, fp16, bf16), which are rounded to codes first or made of codes last. Strides are in
// elements.
struct GruProblem {
  const GruStorage* gru = nullptr;
  std::int64_t steps = 0, batch = 0;  // T, B
  TensorView x, y;                    // [T, B, C], [T, B, H]
  TensorView h0, last;                // [B, H]; data null for none
  TensorView lengths, gates;          // int32 [B], int32 [T, B, 4H]; data null for none
  TensorView trace;                   // int32 [T, B, 17H]; data null for none. Only the reference has it
  bool reverse = false;
  Device device;
  void* stream = nullptr;
};

}  // namespace qcore
