#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "qcore/export.h"
#include "qcore/recurrent/fixed_format.h"
#include "qcore/tensor_view.h"

// A fixed-point GRU: integer multiply-add, shift, clamp and table look-up only. docs/gru.md has its definition.
namespace qcore {

enum class GruPipeline : std::uint8_t { staged, fused };

using GruTableKind = TableKind;
using GruKnots = TableKnots;

struct GruFormats {
  FixedFormat x, h, wx, rh, rb, rrh, z_pre, r_pre, g_pre, z, r, g, old_part, new_part;
};

// One layer in one direction. Gate order z, r, g along 3H; exponents are per row of 3H.
struct GruParameters {
  std::int64_t input_size = 0, hidden_size = 0;  // C, H
  GruPipeline pipeline = GruPipeline::fused;
  ShiftRounding rounding = ShiftRounding::half_away;
  GruTableKind tables = GruTableKind::exact;
  // ONNX's option. False: the reset gate multiplies h before its product with R, and formats.rrh are the codes of r *
  // h, which must be signed.
  bool linear_before_reset = true;
  GruFormats formats;
  int weight_bits = 8, bias_bits = 16;                                             // of w and r; of bx and br
  std::vector<std::int16_t> w, r;                                                  // [3H, C], [3H, H]
  std::vector<std::int32_t> bx, br;                                                // [3H]
  std::vector<std::int32_t> w_exponents, r_exponents, bx_exponents, br_exponents;  // [3H]
};

struct GruStorage;  // src/gru/gru_storage.h

struct GruRun {
  bool reverse = false;                 // from the last step of each row to its first
  bool batch_first = false;             // x is [B, T, C], y [B, T, H]
  const TensorView* lengths = nullptr;  // int32 [B]: steps of each row; beyond them y is 0
  const TensorView* gates = nullptr;    // int32 [T, B, 4H]: codes of z, r, g and rb
  void* stream = nullptr;
};

// Immutable; copies share storage; safe to use from many threads.
class QCORE_API QuantizedGru {
 public:
  // Throws ValueError naming what is wrong: an exponent, a shift or a sum that could leave its type, a code out of
  // range.
  static QuantizedGru make(const GruParameters& parameters);

  const GruParameters& parameters() const;

  // Codes of sigmoid or tanh for each code of their argument: gate 0, 1, 2 is z, r, g.
  const std::vector<std::int32_t>& table(int gate) const;

  // Returns the knots of an interpolated table; none for an exact one.
  const GruKnots& knots(int gate) const;

  // x [T, B, C], h0 [B, H] or null (zeros), y [T, B, H], last [B, H] (the state after each row's last step) or null.
  // Each is codes, int8 where the format has at most 8 bits, else int16, or fp32, fp16 or bf16: then it is rounded as
  // by quantize_fixed, or made as by dequantize_fixed. Any strides. h0 may be the memory of `last`. Throws ValueError
  // for a NaN, an infinity or a code outside its format, TypeError for another dtype, and writes nothing then; on a
  // CUDA device values are not looked at, and a NaN is 0.
  void run(const TensorView& x, const TensorView* h0, const TensorView& y, const TensorView* last,
           const GruRun& options = {}) const;

  // Codes of everything that each step computes, as the reference does it: int32 [T, B, 17H], wx and rh, 3H each, then
  // z_pre, r_pre, rb, rrh, g_pre, z, r, g, old_part, new_part, h. In the fused pipeline rb is rh's last H, and what it
  // does not have (old_part, new_part, and rrh with linear_before_reset) is 0. x and h0 as for run(), on the CPU.
  void trace(const TensorView& x, const TensorView* h0, bool reverse, const TensorView& trace) const;

  const GruStorage& storage() const { return *storage_; }

 private:
  explicit QuantizedGru(std::shared_ptr<const GruStorage> storage);
  std::shared_ptr<const GruStorage> storage_;
};

// Layers, each of one or two directions (the second runs from the last step to the first), each layer's outputs the
// next one's inputs. Immutable; copies share storage; safe to use from many threads.
class QCORE_API GruStack {
 public:
  // Layer by layer, directions side by side. Throws ValueError if sizes do not fit together, or formats: both
  // directions' h, and x with the h of the layer before, are the same. `reverse`: a single direction that runs from the
  // last step to the first.
  static GruStack make(std::vector<QuantizedGru> cells, int directions, bool reverse = false);

  int layers() const { return static_cast<int>(cells_.size()) / directions_; }
  int directions() const { return directions_; }
  bool reverse() const { return reverse_; }
  const QuantizedGru& cell(int layer, int direction) const { return cells_[layer * directions_ + direction]; }

  // Takes the arrays of QuantizedGru::run: y [T, B, directions * H], h0 and last [layers * directions, B, H], gates
  // [layers * directions, T, B, 4H]. With one direction x may be [B, C]: one step, y is then [B, H]. options.reverse
  // must be false.
  void run(const TensorView& x, const TensorView* h0, const TensorView& y, const TensorView* last,
           const GruRun& options = {}) const;

 private:
  GruStack(std::vector<QuantizedGru> cells, int directions, bool reverse)
      : cells_(std::move(cells)), directions_(directions), reverse_(reverse) {}
  std::vector<QuantizedGru> cells_;
  int directions_;
  bool reverse_;
};

}  // namespace qcore
