#include <algorithm>

#include "conv2d/cuda/pixel_rows.cuh"
#include "gemm/cuda/sm80_int8_mma/launch.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr std::int64_t kMaxDepth = 1 << 26;  // of all taps: 8 panels are counted in int, 16 bytes at a time
constexpr std::int64_t kMaxGroups = 65535;   // a grid's third axis

}  // namespace

const char* implicit_gemm_unsupported_reason(const Conv2dProblem& problem) {
  const PackedLayout& layout = problem.weight->layout;
  if (layout.blocks() > 1 && layout.block_size % sm80_int8_mma::kChunk)
    return "it takes block sizes that are multiples of 32";
  if (problem.groups > 1 && problem.outputs_per_group() % PackedLayout::kPanelRows)
    return "it takes groups of a multiple of 16 output channels";
  if (problem.groups > kMaxGroups) return "it takes up to 65535 groups";
  if (layout.k * layout.taps > kMaxDepth) return "it takes Ci / groups * Kh * Kw up to 2^26";
  if (const char* reason = window_unsupported_reason(problem.rows, problem.columns)) return reason;
  if (rows_per_image(problem) > kMaxPixels) return "it takes images of up to 2^30 rows of channels";
  if (compute_capability(problem.device.index) < 80) return "it needs compute capability 8.0";
  return nullptr;
}

const char* sm80_int8_implicit_gemm_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.compute != ComputeMode::int8 && problem.compute != ComputeMode::int8_asym)
    return "it computes int8 and int8_asym only";
  const PackedLayout& layout = problem.weight->layout;
  if (const char* reason = long_block_reason(layout)) return reason;
  return implicit_gemm_unsupported_reason(problem);
}

void run_sm80_int8_implicit_gemm(const Conv2dProblem& problem, const Conv2dBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  sm80_int8_mma::WindowArguments a{};
  a.w = device_weight(*problem.weight);
  const std::int64_t padded_block =
      round_up(std::max<std::int64_t>(std::min(a.w.block_size, a.w.k), 1), sm80_int8_mma::kChunk);
  const std::int64_t image_rows = rows_per_image(problem);
  const std::int64_t images = images_at_once(problem, a.w.blocks * padded_block, bounds.codes);
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;

  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(images * image_rows * a.w.blocks * padded_block);
  const auto terms = plan.add<ActivationTerms>(std::max<std::int64_t>(images * image_rows * a.w.blocks, 1));
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(a.w) : 0);
  CudaScratch scratch(plan, problem.device.index, stream);
  if (activation_offsets) add_weight_sums(a.w, scratch[weight_sums], stream);
  a.out = device_output(result_rows(problem), problem.bias, problem.activation);
  a.window =
      device_window(problem.rows, problem.columns, image_rows, problem.columns.input * problem.groups, problem.groups);
  a.y = problem.y;
  a.groups = problem.groups;
  a.enough_tiles = bounds.enough_tiles;
  const RowView pixels = pixel_rows(problem);
  for (std::int64_t image = 0; image < problem.batch; image += images) {
    const std::int64_t here = std::min(images, problem.batch - image);
    a.x = {scratch[codes], nullptr, nullptr, nullptr, here * image_rows, a.w.blocks, padded_block};
    a.x.terms = scratch[terms];
    a.x.zero_code = problem.weight->layout.zero_code();
    quantize_activations(pixels, {}, image * image_rows, a.w.k, a.w.block_size, problem.compute, a.x, stream);
    launch_results(a, problem, bounds, image, image + here, sm80_int8_mma::run<sm80_int8_mma::Im2colRows>);
  }
}

}  // namespace qcore
