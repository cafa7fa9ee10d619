#include "qcore/quantize.h"

#include <cstring>

#include "formats/element.h"
#include "formats/packed_weight.h"
#include "quantize/block_search.h"
#include "quantize/pack_weight.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

// Offset in elements of the first element of row n; the rest of a row is [K] or [Ci, Kh, Kw].
struct WeightRows {
  const TensorView& view;
  std::int64_t taps;

  std::int64_t offset(std::int64_t row, std::int64_t k, std::int64_t tap) const {
    std::int64_t at = row * view.strides[0] + k * view.strides[1];
    if (view.rank == 4) at += tap / view.shape[3] * view.strides[2] + tap % view.shape[3] * view.strides[3];
    return at;
  }
};

void check_importance(const QuantizeOptions& options, std::int64_t k) {
  const bool asked = options.method == Method::awq;
  QCORE_CHECK_VALUE(asked == (options.importance != nullptr), "quantize: importance is ",
                    options.importance ? "given" : "missing", ", expected it with method awq and no other");
  if (!asked) return;
  const TensorView& importance = *options.importance;
  check_dtype("quantize", "importance", importance, DType::f32);
  check_shape("quantize", "importance", importance, 1, &k);
  check_device("quantize", "importance", importance, kCpu, "every weight to quantize");
  check_finite("quantize", "importance", importance);
  for (std::int64_t i = 0; i < k; ++i) {
    const float value = load_float(importance.data, DType::f32, i * importance.strides[0]);
    QCORE_CHECK_VALUE(value >= 0, "quantize: importance[", i, "] is ", value, ", expected 0 or more");
  }
}

}  // namespace

QuantizedTensor QuantizedTensor::quantize(const TensorView& weight, const QuantizeOptions& options) {
  check_floating("quantize", "weight", weight);
  check_device("quantize", "weight", weight, kCpu, "every weight to quantize");
  QCORE_CHECK_VALUE(options.scale_dtype == DType::f32 || options.scale_dtype == DType::f16, "quantize: scale_dtype is ",
                    name(options.scale_dtype), ", expected float32 or float16");
  auto packed = allocate_weight("quantize", "weight", weight, options.bits, options.block_size, options.scheme);
  check_finite("quantize", "weight", weight);

  const PackedLayout& layout = packed->layout;
  check_importance(options, layout.k);
  const WeightRows rows{weight, layout.taps};
  const int lowest = lowest_code(options), highest = numerics::code_max(options.bits);
  PackedWriter writer(*packed);
  const std::int64_t longest = layout.blocks() ? layout.block_length(0) * layout.taps : 0;
  parallel_for(layout.n, [&](std::int64_t row) {
    Scratch scratch;
    float* values = scratch.take<float>(longest);  // [taps][block]
    float* importance = options.importance ? scratch.take<float>(longest) : nullptr;
    for (std::int64_t p = 0; p < layout.blocks(); ++p) {
      const std::int64_t begin = layout.block_begin(p), length = layout.block_length(p);
      for (std::int64_t tap = 0; tap < layout.taps; ++tap)
        for (std::int64_t i = 0; i < length; ++i)
          values[tap * length + i] = load_float(weight.data, weight.dtype, rows.offset(row, begin + i, tap));
      for (std::int64_t i = 0; importance && i < length * layout.taps; ++i)
        importance[i] =
            load_float(options.importance->data, DType::f32, (begin + i % length) * options.importance->strides[0]);
      const auto scale = choose_block_scale({values, importance, length * layout.taps}, options);
      QCORE_CHECK_VALUE(numerics::is_finite(scale.scale) && numerics::is_finite(scale.offset),
                        "quantize: scale_dtype is float16, which cannot hold the scale or the offset of row ", row,
                        ", block ", p, " (largest 65504), expected float32 for such a weight");
      writer.set_parameters(row, p, scale.scale, scale.offset);
      for (std::int64_t tap = 0; tap < layout.taps; ++tap)
        for (std::int64_t i = 0; i < length; ++i)
          writer.set_code(row, begin + i, tap, numerics::encode(values[tap * length + i], scale, lowest, highest));
    }
  });
  narrow_parameters(*packed);
  return QuantizedTensor(std::move(packed));
}

}  // namespace qcore
