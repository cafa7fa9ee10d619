#include <algorithm>

#include "conv2d/cuda/pixel_rows.cuh"
#include "conv2d/cuda/sm80_float_implicit_gemm/launch.cuh"
#include "gemm/cuda/split_rows.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr std::int64_t kUnit = 8;  // 16-bit values in 16 bytes

bool multiple_of(const void* data, std::int64_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

// Whether 16-byte copies can take a group's channels of a pixel from where they are.
bool in_place(const Conv2dProblem& problem) {
  const ImageView& x = problem.x;
  const auto whole_units = [](std::int64_t stride, std::int64_t extent) { return extent == 1 || stride % kUnit == 0; };
  return x.dtype != DType::f32 && x.channel == 1 && problem.weight->layout.k % kUnit == 0 && multiple_of(x.data, 16) &&
         whole_units(x.column, problem.columns.input) && whole_units(x.row, problem.rows.input) &&
         whole_units(x.image, problem.batch);
}

// Whether four neighboring channels of y lie side by side and aligned.
bool stores_fours(const Conv2dProblem& problem) {
  const ImageView& y = problem.y;
  const auto whole = [](std::int64_t stride, std::int64_t extent) { return extent == 1 || stride % 4 == 0; };
  return y.channel == 1 && multiple_of(y.data, 4 * item_size(y.dtype)) && whole(y.column, problem.columns.output) &&
         whole(y.row, problem.rows.output) && whole(y.image, problem.batch);
}

void run_results(const sm80_float_implicit_gemm::Arguments& a, cudaStream_t stream) {
  if (a.x.dtype == DType::f16)
    sm80_float_implicit_gemm::run_f16(a, stream);
  else if (a.x.dtype == DType::bf16)
    sm80_float_implicit_gemm::run_bf16(a, stream);
  else
    sm80_float_implicit_gemm::run_f32(a, stream);
}

// The results of images first .. last - 1.
void run_images(sm80_float_implicit_gemm::Arguments& a, const Conv2dProblem& problem, const Conv2dBounds& bounds,
                std::int64_t first, std::int64_t last, cudaStream_t stream) {
  const std::int64_t image_results = problem.rows.output * problem.columns.output;
  a.first_image = first;
  for (a.first_row = first * image_results; a.first_row < last * image_results; a.first_row += a.results) {
    a.first = FirstResult(a.window, a.first_row);
    a.results = static_cast<int>(std::min(bounds.results, last * image_results - a.first_row));
    run_results(a, stream);
  }
}

// Pixels are copied into rows of 16-bit values, as many images at a time as the bounds allow.
void run_copied(sm80_float_implicit_gemm::Arguments& a, const Conv2dProblem& problem, const Conv2dBounds& bounds,
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
    run_images(a, problem, bounds, image, last, stream);
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
  sm80_float_implicit_gemm::Arguments a{};
  a.w = device_weight(*problem.weight);
  a.out = device_output(result_rows(problem), problem.bias, problem.activation);
  a.y = problem.y;
  a.store_fours = stores_fours(problem);
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
  run_images(a, problem, bounds, 0, problem.batch, stream);
}

void run_sm80_float_implicit_gemm(const Conv2dProblem& problem) {
  run_sm80_float_implicit_gemm(problem, Conv2dBounds{});
}

}  // namespace qcore
