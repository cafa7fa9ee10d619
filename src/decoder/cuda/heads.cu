#include "decoder/cuda/kernels.h"
#include "formats/element.h"
#include "numerics/attention.h"
#include "numerics/rms_norm.h"
#include "numerics/rotary.h"
#include "runtime/cuda_device.h"
#include "runtime/cuda_launch.h"
#include "runtime/cuda_warp.cuh"
#include "runtime/memory.h"
#include "runtime/ptx_launch.cuh"

// Heads of tokens: their norm, their rotation and the writing to a cache. A warp has a head in shared memory, so that
// one kernel does all of it; results are rounded to the dtype of the heads between the steps, as the single operators
// round theirs.
namespace qcore {
namespace {

using numerics::ScalarLanes;

constexpr int kMaxWarps = 8;
constexpr std::int64_t kMaxSharedFloats = kMaxHeadSizeCuda;

struct HeadArray {
  void* data;
  DType dtype;
  std::int64_t strides[4];  // of sequences, tokens (or positions), heads and elements
};

// Heads that are treated alike.
struct HeadGroup {
  HeadArray from, to;
  std::int64_t heads;             // 0: there are none
  const float* norm;              // [D], null for none
  float* scales;                  // of an int8 cache
  std::int64_t scale_strides[3];  // of sequences, positions and heads
  bool rotated, cached;           // cached: `to` is a cache, and its tokens are positions
};

constexpr int kGroups = 3;  // Q, K and V

struct HeadArguments {
  HeadGroup groups[kGroups];
  std::int64_t batch, tokens, head_size, capacity;
  const std::int32_t *positions, *past;
  std::int64_t position_strides[2], past_stride;
  const float *cos, *sin;
  std::int64_t cos_strides[2], sin_strides[2], table_rows, rotary;
  bool interleaved, round_normalized;
  float eps;
};

__device__ __forceinline__ std::int64_t offset_of(const HeadArray& array, std::int64_t b, std::int64_t t,
                                                  std::int64_t head) {
  return b * array.strides[0] + t * array.strides[1] + head * array.strides[2];
}

__device__ __forceinline__ float rounded(float value, DType dtype) {
  if (dtype == DType::f16) return numerics::half_to_float(numerics::float_to_half(value));
  if (dtype == DType::bf16) return numerics::bfloat_to_float(numerics::float_to_bfloat(value));
  return value;
}

// A warp's copy of a head. Lane i mod 32 has element i between two calls of __syncwarp().
__device__ __forceinline__ void norm_head(const HeadArguments& a, const HeadGroup& group, float* row, int lane) {
  float sum = 0.0f;
  for (std::int64_t i = lane; i < a.head_size; i += kWarpSize) sum = numerics::fma_once(row[i], row[i], sum);
  const float factor = numerics::norm_factor(warp_sum(sum), a.head_size, a.eps);
  const DType dtype = group.from.dtype;
  for (std::int64_t i = lane; i < a.head_size; i += kWarpSize) {
    float value = row[i] * factor;
    if (a.round_normalized) value = rounded(value, dtype);
    row[i] = rounded(value * group.norm[i], dtype);
  }
}

__device__ __forceinline__ void rotate_head(const HeadArguments& a, std::int64_t position, float* row, int lane) {
  const std::int64_t last = a.table_rows - 1;
  position = position < 0 ? 0 : position > last ? last : position;
  const float *cos = a.cos + position * a.cos_strides[0], *sin = a.sin + position * a.sin_strides[0];
  for (std::int64_t i = lane; i < a.rotary / 2; i += kWarpSize) {
    const std::int64_t first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + a.rotary / 2;
    const float x = row[first], y = row[second];
    row[first] =
        numerics::rotated_first<ScalarLanes>(x, y, cos[first * a.cos_strides[1]], sin[first * a.sin_strides[1]]);
    row[second] =
        numerics::rotated_second<ScalarLanes>(x, y, cos[second * a.cos_strides[1]], sin[second * a.sin_strides[1]]);
  }
}

__device__ __forceinline__ void write_codes(const HeadArguments& a, const HeadGroup& group, std::int64_t at,
                                            float* scale, const float* row, int lane) {
  std::uint32_t largest = 0;
  for (std::int64_t i = lane; i < a.head_size; i += kWarpSize) {
    const std::uint32_t bits = numerics::float_bits(row[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  const float head_scale = numerics::cache_scale(numerics::bits_float(warp_max(largest)));
  const float factor = numerics::cache_factor(head_scale);
  if (lane == 0) *scale = head_scale;
  auto* codes = static_cast<std::int8_t*>(group.to.data) + at;
  for (std::int64_t i = lane; i < a.head_size; i += kWarpSize)
    codes[i * group.to.strides[3]] = static_cast<std::int8_t>(numerics::cache_code(row[i], factor));
}

__global__ void heads_kernel(const __grid_constant__ HeadArguments a) {
  ptx::wait_for_earlier_kernels();
  ptx::let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t heads = a.groups[0].heads + a.groups[1].heads + a.groups[2].heads;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarpSize) + warp;
  if (item >= a.batch * a.tokens * heads) return;
  const std::int64_t token = item / heads, b = token / a.tokens, t = token - b * a.tokens;
  std::int64_t head = item - token * heads;
  int number = 0;
  while (head >= a.groups[number].heads) head -= a.groups[number++].heads;
  const HeadGroup& group = a.groups[number];

  float* row = reinterpret_cast<float*>(dynamic_shared()) + warp * a.head_size;
  const std::int64_t from = offset_of(group.from, b, t, head);
  for (std::int64_t i = lane; i < a.head_size; i += kWarpSize)
    row[i] = load_float(group.from.data, group.from.dtype, from + i * group.from.strides[3]);
  __syncwarp();
  if (group.norm) {
    norm_head(a, group, row, lane);
    __syncwarp();
  }
  if (group.rotated) {
    rotate_head(a, a.positions[b * a.position_strides[0] + t * a.position_strides[1]], row, lane);
    __syncwarp();
  }
  std::int64_t place = t;
  if (group.cached) {
    place += a.past[b * a.past_stride];
    if (place < 0 || place >= a.capacity) return;
  }
  const std::int64_t to = offset_of(group.to, b, place, head);
  if (group.to.dtype == DType::i8) {
    for (std::int64_t i = lane; i < a.head_size; i += kWarpSize) row[i] = rounded(row[i], group.from.dtype);
    float* scale =
        group.scales + b * group.scale_strides[0] + place * group.scale_strides[1] + head * group.scale_strides[2];
    return write_codes(a, group, to, scale, row, lane);
  }
  for (std::int64_t i = lane; i < a.head_size; i += kWarpSize)
    store_float(group.to.data, group.to.dtype, to + i * group.to.strides[3], rounded(row[i], group.from.dtype));
}

HeadArray array_of(const TensorView& view) {
  return {view.data, view.dtype, {view.strides[0], view.strides[1], view.strides[2], view.strides[3]}};
}

// The arrays of a cache are [B, Hkv, C, D].
HeadArray cache_of(const TensorView& view) {
  return {view.data, view.dtype, {view.strides[0], view.strides[2], view.strides[1], view.strides[3]}};
}

HeadGroup cached_group(const TensorView& heads, const TensorView& cache, const TensorView& scales) {
  HeadGroup group{};
  group.from = array_of(heads);
  group.to = cache_of(cache);
  group.heads = heads.shape[2];
  group.cached = true;
  if (scales.rank) {
    group.scales = static_cast<float*>(scales.data);
    group.scale_strides[0] = scales.strides[0];
    group.scale_strides[1] = scales.strides[2];
    group.scale_strides[2] = scales.strides[1];
  }
  return group;
}

HeadArguments arguments_of(const TensorView& heads) {
  HeadArguments a{};
  a.batch = heads.shape[0];
  a.tokens = heads.shape[1];
  a.head_size = heads.shape[3];
  return a;
}

void set_rotation(HeadArguments& a, const TensorView& positions, const TensorView& cos, const TensorView& sin,
                  RotaryLayout layout) {
  a.positions = static_cast<const std::int32_t*>(positions.data);
  a.position_strides[0] = positions.strides[0];
  a.position_strides[1] = positions.strides[1];
  a.cos = static_cast<const float*>(cos.data);
  a.sin = static_cast<const float*>(sin.data);
  for (int axis = 0; axis < 2; ++axis) {
    a.cos_strides[axis] = cos.strides[axis];
    a.sin_strides[axis] = sin.strides[axis];
  }
  a.table_rows = cos.shape[0];
  a.rotary = cos.shape[1];
  a.interleaved = layout == RotaryLayout::interleaved;
}

void set_cache(HeadArguments& a, const TensorView& past, const KeyValueCache& cache) {
  a.past = static_cast<const std::int32_t*>(past.data);
  a.past_stride = past.strides[0];
  a.capacity = cache.keys.shape[2];
}

void launch_heads(const HeadArguments& a, Device device, void* stream) {
  const std::int64_t heads = a.groups[0].heads + a.groups[1].heads + a.groups[2].heads;
  const std::int64_t items = a.batch * a.tokens * heads;
  if (items == 0 || a.head_size == 0) return;
  std::int64_t warps = kMaxWarps;
  while (warps > 1 && warps * a.head_size > kMaxSharedFloats) warps /= 2;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(items, warps)));
  shape.block = dim3(static_cast<unsigned>(warps * kWarpSize));
  shape.shared_bytes = static_cast<std::size_t>(warps * a.head_size) * sizeof(float);
  shape.overlap = compute_capability(device.index) >= 90;
  DeviceGuard guard(device.index);
  launch("decoder_heads", heads_kernel, shape, static_cast<cudaStream_t>(stream), a);
}

const char* head_size_reason(std::int64_t head_size) {
  return head_size <= kMaxHeadSizeCuda ? nullptr : "the head size is above 12288";
}

}  // namespace

const char* rotary_cuda_unsupported_reason(const RotaryProblem& problem) {
  const char* reason = on_cuda_unsupported_reason(problem);
  return reason ? reason : head_size_reason(problem.x.shape[3]);
}

const char* cache_cuda_unsupported_reason(const CacheProblem& problem) {
  const char* reason = on_cuda_unsupported_reason(problem);
  return reason ? reason : head_size_reason(problem.keys.shape[3]);
}

void run_rotary_cuda(const RotaryProblem& p) {
  HeadArguments a = arguments_of(p.x);
  set_rotation(a, p.positions, p.cos, p.sin, p.layout);
  a.groups[0].from = array_of(p.x);
  a.groups[0].to = array_of(p.y);
  a.groups[0].heads = p.x.shape[2];
  a.groups[0].rotated = true;
  launch_heads(a, p.device, p.stream);
}

void run_cache_cuda(const CacheProblem& p) {
  HeadArguments a = arguments_of(p.keys);
  set_cache(a, p.past, p.cache);
  a.groups[1] = cached_group(p.keys, p.cache.keys, p.cache.key_scales);
  a.groups[2] = cached_group(p.values, p.cache.values, p.cache.value_scales);
  launch_heads(a, p.device, p.stream);
}

void run_heads_cuda(const HeadsProblem& p) {
  HeadArguments a = arguments_of(p.q);
  a.eps = p.eps;
  a.round_normalized = p.round_normalized;
  if (p.rotate) set_rotation(a, p.positions, p.cos, p.sin, p.layout);
  set_cache(a, p.past, p.cache);
  a.groups[0].from = a.groups[0].to = array_of(p.q);
  // Q that is neither normed nor rotated stays as it is.
  a.groups[0].heads = p.q_norm.rank || p.rotate ? p.q.shape[2] : 0;
  a.groups[1] = cached_group(p.k, p.cache.keys, p.cache.key_scales);
  a.groups[2] = cached_group(p.v, p.cache.values, p.cache.value_scales);
  if (p.q_norm.rank) a.groups[0].norm = static_cast<const float*>(p.q_norm.data);
  if (p.k_norm.rank) a.groups[1].norm = static_cast<const float*>(p.k_norm.data);
  a.groups[0].rotated = a.groups[1].rotated = p.rotate;
  launch_heads(a, p.device, p.stream);
}

}  // namespace qcore
