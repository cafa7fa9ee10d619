#include "qcore/quantize.h"

#include "formats/element.h"
#include "quantize/dispatch.h"
#include "quantize/pack_weight.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
void check_importance(const char* op, Method method, const TensorView* importance, std::int64_t k) {
  const bool asked = method == Method::awq;
  QCORE_CHECK_VALUE(asked == (importance != nullptr), op, ": importance is ", importance ? "given" : "missing",
                    ", expected it with method awq and no other");
  if (!asked) return;
  check_dtype(op, "importance", *importance, DType::f32);
  check_shape(op, "importance", *importance, 1, &k);
  check_device(op, "importance", *importance, kCpu, "every weight to quantize");
  check_finite(op, "importance", *importance);
  for (std::int64_t i = 0; i < k; ++i) {
    const float value = load_float(importance->data, DType::f32, i * importance->strides[0]);
    QCORE_CHECK_VALUE(value >= 0, op, ": importance[", i, "] is ", value, ", expected 0 or more");
  }
}

void check_parameters(const numerics::BlockScale& scale, std::int64_t row, std::int64_t p) {
  QCORE_CHECK_VALUE(numerics::is_finite(scale.scale) && numerics::is_finite(scale.offset),
                    "quantize: scale_dtype is float16, which cannot hold the scale or the offset of row ", row,
                    ", block ", p, " (largest 65504), expected float32 for such a weight");
}

namespace {

// The encoding of other widths than those of plain weights.
WeightEncoding encoding_of(const QuantizeOptions& options) {
  WeightEncoding encoding;
  encoding.bits = options.bits;
  encoding.zero = 1 << (options.bits - 1);
  encoding.scales = options.scale_dtype == DType::f16 ? ParameterType::f16 : ParameterType::f32;
  if (options.scheme == Scheme::asymmetric) encoding.offsets = encoding.scales;
  return encoding;
}

}  // namespace

QuantizedTensor QuantizedTensor::quantize(const TensorView& weight, const QuantizeOptions& options) {
  check_floating("quantize", "weight", weight);
  check_device("quantize", "weight", weight, kCpu, "every weight to quantize");
  QCORE_CHECK_VALUE(options.scale_dtype == DType::f32 || options.scale_dtype == DType::f16, "quantize: scale_dtype is ",
                    name(options.scale_dtype), ", expected float32 or float16");
  QCORE_CHECK_VALUE(options.bits == 8 || (options.bits >= 2 && options.bits <= 6), "quantize: bits is ", options.bits,
                    ", expected 2, 3, 4, 5, 6 or 8");
  if (options.bits != 4 && options.bits != 8)
    return encode_weight("quantize", weight, encoding_of(options), options.block_size, options.method,
                         options.importance);
  auto packed = allocate_weight("quantize", "weight", weight, options.bits, options.block_size, options.scheme);
  check_finite("quantize", "weight", weight);

  check_importance("quantize", options.method, options.importance, packed->layout.k);
  quantize_dispatch().run({weight, options, *packed});
  finish_weight(*packed);
  return QuantizedTensor(std::move(packed));
}

}  // namespace qcore
