#include <algorithm>
#include <optional>

#include "runtime/cuda_device.h"
#include "runtime/cuda_scratch.h"
#include "runtime/memory.h"
#include "static/gemm_operands.cuh"
#include "static/gemm_requantise.cuh"
#include "static/kernels_cuda.h"
#include "static/requantisation.cuh"

// One GEMM of bytes by CUTLASS, which stores codes. Pixels are read in place where their rows suit CUTLASS, and are
// copied into scratch memory where they don't.
namespace qcore {
namespace {

using static_gemm::RequantisingGemm;

constexpr std::int64_t kMostPixels = std::int64_t{1} << 30;  // of one image

bool is_whole(const numerics::WindowAxis& axis) {
  return axis.kernel == 1 && axis.stride == 1 && axis.before == 0 && axis.input == axis.output;
}

// The distance from each of an image's or batch's pixels to the next, if it is one and the same; `alone` for one pixel.
std::optional<std::int64_t> pixel_step(const StaticProblem& problem, const ImageView& view, std::int64_t alone) {
  std::int64_t step = alone, pixels = 1;
  const std::int64_t axes[][2] = {
      {problem.columns.input, view.column}, {problem.rows.input, view.row}, {problem.batch, view.image}};
  for (const auto& [length, stride] : axes) {
    if (length == 1) continue;
    if (pixels == 1)
      step = stride;
    else if (stride != step * pixels)
      return std::nullopt;
    pixels *= length;
  }
  return step;
}

// Likewise of x, or nothing if CUTLASS can't read its rows.
std::optional<std::int64_t> row_length(const StaticProblem& problem) {
  const std::int64_t k = problem.layer->layout.k;
  const std::optional<std::int64_t> step = pixel_step(problem, problem.x, k);
  if (problem.x.channel != 1 || k % 16 != 0 || reinterpret_cast<std::uintptr_t>(problem.x.data) % 16 != 0 || !step ||
      *step < k || *step % 16 != 0)
    return std::nullopt;
  return step;
}

}  // namespace

const char* static_cutlass_why_not(const StaticProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  const StaticLayer& layer = *problem.layer;
  if (!is_whole(problem.rows) || !is_whole(problem.columns) || layer.window.groups != 1)
    return "it takes linear layers, and 1x1 kernels of stride 1 without padding or groups";
  if (layer.parts != 1) return "it takes weights whose differences from their zero point fit in a byte";
  if (layer.layout.k == 0 || layer.layout.k > RequantisingGemm::kMostK) return "it takes 1 to 65536 channels in";
  if (layer.layout.n > RequantisingGemm::kMostColumns) return "it takes up to 4194240 channels out";
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
  const std::optional<std::int64_t> in_place = row_length(problem), y_step = pixel_step(problem, problem.y, 0);
  const std::int64_t most =
      std::min({in_place ? results : std::max<std::int64_t>(bounds.codes / depth, 1), bounds.results, results});

  ScratchPlan plan;
  const auto x = plan.add<std::int8_t>(in_place ? 0 : most * depth), w = plan.add<std::int8_t>(columns * depth);
  CudaScratch scratch(plan, problem.device.index, stream);
  static_gemm::unpack({reinterpret_cast<const std::uint32_t*>(layer.codes), columns,
                       static_cast<int>(layer.layout.steps()), scratch[w], static_cast<int>(depth)},
                      stream);
  RequantisingGemm gemm{};
  gemm.columns = static_cast<int>(columns);
  gemm.k = static_cast<int>(depth);
  gemm.a = scratch[x];
  gemm.lda = in_place.value_or(depth);
  gemm.a_signed = layer.options.x.dtype == DType::i8;
  gemm.b = scratch[w];
  gemm.ldb = depth;
  gemm.n = layer.layout.n;
  gemm.requantisation = requantisation(layer);
  gemm.results.y = problem.y;
  gemm.results.evenly_spaced = y_step.has_value();
  gemm.results.step = y_step.value_or(0);
  gemm.results.window = device_window(problem.rows, problem.columns, 0, 0, 0);
  gemm.enough_tiles = bounds.enough_tiles;
  const auto run = compute_capability(problem.device.index) < 80 ? static_gemm::gemm_requantise_sm75
                                                                 : static_gemm::gemm_requantise_sm80;
  for (std::int64_t first = 0; first < results; first += gemm.m) {
    gemm.m = static_cast<int>(std::min(most, results - first));
    gemm.results.first = FirstResult(gemm.results.window, first);
    if (y_step) gemm.results.y.data = static_cast<const char*>(problem.y.data) + first * *y_step;
    if (in_place)
      gemm.a = static_cast<const std::int8_t*>(problem.x.data) + first * *in_place;
    else
      static_gemm::pack_rows({problem.x, gemm.results.window, gemm.results.first, gemm.m, layer.layout.k,
                              static_cast<int>(depth), scratch[x]},
                             stream);
    run(gemm, stream);
  }
}

void run_static_cutlass(const StaticProblem& problem) { run_static_cutlass(problem, StaticBounds{}); }

}  // namespace qcore
