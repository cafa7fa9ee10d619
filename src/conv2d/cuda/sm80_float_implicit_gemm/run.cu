#include <algorithm>

#include "conv2d/cuda/pixel_rows.cuh"
#include "formats/row_stride.h"
#include "gemm/cuda/sm80_float_mma/arguments.cuh"
#include "gemm/cuda/split_rows.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr std::int64_t kUnit = 8;  // 16-bit values in 16 bytes

// Whether 16-byte copies can take a group's channels of a pixel from where they are.
bool in_place(const Conv2dProblem& problem) {
  return problem.x.dtype != DType::f32 && problem.weight->layout.k % kUnit == 0 &&
         columns_lie_together(pixel_rows(problem), kUnit);
}

// Pixels are copied into rows of 16-bit values, as many images at a time as the bounds allow.
void run_copied(sm80_float_mma::WindowArguments& a, const Conv2dProblem& problem, const Conv2dBounds& bounds,
                cudaStream_t stream) {
  const std::int64_t image_rows = rows_per_image(problem), row_length = round_up(a.w.k, kUnit);
  const std::int64_t planes = split_planes(problem.x.dtype), units = row_length / kUnit;
  const std::int64_t images =
      images_at_once(problem, static_cast<std::int64_t>(sizeof(std::uint16_t)) * planes * row_length, bounds.codes);
  ScratchPlan plan;
  const auto values = plan.add<std::uint16_t>(images * image_rows * planes * row_length);
  CudaScratch scratch(plan, problem.device.index, stream);
  const RowView pixels = pixel_rows(problem);

  a.window = device_window(problem.rows, problem.columns, image_rows * units,
                           problem.columns.input * problem.groups * units, problem.groups * units);
  a.group_units = units;
  for (std::int64_t image = 0; image < problem.batch; image += images) {
    const std::int64_t last = std::min(image + images, problem.batch), rows = (last - image) * image_rows;
    const SplitRows split{scratch[values], rows, row_length};
    split_rows(pixels, image * image_rows, a.w.k, split, stream);
    a.x.values = reinterpret_cast<const uint4*>(split.values);
    a.x.plane_units = rows * units;
    launch_results(a, problem, bounds, image, last, sm80_float_mma::run<sm80_float_mma::WindowArguments>);
  }
}

}  // namespace

const char* sm80_float_implicit_gemm_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.compute != ComputeMode::floating) return "it computes float only";
  return implicit_gemm_unsupported_reason(problem);
}

void run_sm80_float_implicit_gemm(const Conv2dProblem& problem, const Conv2dBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  sm80_float_mma::WindowArguments a{};
  a.w = device_weight(*problem.weight);
  a.out = device_output(result_rows(problem), problem.bias, problem.activation);
  a.y = problem.y;
  a.store_fours = columns_lie_together(a.out.y, 4);
  a.enough_tiles = bounds.enough_tiles;
  a.groups = problem.groups;
  a.x.units = ceil_div(a.w.k, kUnit);
  a.x.columns = a.w.k;
  a.x.dtype = problem.x.dtype;
  if (!in_place(problem)) return run_copied(a, problem, bounds, stream);
  a.x.values = static_cast<const uint4*>(problem.x.data);
  a.group_units = a.x.units;
  a.window = device_window(problem.rows, problem.columns, problem.x.image / kUnit, problem.x.row / kUnit,
                           problem.x.column / kUnit);
  launch_results(a, problem, bounds, 0, problem.batch, sm80_float_mma::run<sm80_float_mma::WindowArguments>);
}

}  // namespace qcore
