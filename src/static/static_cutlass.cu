#include <algorithm>

#include "cuda/gemm_int8.cuh"
#include "runtime/cuda_device.h"
#include "runtime/cuda_scratch.h"
#include "runtime/memory.h"
#include "static/kernels_cuda.h"
#include "static/requantisation.cuh"
#include "static/requantise.cuh"

// One GEMM of signed bytes by CUTLASS into int32 products in scratch memory, then a pass that requantises them.
// Unsigned codes are multiplied as x - 128.
namespace qcore {
namespace {

constexpr std::int64_t kMostPixels = std::int64_t{1} << 30;  // of one image
constexpr std::int64_t kLargestExtent = 1 << 24;             // of K and N

bool is_whole(const numerics::WindowAxis& axis) {
  return axis.kernel == 1 && axis.stride == 1 && axis.before == 0 && axis.input == axis.output;
}

}  // namespace

const char* static_cutlass_why_not(const StaticProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  const StaticLayer& layer = *problem.layer;
  if (!is_whole(problem.rows) || !is_whole(problem.columns) || layer.window.groups != 1)
    return "it takes linear layers, and 1x1 kernels of stride 1 without padding or groups";
  if (layer.parts != 1) return "it takes weights whose differences from their zero point fit in a byte";
  if (layer.layout.k == 0 || layer.layout.k > kLargestExtent || layer.layout.n > kLargestExtent)
    return "it takes 1 to 2^24 channels in and out";
  if (!fits_device_window(problem.rows) || !fits_device_window(problem.columns) ||
      problem.rows.input * problem.columns.input > kMostPixels)
    return "it takes images of up to 2^30 pixels, and extents up to 2^28";
  return nullptr;
}

void run_static_cutlass(const StaticProblem& problem, const StaticBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const StaticLayer& layer = *problem.layer;
  const std::int64_t depth = round_up(layer.layout.k, 16), columns = layer.layout.panels() * PackedLayout::kPanelRows;
  const std::int64_t results = problem.results();
  // The products of a pass take no more memory than its codes may.
  const std::int64_t most = std::max<std::int64_t>(
      std::min({bounds.codes / depth, bounds.codes / (4 * columns), bounds.results, results}), 1);
  const bool shifted = layer.options.x.dtype == DType::u8;

  ScratchPlan plan;
  const auto x = plan.add<std::int8_t>(most * depth), w = plan.add<std::int8_t>(columns * depth);
  const auto sums = plan.add<std::int32_t>(most * columns);
  CudaScratch scratch(plan, problem.device.index, stream);
  static_gemm::unpack({reinterpret_cast<const std::uint32_t*>(layer.codes), columns,
                       static_cast<int>(layer.layout.steps()), scratch[w], static_cast<int>(depth)},
                      stream);
  static_gemm::Requantising requantising{};
  requantising.sums = scratch[sums];
  requantising.columns = columns;
  requantising.weight_sums = layer.sums;
  requantising.shift = shifted ? 128 : 0;
  requantising.n = layer.layout.n;
  requantising.window = device_window(problem.rows, problem.columns, 0, 0, 0);
  requantising.y = problem.y;
  requantising.requantisation = requantisation(layer);
  const auto gemm = compute_capability(problem.device.index) < 80 ? gemm_int8_sm75 : gemm_int8_sm80;
  for (std::int64_t first = 0; first < results; first += requantising.results) {
    requantising.first = FirstResult(requantising.window, first);
    requantising.results = static_cast<int>(std::min(most, results - first));
    static_gemm::pack_rows({problem.x, requantising.window, requantising.first, requantising.results, layer.layout.k,
                            shifted ? 0x80808080u : 0u, static_cast<int>(depth), scratch[x]},
                           stream);
    gemm({requantising.results, static_cast<int>(columns), static_cast<int>(depth), scratch[x], depth, scratch[w],
          depth, scratch[sums], columns},
         stream);
    static_gemm::requantise(requantising, stream);
  }
}

void run_static_cutlass(const StaticProblem& problem) { run_static_cutlass(problem, StaticBounds{}); }

}  // namespace qcore
