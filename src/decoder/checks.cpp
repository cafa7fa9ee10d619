#include "decoder/checks.h"

#include <algorithm>

#include "decoder/problem.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore::decoder {

void check_indices(const char* op, const char* argument, const TensorView& view, int rank, const std::int64_t* shape,
                   Device device, const char* like) {
  check_dtype(op, argument, view, DType::i32);
  check_device(op, argument, view, device, like);
  check_shape(op, argument, view, rank, shape);
}

void check_index_range(const char* op, const char* argument, const TensorView& view, std::int64_t lowest,
                       std::int64_t highest, const char* what) {
  const std::int64_t columns = view.rank > 1 ? view.shape[1] : 1;
  for (std::int64_t i = 0; i < view.shape[0]; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t index = load_index(view, i, j);
      QCORE_CHECK_VALUE(index >= lowest && index <= highest, op, ": ", argument, " has the element ", index,
                        " at index ", view.rank > 1 ? message("[", i, ", ", j, "]") : message("[", i, "]"),
                        ", expected ", lowest, " to ", highest, ", the ", what);
    }
}

void check_rotary_table(const char* op, const char* cos_name, const char* sin_name, const TensorView& cos,
                        const TensorView& sin, std::int64_t head_size, Device device, const char* like) {
  check_dtype(op, cos_name, cos, DType::f32);
  check_dtype(op, sin_name, sin, DType::f32);
  check_device(op, cos_name, cos, device, like);
  check_device(op, sin_name, sin, device, like);
  QCORE_CHECK_VALUE(cos.rank == 2 && cos.shape[1] % 2 == 0 && cos.shape[1] <= head_size, op, ": ", cos_name,
                    " has shape ", shape_string(cos), ", expected [P, R] with R even and at most the head size ",
                    head_size);
  check_shape(op, sin_name, sin, 2, cos.shape);
}

void check_cache(const char* op, const KeyValueCache& cache, std::int64_t batch, std::int64_t heads,
                 std::int64_t head_size, Device device, const char* like, bool written) {
  const TensorView& keys = cache.keys;
  QCORE_CHECK_TYPE(
      keys.dtype == DType::f32 || keys.dtype == DType::f16 || keys.dtype == DType::bf16 || keys.dtype == DType::i8, op,
      ": cache.keys has dtype ", name(keys.dtype), ", expected float32, float16, bfloat16 or int8");
  QCORE_CHECK_VALUE(keys.rank == 4, op, ": cache.keys has shape ", shape_string(keys), ", expected [B, Hkv, C, D]");
  const std::int64_t shape[] = {batch, heads, keys.shape[2], head_size};
  check_dtype(op, "cache.values", cache.values, keys.dtype);
  const auto check_array = [&](const char* argument, const TensorView& array, int rank) {
    check_device(op, argument, array, device, like);
    check_shape(op, argument, array, rank, shape);
    if (written) check_output(op, argument, array);
  };
  check_array("cache.keys", keys, 4);
  check_array("cache.values", cache.values, 4);
  for (const TensorView* array : {&keys, &cache.values})
    QCORE_CHECK_VALUE(array->strides[3] == 1 || head_size == 1, op, ": cache.", array == &keys ? "keys" : "values",
                      " has elements of a head at a stride of ", array->strides[3], ", expected 1");
  const bool scaled = keys.dtype == DType::i8;
  QCORE_CHECK_VALUE(scaled == (cache.key_scales.rank > 0) && scaled == (cache.value_scales.rank > 0), op,
                    ": the cache of dtype ", name(keys.dtype), " has ",
                    cache.key_scales.rank || cache.value_scales.rank ? "scales" : "no scales",
                    ", expected key_scales and value_scales for int8 and none otherwise");
  if (!scaled) return;
  check_dtype(op, "cache.key_scales", cache.key_scales, DType::f32);
  check_dtype(op, "cache.value_scales", cache.value_scales, DType::f32);
  check_array("cache.key_scales", cache.key_scales, 3);
  check_array("cache.value_scales", cache.value_scales, 3);
}

void check_past(const char* op, const TensorView& past, std::int64_t batch, std::int64_t tokens, std::int64_t capacity,
                Device device, const char* like) {
  check_indices(op, "past", past, 1, &batch, device, like);
  if (device != kCpu) return;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = load_index(past, b);
    QCORE_CHECK_VALUE(length >= 0 && length + tokens <= capacity, op, ": past has the element ", length, " at index [",
                      b, "], expected 0 to ", capacity - tokens, ": ", tokens, " tokens more in a cache for ",
                      capacity);
  }
}

void check_max_length(const char* op, std::int64_t max_length, const TensorView& past, std::int64_t tokens,
                      std::int64_t capacity) {
  if (max_length == 0) return;
  std::int64_t longest = std::min<std::int64_t>(1, capacity);
  if (past.device == kCpu)
    for (std::int64_t b = 0; b < past.shape[0]; ++b) longest = std::max(longest, load_index(past, b) + tokens);
  QCORE_CHECK_VALUE(max_length >= longest && max_length <= capacity, op, ": max_length is ", max_length,
                    ", expected 0 or ", longest, " to ", capacity);
}

}  // namespace qcore::decoder
