#include "linear/activations.h"

#include <algorithm>
#include <string>

#include "activations/checks.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/view_checks.h"

namespace qcore {

LinearInput linear_input(const char* op, const TensorView& x, const LinearOptions& options) {
  check_floating(op, "x", x);
  const bool token = options.compute == ComputeMode::int8_token;
  LinearInput input{x, token ? ComputeMode::int8 : options.compute, {}};
  check_activation_scale(op, "x_scale", options.x_scale, input.compute);
  if (options.x_scale != 0.0f) {
    input.scales.source = ActivationScales::Source::fixed;
    input.scales.fixed = options.x_scale;
  } else if (token) {
    input.scales.source = ActivationScales::Source::per_row;
  }
  return input;
}

LinearInput linear_input(const char* op, const QuantizedActivations& x, const QuantizedTensor& w,
                         const LinearOptions& options) {
  x.check(op, "x");
  QCORE_CHECK_VALUE(options.x_scale == 0.0f, op, ": x_scale is given, expected none for an x that is quantized");
  const std::int64_t g = w.block_size(), k = w.features();
  QCORE_CHECK_VALUE(x.block_size >= k || (g < k && x.block_size % g == 0), op, ": x has blocks of ", x.block_size,
                    ", expected K = ", k, g < k ? ", or a multiple of the weight's " + std::to_string(g) : "");
  LinearInput input{x.codes, x.mode, {}};
  input.scales.source = ActivationScales::Source::given;
  input.scales.scales = row_view(x.scales);
  if (x.offsets.rank) input.scales.offsets = row_view(x.offsets);
  input.scales.blocks_per_scale = x.block_size >= k ? std::max<std::int64_t>(w.blocks(), 1) : x.block_size / g;
  return input;
}

}  // namespace qcore
