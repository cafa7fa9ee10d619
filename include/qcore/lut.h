#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "qcore/export.h"
#include "qcore/tensor_view.h"

// Piecewise-linear look-up tables; docs/luts.md has their definition.
namespace qcore {

// Says which identity reduces an argument, so that a table needs to cover one binade or one period only: e^x from 2^f
// on [0, 1], log from [sqrt(1/2), sqrt(2)], 1/x from [1, 2], square roots from [1, 4], sines from [-pi, pi].
enum class LutReduction : std::uint8_t { none, exp, log, reciprocal, sqrt, rsqrt, periodic };

struct LutStorage;  // src/lut/lut_storage.h

// An immutable table. Copies share storage; safe to use from many threads.
class QCORE_API LutTable {
 public:
  // cuts [n + 1] fp32 (n >= 2 intervals, at most 256), strictly increasing. values fp16 or fp32 [2 + s * (n - 2) + 1],
  // s >= 1: the first and the last interval have one segment, the others s each. Throws ValueError for a cut or a
  // value that is not finite, or a value beyond +-65504.
  static LutTable from_parts(const TensorView& cuts, const TensorView& values, LutReduction reduction);

  // A table that ships with qcore: "silu", "exp", ...; see builtin_luts(). Throws ValueError for another name.
  static LutTable builtin(const std::string& name, bool range_reduction);

  int intervals() const;
  int segments() const;  // s; 1 if there are two intervals
  int entries() const;
  LutReduction reduction() const;
  DType value_dtype() const;                 // f16 or f32
  void cuts(const TensorView& out) const;    // fp32 [intervals + 1]
  void values(const TensorView& out) const;  // fp32 [entries]
  bool equal(const LutTable& other) const;   // same cuts, values, dtype and reduction

  const LutStorage& storage() const { return *storage_; }

 private:
  explicit LutTable(std::shared_ptr<const LutStorage> storage);
  std::shared_ptr<const LutStorage> storage_;
};

struct BuiltinLut {
  std::string name;
  bool range_reduction;
};
QCORE_API std::vector<BuiltinLut> builtin_luts();

// y = table(x), element by element; rounded to y's dtype. NaN gives NaN, results are clamped to +-65504.
//   x  fp32, fp16 or bf16, any strides
//   y  fp32, fp16 or bf16 of x's shape on x's device, any strides without overlap. Either x itself (same memory,
//      dtype and strides) or without memory in common with it.
QCORE_API void lut(const TensorView& x, const LutTable& table, const TensorView& y, void* stream = nullptr);

// y = e_i / sum(e), e_i = exp(x_i - max(x)) along `axis` (negative: from the end), with the tables of exp and
// reciprocal. e is fp32; sums have 32 fp32 partial sums, of elements i with i mod 32 = 0, 1, ..., added by halves.
// x, y as for lut().
QCORE_API void softmax(const TensorView& x, int axis, const TensorView& y, void* stream = nullptr);

// y = x * rsqrt(mean(x^2) + eps) * weight along the last axis, with the table of rsqrt; sums as in softmax().
//   weight  [last extent] fp32, fp16 or bf16, or null
QCORE_API void rms_norm(const TensorView& x, const TensorView* weight, float eps, const TensorView& y,
                        void* stream = nullptr);

}  // namespace qcore
