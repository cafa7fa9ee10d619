#pragma once

#include "formats/activation_scales.h"
#include "qcore/linear.h"

// What linear and grouped_linear do with x before a kernel sees it.
namespace qcore {

// The x of a call, floats or codes.
struct LinearInput {
  const TensorView& x;
  ComputeMode compute;
  ActivationScales scales;
};

// Each throws in the name of `op`.
LinearInput linear_input(const char* op, const TensorView& x, const LinearOptions& options);
LinearInput linear_input(const char* op, const QuantizedActivations& x, const QuantizedTensor& w,
                         const LinearOptions& options);

}  // namespace qcore
