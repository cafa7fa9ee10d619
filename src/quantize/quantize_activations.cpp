#include "formats/compute_mode.h"
#include "formats/element.h"
#include "numerics/activation_block.h"
#include "qcore/quantize.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

namespace qcore {

void quantize_activations(const TensorView& x, std::int64_t block_size, ComputeMode mode, const TensorView& codes,
                          const TensorView& scales, const TensorView* offsets, const TensorView& sums) {
  const char* op = "quantize_activations";
  QCORE_CHECK_VALUE(mode != ComputeMode::floating, op, ": mode is floating, expected int8, int8_asym or int16");
  check_floating(op, "x", x);
  check_device(op, "x", x, kCpu, "every array");
  QCORE_CHECK_VALUE(x.rank == 2, op, ": x has shape ", shape_string(x), ", expected [M, K]");
  const std::int64_t m = x.shape[0], k = x.shape[1];
  // A block of 65,536 16-bit codes is the longest whose sum fits in int32.
  constexpr std::int64_t kMaxBlock = 65536;
  QCORE_CHECK_VALUE(block_size >= 1 && block_size <= kMaxBlock, op, ": block_size is ", block_size,
                    ", expected an integer from 1 to ", kMaxBlock);
  const std::int64_t blocks = ceil_div(k, block_size);
  const std::int64_t per_element[] = {m, k}, per_block[] = {m, blocks};
  check_dtype(op, "codes", codes, mode == ComputeMode::int16 ? DType::i16 : DType::i8);
  check_shape(op, "codes", codes, 2, per_element);
  check_output(op, "codes", codes);
  check_dtype(op, "scales", scales, DType::f32);
  check_shape(op, "scales", scales, 2, per_block);
  check_output(op, "scales", scales);
  check_dtype(op, "sums", sums, DType::i32);
  check_shape(op, "sums", sums, 2, per_block);
  check_output(op, "sums", sums);
  if (offsets) {
    check_dtype(op, "offsets", *offsets, DType::f32);
    check_shape(op, "offsets", *offsets, 2, per_block);
    check_output(op, "offsets", *offsets);
  }

  const int kind = activation_mode(mode);
  parallel_for(m, [&](std::int64_t row) {
    Scratch scratch;
    float* values = scratch.take<float>(block_size < k ? block_size : k);
    for (std::int64_t p = 0; p < blocks; ++p) {
      const std::int64_t begin = p * block_size;
      const std::int64_t length = k - begin < block_size ? k - begin : block_size;
      for (std::int64_t i = 0; i < length; ++i)
        values[i] = load_float(x.data, x.dtype, row * x.strides[0] + (begin + i) * x.strides[1]);
      const auto scale = numerics::activation_scale_of(values, length, kind);
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < length; ++i) {
        const int code = numerics::activation_code(values[i], scale, kind);
        const std::int64_t at = row * codes.strides[0] + (begin + i) * codes.strides[1];
        if (mode == ComputeMode::int16)
          static_cast<std::int16_t*>(codes.data)[at] = static_cast<std::int16_t>(code);
        else
          static_cast<std::int8_t*>(codes.data)[at] = static_cast<std::int8_t>(code);
        sum += code;
      }
      static_cast<float*>(scales.data)[row * scales.strides[0] + p * scales.strides[1]] = scale.scale;
      static_cast<std::int32_t*>(sums.data)[row * sums.strides[0] + p * sums.strides[1]] =
          static_cast<std::int32_t>(sum);
      if (offsets)
        static_cast<float*>(offsets->data)[row * offsets->strides[0] + p * offsets->strides[1]] = scale.offset;
    }
  });
}

}  // namespace qcore
