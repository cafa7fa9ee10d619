#include "decoder/cuda/elements.cuh"
#include "decoder/cuda/kernels.h"
#include "numerics/attention.h"
#include "numerics/rms_norm.h"
#include "numerics/rotary.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"

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
  std::int64_t strides[4];  // of sequences, tokens (or positions), heads and elements
};

// Heads that are treated alike.
struct HeadGroup {
  HeadArray from, to;
  const float* norm;              // [D], null for none
  float* scales;                  // of an int8 cache
  std::int64_t scale_strides[3];  // of sequences, positions and heads
  int heads;                      // 0: there are none
  bool rotated, cached;           // cached: `to` is a cache, and its tokens are positions
  bool in_place;                  // `to` has the dtype of the heads
};

constexpr int kGroups = 3;  // Q, K and V

struct HeadArguments {
  HeadGroup groups[kGroups];
  int tokens, head_size, blocks;  // blocks: thread blocks of a token
  std::int64_t capacity;
  const std::int32_t *positions, *past;
  std::int64_t position_strides[2], past_stride;
  const float *cos, *sin;
  std::int64_t cos_strides[2], sin_strides[2];
  int table_rows, rotary;
  bool interleaved, round_normalized;
  float eps;
};

__device__ __forceinline__ std::int64_t offset_of(const HeadArray& array, int b, std::int64_t t, int head) {
  return b * array.strides[0] + t * array.strides[1] + head * array.strides[2];
}

// A warp's copy of a head. Lane i mod 32 has element i between two calls of __syncwarp().
template <DType kDType>
__device__ __forceinline__ void norm_head(const HeadArguments& a, const float* weight, float* row, int lane) {
  float sum = 0.0f;
#pragma unroll 4
  for (int i = lane; i < a.head_size; i += kWarpSize) sum = numerics::fma_once(row[i], row[i], sum);
  const float factor = numerics::norm_factor(warp_sum(sum), a.head_size, a.eps);
#pragma unroll 4
  for (int i = lane; i < a.head_size; i += kWarpSize) {
    float value = row[i] * factor;
    if (a.round_normalized) value = rounded<kDType>(value);
    row[i] = rounded<kDType>(value * weight[i]);
  }
}

__device__ __forceinline__ void rotate_head(const HeadArguments& a, int position, float* row, int lane) {
  const int last = a.table_rows - 1;
  position = position < 0 ? 0 : position > last ? last : position;
  const float *cos = a.cos + position * a.cos_strides[0], *sin = a.sin + position * a.sin_strides[0];
  constexpr int kTogether = 2;  // pairs whose angles are asked for before any is used
#pragma unroll 1
  for (int start = lane; start < a.rotary / 2; start += kTogether * kWarpSize) {
    float angles[kTogether][4];
    int first[kTogether], second[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int i = start + k * kWarpSize;
      first[k] = a.interleaved ? 2 * i : i, second[k] = a.interleaved ? 2 * i + 1 : i + a.rotary / 2;
      if (i >= a.rotary / 2) continue;
      angles[k][0] = cos[first[k] * a.cos_strides[1]], angles[k][1] = sin[first[k] * a.sin_strides[1]];
      angles[k][2] = cos[second[k] * a.cos_strides[1]], angles[k][3] = sin[second[k] * a.sin_strides[1]];
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (start + k * kWarpSize >= a.rotary / 2) continue;
      const float x = row[first[k]], y = row[second[k]];
      row[first[k]] = numerics::rotated_first<ScalarLanes>(x, y, angles[k][0], angles[k][1]);
      row[second[k]] = numerics::rotated_second<ScalarLanes>(x, y, angles[k][2], angles[k][3]);
    }
  }
}

// Copies the elements of a head to the warp's row.
template <DType kDType>
__device__ __forceinline__ void load_head(const HeadArray& array, std::int64_t at, float* row, int count, int lane) {
  constexpr int kTogether = 4;
  using Item = typename CacheItem<kDType>::Type;
  const auto* from = static_cast<const Item*>(array.data) + at;
#pragma unroll 1
  for (int start = lane; start < count; start += kTogether * kWarpSize) {
    Item items[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (start + k * kWarpSize < count) items[k] = from[(start + k * kWarpSize) * array.strides[3]];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (start + k * kWarpSize < count) row[start + k * kWarpSize] = widened<kDType>(items[k]);
  }
}

// Writes the elements rounded to kFrom, the dtype of the heads, and then to kTo.
template <DType kFrom, DType kTo>
__device__ __forceinline__ void write_elements(void* to, std::int64_t at, std::int64_t stride, const float* row,
                                               int count, int lane) {
  auto* elements = static_cast<typename CacheItem<kTo>::Type*>(to) + at;
#pragma unroll 4
  for (int i = lane; i < count; i += kWarpSize) elements[i * stride] = narrowed<kTo>(rounded<kFrom>(row[i]));
}

template <DType kFrom>
__device__ __forceinline__ void write_codes(const HeadArray& to, std::int64_t at, float* scale, const float* row,
                                            int count, int lane) {
  std::uint32_t largest = 0;
#pragma unroll 4
  for (int i = lane; i < count; i += kWarpSize) {
    const std::uint32_t bits = numerics::float_bits(rounded<kFrom>(row[i])) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  const float head_scale = numerics::cache_scale(numerics::bits_float(warp_max(largest)));
  const float factor = numerics::cache_factor(head_scale);
  if (lane == 0) *scale = head_scale;
  auto* codes = static_cast<std::int8_t*>(to.data) + at;
#pragma unroll 4
  for (int i = lane; i < count; i += kWarpSize)
    codes[i * to.strides[3]] = static_cast<std::int8_t>(numerics::cache_code(rounded<kFrom>(row[i]), factor));
}

// kFrom is the dtype of the heads, kTo that of the cache or of another result.
template <DType kFrom, DType kTo>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize) heads_kernel(const __grid_constant__ HeadArguments a) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const unsigned token = blockIdx.x / static_cast<unsigned>(a.blocks);
  int head = static_cast<int>((blockIdx.x - token * a.blocks) * (blockDim.x / kWarpSize)) + warp;
  int b = static_cast<int>(token), t = 0;
  if (a.tokens > 1) {
    b = static_cast<int>(token / static_cast<unsigned>(a.tokens));
    t = static_cast<int>(token) - b * a.tokens;
  }
  int number = 0;
#pragma unroll 1
  while (number < kGroups && head >= a.groups[number].heads) head -= a.groups[number++].heads;
  if (number == kGroups) return;
  const HeadGroup& group = a.groups[number];

  const int size = a.head_size;
  int position = 0;
  std::int64_t place = t;
  if (group.rotated) position = a.positions[b * a.position_strides[0] + t * a.position_strides[1]];
  if (group.cached) place += a.past[b * a.past_stride];
  float* row = reinterpret_cast<float*>(dynamic_shared()) + warp * size;
  load_head<kFrom>(group.from, offset_of(group.from, b, t, head), row, size, lane);
  __syncwarp();
  if (group.norm) {
    norm_head<kFrom>(a, group.norm, row, lane);
    __syncwarp();
  }
  if (group.rotated) {
    rotate_head(a, position, row, lane);
    __syncwarp();
  }
  if (group.cached && (place < 0 || place >= a.capacity)) return;
  const std::int64_t to = offset_of(group.to, b, place, head);
  if (group.in_place) return write_elements<kFrom, kFrom>(group.to.data, to, group.to.strides[3], row, size, lane);
  if constexpr (kTo == DType::i8) {
    float* scale =
        group.scales + b * group.scale_strides[0] + place * group.scale_strides[1] + head * group.scale_strides[2];
    write_codes<kFrom>(group.to, to, scale, row, size, lane);
  } else {
    write_elements<kFrom, kTo>(group.to.data, to, group.to.strides[3], row, size, lane);
  }
}

HeadArray array_of(const TensorView& view) {
  return {view.data, {view.strides[0], view.strides[1], view.strides[2], view.strides[3]}};
}

// The arrays of a cache are [B, Hkv, C, D].
HeadArray cache_of(const TensorView& view) {
  return {view.data, {view.strides[0], view.strides[2], view.strides[1], view.strides[3]}};
}

HeadGroup cached_group(const TensorView& heads, const TensorView& cache, const TensorView& scales) {
  HeadGroup group{};
  group.from = array_of(heads);
  group.to = cache_of(cache);
  group.heads = static_cast<int>(heads.shape[2]);
  group.cached = true;
  group.in_place = heads.dtype == cache.dtype;
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
  a.tokens = static_cast<int>(heads.shape[1]);
  a.head_size = static_cast<int>(heads.shape[3]);
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
  a.table_rows = static_cast<int>(cos.shape[0]);
  a.rotary = static_cast<int>(cos.shape[1]);
  a.interleaved = layout == RotaryLayout::interleaved;
}

void set_cache(HeadArguments& a, const TensorView& past, const KeyValueCache& cache) {
  a.past = static_cast<const std::int32_t*>(past.data);
  a.past_stride = past.strides[0];
  a.capacity = cache.keys.shape[2];
}

using HeadsKernel = void (*)(HeadArguments);

template <DType kFrom>
HeadsKernel heads_kernel_to(DType to) {
  if (to == DType::f16) return heads_kernel<kFrom, DType::f16>;
  if (to == DType::bf16) return heads_kernel<kFrom, DType::bf16>;
  if (to == DType::i8) return heads_kernel<kFrom, DType::i8>;
  return heads_kernel<kFrom, DType::f32>;
}

// `heads` is an array of heads, `to` the dtype of the cache or of the result.
void launch_heads(HeadArguments& a, const TensorView& heads, DType to, Device device, void* stream) {
  const std::int64_t count = std::int64_t{a.groups[0].heads} + a.groups[1].heads + a.groups[2].heads;
  const std::int64_t tokens = heads.shape[0] * heads.shape[1];
  if (tokens * count == 0 || a.head_size == 0) return;
  std::int64_t warps = kMaxWarps;
  while (warps > 1 && (warps * a.head_size > kMaxSharedFloats || warps / 2 >= count)) warps /= 2;
  a.blocks = static_cast<int>(ceil_div(count, warps));
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(tokens * a.blocks));
  shape.block = dim3(static_cast<unsigned>(warps * kWarpSize));
  shape.shared_bytes = static_cast<std::size_t>(warps * a.head_size) * sizeof(float);
  shape.overlap = compute_capability(device.index) >= 90;
  DeviceGuard guard(device.index);
  const HeadsKernel kernel = heads.dtype == DType::f16    ? heads_kernel_to<DType::f16>(to)
                             : heads.dtype == DType::bf16 ? heads_kernel_to<DType::bf16>(to)
                                                          : heads_kernel_to<DType::f32>(to);
  launch("decoder_heads", kernel, shape, static_cast<cudaStream_t>(stream), a);
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
  a.groups[0].heads = static_cast<int>(p.x.shape[2]);
  a.groups[0].rotated = true;
  launch_heads(a, p.x, p.y.dtype, p.device, p.stream);
}

void run_cache_cuda(const CacheProblem& p) {
  HeadArguments a = arguments_of(p.keys);
  set_cache(a, p.past, p.cache);
  a.groups[1] = cached_group(p.keys, p.cache.keys, p.cache.key_scales);
  a.groups[2] = cached_group(p.values, p.cache.values, p.cache.value_scales);
  launch_heads(a, p.keys, p.cache.keys.dtype, p.device, p.stream);
}

void run_heads_cuda(const HeadsProblem& p) {
  HeadArguments a = arguments_of(p.q);
  a.eps = p.eps;
  a.round_normalized = p.round_normalized;
  if (p.rotate) set_rotation(a, p.positions, p.cos, p.sin, p.layout);
  set_cache(a, p.past, p.cache);
  a.groups[0].from = a.groups[0].to = array_of(p.q);
  // Q that is neither normed nor rotated stays as it is.
  a.groups[0].heads = p.q_norm.rank || p.rotate ? static_cast<int>(p.q.shape[2]) : 0;
  a.groups[0].in_place = true;
  a.groups[1] = cached_group(p.k, p.cache.keys, p.cache.key_scales);
  a.groups[2] = cached_group(p.v, p.cache.values, p.cache.value_scales);
  if (p.q_norm.rank) a.groups[0].norm = static_cast<const float*>(p.q_norm.data);
  if (p.k_norm.rank) a.groups[1].norm = static_cast<const float*>(p.k_norm.data);
  a.groups[0].rotated = a.groups[1].rotated = p.rotate;
  launch_heads(a, p.q, p.cache.keys.dtype, p.device, p.stream);
}

}  // namespace qcore
