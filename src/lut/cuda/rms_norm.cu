#include "lut/cuda/device_rows.cuh"
#include "lut/cuda/kernels.h"

namespace qcore {
namespace {

constexpr RowPlan kPlan{4, 0, false};

// By the weights of elements i and following.
template <int kCount>
__device__ __forceinline__ void multiply(float (&y)[kCount], const RowProblem& p, std::int64_t i) {
  const auto by = [&](const auto* weight, const auto& widened) {
    weight += i * p.weight_stride;
#pragma unroll
    for (int j = 0; j < kCount; ++j) y[j] *= widened(weight[j * p.weight_stride]);
  };
  if (p.weight_dtype == DType::f32)
    by(static_cast<const float*>(p.weight), [](float w) { return w; });
  else if (p.weight_dtype == DType::f16)
    by(static_cast<const std::uint16_t*>(p.weight), [](std::uint16_t w) { return numerics::half_to_float(w); });
  else
    by(static_cast<const std::uint16_t*>(p.weight), [](std::uint16_t w) { return numerics::bfloat_to_float(w); });
}

template <class Elements, class Group>
__device__ __forceinline__ void rms_norm_row(const RowArguments& a, const LutOffsets& at, const Group& group,
                                             const char* shared) {
  const RowProblem& p = a.problem;
  const auto load = [&](std::int64_t begin, int count) {
    group.sync();
    Elements::read(p, at, group, begin, count, [&](int i, const auto& x) { put(group.values + i, x); });
    group.sync();
  };
  float sum = 0.0f;
  if constexpr (Group::kIsWarp) {
#pragma unroll 16
    for (std::int64_t i = group.thread; i < p.count; i += kWarpSize) {
      const float x = Elements::load(p, at, i);
      sum = numerics::fma_once(x, x, sum);
    }
  } else {
    for_parts(a, [&](std::int64_t begin, int count) {
      load(begin, count);
      if (group.adds())
        for (int i = group.thread; i < count; i += kWarpSize)
          sum = numerics::fma_once(group.values[i], group.values[i], sum);
    });
  }
  float scale = 0.0f;
  if (group.adds()) {
    const float mean = warp_sum(sum) / static_cast<float>(p.count);
    scale = look_up_in<Reduction::rsqrt>(a.first, shared, group.thread, mean + p.eps);
  }
  scale = group.broadcast(scale);

  const auto finish = [&](std::int64_t i, auto& y) {
    each(y, [&](float& value) { value *= scale; });
    if (p.weight) multiply(y, p, i);
    each(y, [](float& value) { value = plain_nan(value); });
  };
  if constexpr (Group::kIsWarp) {
    group.sync();  // a lane reads elements that it writes, after others have read them
    Elements::map(p, at, group, finish);
  } else {
    for_parts(a, [&](std::int64_t begin, int count) {
      if (p.count > a.row_floats) load(begin, count);
      Elements::write(p, at, group, begin, count, [&](int i, auto& y) {
        get(group.values + i, y);
        finish(begin + i, y);
      });
    });
  }
}

template <bool kWarp, class Elements>
__global__ void __launch_bounds__(kRowThreads, kPlan.blocks_per_multiprocessor)
    rms_norm_kernel(const __grid_constant__ RowArguments a) {
  char* shared = dynamic_shared();
  fill_table(a.first, shared, static_cast<int>(threadIdx.x), kRowThreads);
  __syncthreads();
  const RowGroup<kWarp> group(a, shared);
  for (std::uint32_t row = group.first_row(); row < a.rows; row += group.row_step())
    rms_norm_row<Elements>(a, device_offsets(a.problem.rows, row), group, shared);
}

template <bool kWarp>
constexpr RowKernel kOfDType[4] = {
    rms_norm_kernel<kWarp, VectorElements<DType::f32>>, rms_norm_kernel<kWarp, VectorElements<DType::f16>>,
    rms_norm_kernel<kWarp, VectorElements<DType::bf16>>, rms_norm_kernel<kWarp, StridedElements>};

}  // namespace

void run_rms_norm_cuda(const RowProblem& problem) {
  launch_rows("rms_norm", kOfDType<false>, kOfDType<true>, problem, kPlan);
}

}  // namespace qcore
