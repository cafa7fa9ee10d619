#include <algorithm>

#include "conv2d/cuda/pixel_rows.cuh"
#include "formats/row_stride.h"
#include "gemm/cuda/sm90_float_wgmma/arguments.cuh"
#include "gemm/cuda/sm90_float_wgmma/plan.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"

// Float activations under a window on sm_90: the tiles of linear's sm90_float_wgmma. The copy engine finds the pixels
// under each tap.
namespace qcore {
namespace {

constexpr std::int64_t kUnit = 8;  // 16-bit values in 16 bytes

// How far apart pixels are, in values, where there is more than one along an axis; the copy engine takes no other 0.
struct PixelSteps {
  std::int64_t image, row, column;

  explicit PixelSteps(const Conv2dProblem& problem) {
    const ImageView& x = problem.x;
    column = problem.columns.input > 1 ? x.column : problem.weight->layout.k;
    row = problem.rows.input > 1 ? x.row : column * problem.columns.input;
    image = problem.batch > 1 ? x.image : row * problem.rows.input;
  }
  bool fit() const {
    for (const std::int64_t step : {image, row, column})
      if (step <= 0 || step % kUnit) return false;
    return true;
  }
};

}  // namespace

const char* sm90_float_implicit_gemm_unsupported_reason(const Conv2dProblem& problem) {
  if (const char* reason = sm80_float_implicit_gemm_unsupported_reason(problem)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  if (problem.x.dtype == DType::f32) return "it takes fp16 and bf16 x";
  if (problem.weight->offsets) return "it takes symmetric weights";
  if (problem.groups != 1) return "it takes one group";
  if (layout.k == 0 || layout.taps == 0 || layout.k % sm90_float_wgmma::kStageK ||
      (layout.blocks() > 1 && (layout.k % layout.block_size || layout.block_size % (sm90_float_wgmma::kStageK / 2))))
    return "it takes multiples of 64 channels, in whole blocks of multiples of 32";
  if (!PixelSteps(problem).fit() || !columns_lie_together(pixel_rows(problem), kUnit))
    return "it takes pixels whose channels lie side by side, at multiples of 16 bytes";
  if (!fits_image_copies(problem.rows) || !fits_image_copies(problem.columns))
    return "it takes windows of up to 256 pixels, strides up to 8 and padding up to 127";
  if (compute_capability(problem.device.index) != 90) return "it needs compute capability 9.0";
  return nullptr;
}

// On one H100: 14.0 instead of 8.0 us with 8 tiles, 11.9 instead of 13.4 with 49.
bool sm90_float_implicit_gemm_pays(const Conv2dProblem& problem) {
  constexpr std::int64_t kMinTiles = 24;
  const std::int64_t results = problem.batch * results_per_image(problem);
  return ceil_div(problem.weight->layout.n, sm90_float_wgmma::Tuning::kColumns) *
             ceil_div(results, sm90_float_wgmma::kPartRows) >=
         kMinTiles;
}

void run_sm90_float_implicit_gemm(const Conv2dProblem& problem, const Conv2dBounds& bounds) {
  const std::int64_t results = problem.batch * results_per_image(problem);
  if (results == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const PixelSteps steps(problem);
  sm90_float_wgmma::Arguments a{};
  a.w = device_weight(*problem.weight);
  a.window.of = device_window(problem.rows, problem.columns, steps.image, steps.row, steps.column);
  a.window.images = problem.batch;
  a.window.channels = static_cast<int>(a.w.k);
  a.w.k *= a.w.taps;
  a.w.steps *= a.w.taps;
  a.values = static_cast<const std::uint16_t*>(problem.x.data);
  a.dtype = problem.x.dtype;
  a.out = device_output(result_rows(problem), problem.bias, problem.activation);
  a.pairs = a.out.y.leading == 1 && columns_lie_together(a.out.y, 2);
  const std::int64_t most = std::min(results, bounds.results);
  const auto plan = [&](std::int64_t count) {
    const std::int64_t x_bytes = 2 * problem.batch * rows_per_image(problem) * a.window.channels;
    return sm90_float_wgmma::plan(count, x_bytes, a.w, multiprocessors(problem.device.index), bounds.tile);
  };
  const sm90_float_wgmma::Plan plans[] = {plan(most), plan((results - 1) % most + 1)};

  ScratchPlan scratch_plan;
  const SpreadScratch spread = sm90_float_wgmma::spread_scratch(scratch_plan, plans[0], plans[1]);
  CudaScratch scratch(scratch_plan, problem.device.index, stream);
  for_each_results(problem, 0, problem.batch, most, [&](std::int64_t first, std::int64_t count) {
    const sm90_float_wgmma::Plan& chosen = plans[count == most ? 0 : 1];
    a.window.first = FirstResult(a.window.of, first);
    a.first_row = first;
    a.rows = count;
    a.parts = chosen.parts;
    a.spread = chosen.spread;
    if (chosen.spread) a.spread_totals = spread.totals(scratch);
    sm90_float_wgmma::set_maps(a);
    a.dtype == DType::f16 ? sm90_float_wgmma::run_f16(a, stream) : sm90_float_wgmma::run_bf16(a, stream);
  });
}

}  // namespace qcore
