#pragma once

#include <cstdint>

#include "formats/row_view.h"
#include "qcore/decoder.h"

// Validated calls of the decoder's operators, as every kernel sees them.
namespace qcore {

struct NormProblem {
  RowView x;          // [rows, count]
  RowView y;          // likewise; written to through const_cast in one place, store_row()
  RowView residual;   // likewise, read and written; data null if there is none
  TensorView weight;  // [count], rank 0 if there is none
  std::int64_t rows = 0, count = 0;
  float eps = 0.0f, offset = 0.0f;
  float multiplier = 1.0f;  // of x before it is added to the residual, or normalized
  bool round_normalized = false;
  bool normalize = true;  // false: y is the sum of x and the residual
  Device device;
  void* stream = nullptr;
};

struct RotaryProblem {
  TensorView x, y;       // [B, T, heads, D]
  TensorView positions;  // int32 [B, T]
  TensorView cos, sin;   // fp32 [P, R]
  RotaryLayout layout = RotaryLayout::halves;
  Device device;
  void* stream = nullptr;
};

struct GateProblem {
  RowView x;  // [rows, 2 * count]
  RowView y;  // [rows, count]
  std::int64_t rows = 0, count = 0;
  GateActivation activation = GateActivation::silu;
  Device device;
  void* stream = nullptr;
};

struct CapProblem {
  RowView x, y;  // [rows, count]
  std::int64_t rows = 0, count = 0;
  float multiplier = 1.0f, soft_cap = 0.0f;
  Device device;
  void* stream = nullptr;
};

struct CacheProblem {
  TensorView keys, values;  // [B, T, Hkv, D]
  TensorView past;          // int32 [B]
  KeyValueCache cache;
  Device device;
  void* stream = nullptr;
};

struct AttentionProblem {
  TensorView q, y;   // [B, T, Hq, D]
  TensorView past;   // int32 [B]
  TensorView first;  // int32 [B], rank 0 for zeros
  KeyValueCache cache;
  float scale = 1.0f, soft_cap = 0.0f;
  std::int64_t window = 0;
  std::int64_t max_length = 0;  // at least 1
  Device device;
  void* stream = nullptr;
};

// Prepares the heads of T tokens between the product for Q, K and V and attention: the norms of Q and K, their
// rotation, and the writing of K and V to the cache, with the bits of the single operators. Q is written in place;
// the contents of the arrays K and V are unspecified afterwards.
struct HeadsProblem {
  TensorView q, k, v;         // [B, T, heads, D]
  TensorView q_norm, k_norm;  // fp32 [D], rank 0 for none
  float eps = 0.0f;
  bool round_normalized = false;
  bool rotate = false;
  TensorView positions, cos, sin;
  RotaryLayout layout = RotaryLayout::halves;
  TensorView past;
  KeyValueCache cache;
  Device device;
  void* stream = nullptr;
};
// One element of an int32 array [B] or [B, T].
inline std::int64_t load_index(const TensorView& view, std::int64_t i, std::int64_t j = 0) {
  return static_cast<const std::int32_t*>(view.data)[i * view.strides[0] + (view.rank > 1 ? j * view.strides[1] : 0)];
}

}  // namespace qcore
