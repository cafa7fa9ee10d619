#include "linear/cuda/sm75_gemv/gemv_int8_kernel.cuh"
#include "linear/cuda/tile_limits.h"
#include "linear/grouped/cuda/kernels.h"
#include "linear/grouped/cuda/operands.cuh"

namespace qcore {
namespace gemv {
namespace {

template <int kBits, int kBlockChunks>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, kBlockChunks == 0 ? 1 : kResidentBlocks)
    grouped_gemv_kernel(const __grid_constant__ Int8Arguments a) {
  Int8<kBits, kBlockChunks, true>(a).run();
}

template <int kBits>
void launch_blocks(const Int8Arguments& a, const LaunchShape& shape, cudaStream_t stream) {
  const auto kernel = a.one_block            ? grouped_gemv_kernel<kBits, 0>
                      : a.w.block_size == 32 ? grouped_gemv_kernel<kBits, 1>
                      : a.w.block_size == 64 ? grouped_gemv_kernel<kBits, 2>
                                             : grouped_gemv_kernel<kBits, 4>;
  launch("grouped_gemv", kernel, shape, stream, a);
}

bool arguments_of(const GroupedLinearProblem& problem, Int8Arguments& a) {
  DeviceWeight w = device_weight(*problem.weight);
  w.n = problem.outputs();
  w.panels = w.n / PackedLayout::kPanelRows;
  if (!int8_arguments(problem, w, true, 0, a)) return false;
  a.out = expert_output(problem);
  a.experts = expert_counts(problem);
  return true;
}

}  // namespace
}  // namespace gemv

const char* grouped_gemv_unsupported_reason(const GroupedLinearProblem& problem) {
  if (problem.device.type == DeviceType::cuda && problem.compute != ComputeMode::int8) return "it computes int8 only";
  if (const char* reason = tile_unsupported_reason(problem, true, 90)) return reason;
  if (problem.weight->has_offsets()) return "it takes symmetric weights";
  if (problem.m > RowQuantizer::kMaxRows) return "it takes M up to 8";
  if (problem.outputs() % PackedLayout::kPanelRows) return "it takes N that are multiples of 16";
  gemv::Int8Arguments arguments{};
  return gemv::arguments_of(problem, arguments)
             ? experts_unsupported_reason(problem)
             : "it takes block sizes 32, 64 and 128 and one block per row, and rows at multiples of 16 bytes";
}

void run_grouped_gemv(const GroupedLinearProblem& problem, const ScratchBounds&) {
  if (problem.m == 0 || problem.outputs() == 0) return;
  DeviceGuard guard(problem.device.index);
  gemv::Int8Arguments a{};
  gemv::arguments_of(problem, a);
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.w.panels, 2)), static_cast<unsigned>(problem.m)),
                    dim3(static_cast<unsigned>(a.warps * kWarpSize)), static_cast<std::size_t>(a.layout.weights.bytes)};
  shape.overlap = true;
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  a.w.bits == 8 ? gemv::launch_blocks<8>(a, shape, stream) : gemv::launch_blocks<4>(a, shape, stream);
}

}  // namespace qcore
