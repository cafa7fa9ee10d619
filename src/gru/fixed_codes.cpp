#include "qcore/gru.h"
#include "recurrent/code_access.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

#if defined(QCORE_CUDA_BACKEND)
#include "recurrent/cuda/fixed_codes.h"
#endif

namespace qcore {
namespace {

std::int64_t offset_of(const TensorView& view, std::int64_t index) {
  std::int64_t offset = 0;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    offset += index % view.shape[axis] * view.strides[axis];
    index /= view.shape[axis];
  }
  return offset;
}

void check_pair(const char* op, const char* floats, const TensorView& x, const FixedFormat& format,
                const TensorView& codes) {
  check_floating(op, floats, x);
  check_dtype(op, "codes", codes, code_dtype(format));
  check_shape(op, "codes", codes, x.rank, x.shape);
  check_device(op, "codes", codes, x.device, floats);
  QCORE_CHECK_VALUE(format.is_signed, op, ": the format is unsigned, expected a signed one");
}

void convert_on_device(const char* op, const TensorView& from, const FixedFormat& format, const TensorView& to,
                       void* stream) {
#if defined(QCORE_CUDA_BACKEND)
  (void)op;
  convert_fixed_cuda(from, CodeFormat(format), to, stream);
#else
  (void)format, (void)to, (void)stream;
  throw ValueError(message(op, ": the arrays are on ", name(from.device), ", and this qcore was built without CUDA"));
#endif
}

}  // namespace

void quantize_fixed(const TensorView& x, const FixedFormat& format, const TensorView& codes, void* stream) {
  check_pair("quantize_fixed", "x", x, format, codes);
  check_output("quantize_fixed", "codes", codes);
  if (x.device != kCpu) return convert_on_device("quantize_fixed", x, format, codes, stream);
  check_finite("quantize_fixed", "x", x);
  const CodeFormat wanted(format);
  for (std::int64_t i = 0; i < x.size(); ++i)
    store_centered(codes.data, codes.dtype, offset_of(codes, i),
                   load_centered(x.data, x.dtype, offset_of(x, i), wanted), wanted);
}

void dequantize_fixed(const TensorView& codes, const FixedFormat& format, const TensorView& x, void* stream) {
  check_pair("dequantize_fixed", "out", x, format, codes);
  check_output("dequantize_fixed", "out", x);
  if (x.device != kCpu) return convert_on_device("dequantize_fixed", codes, format, x, stream);
  const CodeFormat given(format);
  for (std::int64_t i = 0; i < x.size(); ++i)
    store_centered(x.data, x.dtype, offset_of(x, i), load_centered(codes.data, codes.dtype, offset_of(codes, i), given),
                   given);
}

}  // namespace qcore
