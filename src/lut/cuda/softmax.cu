#include "lut/cuda/device_rows.cuh"
#include "lut/cuda/kernels.h"

namespace qcore {
namespace {

constexpr RowPlan kPlan{4, 3, true};

template <class Elements, class Group, class Table>
__device__ __forceinline__ void softmax_row(const RowArguments& a, const LutOffsets& at, const Group& group,
                                            const Table& exp, const char* second_shared) {
  const RowProblem& p = a.problem;
  const bool stays = p.count <= a.row_floats;
  float most = -numerics::bits_float(numerics::kInfinityBits);
  for_parts(a, [&](std::int64_t begin, int count) {
    Elements::read(p, at, group, begin, count, [&](int i, const auto& x) {
      each(x, [&](float value) { most = value > most ? value : most; });
      if (stays) put(group.values + i, x);
    });
  });
  group.sync();
  most = group.largest(most);

  const auto exponentials = [&](std::int64_t begin, int count) {
    if (!stays) {
      group.sync();
      Elements::read(p, at, group, begin, count, [&](int i, const auto& x) { put(group.values + i, x); });
      group.sync();
    }
#pragma unroll 2
    for (int i = group.thread; i < count; i += group.threads)
      group.values[i] = numerics::lut_eval<Reduction::exp, DeviceLanes>(group.values[i] - most, exp);
    group.sync();
  };
  float sum = 0.0f;
  for_parts(a, [&](std::int64_t begin, int count) {
    exponentials(begin, count);
    if (group.adds())
      for (int i = group.thread; i < count; i += kWarpSize) sum += group.values[i];
  });
  float scale = 0.0f;
  if (group.adds()) scale = look_up_in<Reduction::reciprocal>(a.second, second_shared, group.thread, warp_sum(sum));
  scale = group.broadcast(scale);

  for_parts(a, [&](std::int64_t begin, int count) {
    if (!stays) exponentials(begin, count);
    Elements::write(p, at, group, begin, count, [&](int i, auto& y) {
      get(group.values + i, y);
      each(y, [&](float& value) { value = plain_nan(value * scale); });
    });
  });
  group.sync();
}

template <bool kWarp, class Elements>
__global__ void __launch_bounds__(kRowThreads, kPlan.blocks_per_multiprocessor)
    softmax_kernel(const __grid_constant__ RowArguments a) {
  char* shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  fill_table(a.first, shared, thread, kRowThreads);
  fill_table(a.second, shared + a.first_bytes, thread, kRowThreads);
  __syncthreads();
  const RowGroup<kWarp> group(a, shared);
  with_table(a.first, shared, thread % kWarpSize, [&](const auto& exp) {
    for (std::uint32_t row = group.first_row(); row < a.rows; row += group.row_step())
      softmax_row<Elements>(a, device_offsets(a.problem.rows, row), group, exp, shared + a.first_bytes);
  });
}

template <bool kWarp>
constexpr RowKernel kOfDType[4] = {
    softmax_kernel<kWarp, VectorElements<DType::f32>>, softmax_kernel<kWarp, VectorElements<DType::f16>>,
    softmax_kernel<kWarp, VectorElements<DType::bf16>>, softmax_kernel<kWarp, StridedElements>};

}  // namespace

const char* row_cuda_unsupported_reason(const RowProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on CUDA devices";
}

void run_softmax_cuda(const RowProblem& problem) {
  launch_rows("softmax", kOfDType<false>, kOfDType<true>, problem, kPlan);
}

}  // namespace qcore
