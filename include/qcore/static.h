#pragma once

#include <cstdint>
#include <memory>

#include "qcore/conv2d.h"
#include "qcore/export.h"
#include "qcore/tensor_view.h"

// Static int8: codes in, codes out. Activations have one scale and zero point per tensor, known beforehand; weights
// have a scale per output channel. The semantics are those of ONNX's QLinearConv and QLinearMatMul (opset 10):
//
//   y = clamp(rint(m[n] * acc) + Zy, lo, hi),   acc = sum (x - Zx)*(w - Zw) + bias[n], exact,   m[n] = Sx*Sw[n] / Sy
//
// acc becomes fp32 before it is multiplied, m is computed in fp32 in this order, and halves are rounded to even.
namespace qcore {

// The real value of a code is scale * (code - zero_point).
struct StaticFormat {
  DType dtype = DType::u8;  // u8 or i8
  float scale = 1.0f;       // positive and finite
  int zero_point = 0;       // within the dtype's range
};

struct StaticOptions {
  StaticFormat x, y;
  int w_zero_point = 0;  // within the weight's dtype
  int lo = -128;         // bounds of y's codes, cut to y's dtype
  int hi = 255;
};

struct StaticLayer;  // src/static/layer.h

// A layer with everything that does not depend on x computed once. Immutable; copies share storage; safe to use from
// many threads.
class QCORE_API StaticConv2d {
 public:
  //   weight   int8 or uint8 [Co, Ci / groups, Kh, Kw] on the CPU, any strides
  //   w_scale  fp32 [Co] or [1] on the CPU, positive and finite
  //   bias     int32 [Co] on the CPU, in units of Sx*Sw, or null
  // Throws ValueError, besides what is impossible, for a channel whose sums could leave int32, whatever x is.
  static StaticConv2d create(const TensorView& weight, const TensorView& w_scale, const TensorView* bias,
                             const ConvParams& window, const StaticOptions& options);

  // x [N, Ci, H, W] and y [N, Co, Ho, Wo] of the options' dtypes, on the layer's device, any strides; y without overlap
  // and apart from x. Padding is the real value 0. Throws before anything is written to y.
  void run(const TensorView& x, const TensorView& y, void* stream = nullptr) const;

  void shape(const TensorView& x, std::int64_t (&y)[4]) const;  // of y; throws as run() does
  StaticConv2d to(Device device) const;                         // itself if it is there already
  Device device() const;

 private:
  explicit StaticConv2d(std::shared_ptr<const StaticLayer> layer);
  std::shared_ptr<const StaticLayer> layer_;
};

class QCORE_API StaticLinear {
 public:
  // Prepares a layer as StaticConv2d::create does, with a weight [N, K].
  static StaticLinear create(const TensorView& weight, const TensorView& w_scale, const TensorView* bias,
                             const StaticOptions& options);

  void run(const TensorView& x, const TensorView& y, void* stream = nullptr) const;  // x [..., K], y [..., N]

  std::int64_t rows() const;      // N
  std::int64_t features() const;  // K
  StaticLinear to(Device device) const;
  Device device() const;

 private:
  explicit StaticLinear(std::shared_ptr<const StaticLayer> layer);
  std::shared_ptr<const StaticLayer> layer_;
};

}  // namespace qcore
