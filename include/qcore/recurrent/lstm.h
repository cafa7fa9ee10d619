#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "qcore/export.h"
#include "qcore/recurrent/fixed_format.h"
#include "qcore/tensor_view.h"

// A fixed-point LSTM: integer multiply-add, shift, clamp and table look-up only; docs/recurrent/lstm.md defines it.
namespace qcore {

struct LstmFormats {
  FixedFormat x, h, c, wx, rh, i_pre, f_pre, g_pre, o_pre, i, f, g, o, c_tanh;
  FixedFormat m;  // o * tanh(c), with a projection: without one that is h
};

// One layer in one direction. Gate order i, f, g, o along 4H; exponents are per row of 4H.
struct LstmParameters {
  std::int64_t input_size = 0, hidden_size = 0;  // C, H
  std::int64_t projection_size = 0;              // P, torch's proj_size; 0 for none
  ShiftRounding rounding = ShiftRounding::half_away;
  TableKind tables = TableKind::exact;
  LstmFormats formats;
  int weight_bits = 8, bias_bits = 16;                              // of w, r and projection; of b
  std::vector<std::int16_t> w, r;                                   // [4H, C], [4H, S] with S the size of h
  std::vector<std::int32_t> b;                                      // [4H]
  std::vector<std::int32_t> w_exponents, r_exponents, b_exponents;  // [4H]
  // h is the product of these weights and m = o * tanh(c); empty without a projection.
  std::vector<std::int16_t> projection;            // [P, H]
  std::vector<std::int32_t> projection_exponents;  // [P]

  // Peepholes as ONNX has them: what the arguments of i and f get of c, and that of o of the next c, channel by
  // channel. 16 bits; empty for none.
  std::vector<std::int16_t> peepholes;           // [3, H]: i, f, o
  std::vector<std::int32_t> peephole_exponents;  // [3]

  // Size of h and of the outputs: P with a projection, else H.
  std::int64_t state_size() const { return projection_size ? projection_size : hidden_size; }
};

struct LstmStorage;  // src/lstm/storage.h

// States before and after a run; null for zeros, and for what is not wanted. h_last may be the memory of h0, c_last
// that of c0.
struct LstmStates {
  const TensorView *h0 = nullptr, *c0 = nullptr, *h_last = nullptr, *c_last = nullptr;
};

struct LstmRun {
  bool reverse = false;                 // from the last step of each row to its first
  bool batch_first = false;             // x is [B, T, C], y [B, T, H]
  const TensorView* lengths = nullptr;  // int32 [B]: steps of each row; beyond them y is 0 and the states stay
  void* stream = nullptr;
};

// Immutable; copies share storage; safe to use from many threads.
class QCORE_API QuantizedLstm {
 public:
  // Throws ValueError naming what is wrong: an exponent, a shift or a sum that could leave its type, a code out of
  // range.
  static QuantizedLstm make(const LstmParameters& parameters);

  const LstmParameters& parameters() const;

  // Codes of a function for each code of its argument: 0 to 3 are sigmoid or tanh for i, f, g, o, 4 is tanh of c.
  const std::vector<std::int32_t>& table(int index) const;

  // Returns the knots of an interpolated table; none for an exact one.
  const TableKnots& knots(int index) const;

  // x [T, B, C], y [T, B, S], h [B, S] with S = state_size(), c [B, H]. Each is codes, int8 where the format has at
  // most 8 bits, else int16, or fp32, fp16 or bf16: then it is rounded as by quantize_fixed, or made as by
  // dequantize_fixed. Any strides. Throws ValueError for a NaN, an infinity or a code outside its format, TypeError for
  // another dtype, and writes nothing then. On a CUDA device values are not looked at, and a NaN is 0.
  void run(const TensorView& x, const TensorView& y, const LstmStates& states, const LstmRun& options = {}) const;

  // Codes of everything that each step computes, as the reference does it: int32 [T, B, 18H + S], wx and rh, 4H each,
  // then i_pre, f_pre, g_pre, o_pre, i, f, g, o, c, c_tanh, h; with a projection [T, B, 19H + S], m before h. x, h0 and
  // c0 as for run().
  void trace(const TensorView& x, const TensorView* h0, const TensorView* c0, bool reverse,
             const TensorView& trace) const;

  const LstmStorage& storage() const { return *storage_; }

 private:
  explicit QuantizedLstm(std::shared_ptr<const LstmStorage> storage);
  std::shared_ptr<const LstmStorage> storage_;
};

// Layers, each of one or two directions (the second runs from the last step to the first), each layer's outputs the
// next one's inputs. Immutable; copies share storage; safe to use from many threads.
class QCORE_API LstmStack {
 public:
  // Layer by layer, directions side by side. Throws ValueError if sizes do not fit together, or formats: h and c of
  // both directions, and x with the h of the layer before, are the same. `reverse`: a single direction that runs from
  // the last step to the first.
  static LstmStack make(std::vector<QuantizedLstm> cells, int directions, bool reverse = false);

  int layers() const { return static_cast<int>(cells_.size()) / directions_; }
  int directions() const { return directions_; }
  bool reverse() const { return reverse_; }
  const QuantizedLstm& cell(int layer, int direction) const { return cells_[layer * directions_ + direction]; }

  // Takes the arrays of QuantizedLstm::run: y [T, B, directions * S], states [layers * directions, B, S] and
  // [layers * directions, B, H]. With one direction x may be [B, C]: one step, y is then [B, S]. options.reverse must
  // be false.
  void run(const TensorView& x, const TensorView& y, const LstmStates& states, const LstmRun& options = {}) const;

 private:
  LstmStack(std::vector<QuantizedLstm> cells, int directions, bool reverse)
      : cells_(std::move(cells)), directions_(directions), reverse_(reverse) {}
  std::vector<QuantizedLstm> cells_;
  int directions_;
  bool reverse_;
};

}  // namespace qcore
