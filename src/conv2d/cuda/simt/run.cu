#include <algorithm>

#include "conv2d/cuda/pixel_rows.cuh"
#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "gemm/cuda/window/window.cuh"
#include "numerics/block_product.h"
#include "numerics/block_scale.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/cuda/ptx.cuh"
#include "runtime/memory.h"

// Thread (tx, ty) of 16 x 16 makes the results ty + 16*i of a panel's column tx, so that a half warp reads the weight's
// steps as they lie, and each of them once for all of its results.
namespace qcore {
namespace {

constexpr int kEdge = PackedLayout::kPanelRows;
constexpr int kManyResults = 4;  // of a thread

struct Arguments {
  DeviceWeight w;
  DeviceOutput out;
  DeviceWindow window;  // steps in rows of x
  std::int64_t first_row;
  FirstResult first;
  int results;
  std::int64_t first_image;  // of x
  std::int64_t outputs_per_group;
};
struct FloatArguments : Arguments {
  RowView x;
};
struct IntegerArguments : Arguments {
  QuantizedRows<std::int16_t> x;  // codes take 16 bits in every mode, so that one kernel serves all three
};

// Rows of x under a tap, one for each of a thread's results; -1: none.
template <int kResults>
using TapRows = std::int64_t[kResults];

// Calls add(rows under the tap, tap, column, totals), tap by tap.
template <int kResults, class Add>
__device__ __forceinline__ void for_each_tap(const Arguments& a, const Add& add) {
  const int tx = static_cast<int>(threadIdx.x) % kEdge, ty = static_cast<int>(threadIdx.x) / kEdge;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kEdge + tx;
  const int result = static_cast<int>(blockIdx.y) * (kResults * kEdge) + ty;
  if (n >= a.w.n || result >= a.results) return;
  WindowOrigin origins[kResults];
#pragma unroll
  for (int i = 0; i < kResults; ++i) {
    if (result + kEdge * i < a.results)
      origins[i].set(a.window, ResultPlace(a.window, a.first, result + kEdge * i), a.first_image);
    else
      origins[i].set_nowhere();
  }
  const std::int64_t group = n / a.outputs_per_group;
  float totals[kResults] = {};
  int tap = 0;
  for (int h = 0; h < a.window.kernel[0]; ++h)
    for (int w = 0; w < a.window.kernel[1]; ++w, ++tap) {
      TapRows<kResults> rows;
#pragma unroll
      for (int i = 0; i < kResults; ++i) {
        std::int64_t row = 0;
        rows[i] = origins[i].find(a.window, h, w, row) ? row + group : -1;
      }
      add(rows, tap, n, totals);
    }
#pragma unroll
  for (int i = 0; i < kResults; ++i)
    if (result + kEdge * i < a.results)
      store_epilogue(a.out, a.out.y.row_offset(a.first_row + result + kEdge * i), n, totals[i]);
}

// Two thread blocks per multiprocessor: without the number ptxas aims at more, and spills.
template <int kResults>
__global__ void __launch_bounds__(kEdge* kEdge, 2) conv2d_simt_float_kernel(const FloatArguments a) {
  for_each_tap<kResults>(a, [&a](const TapRows<kResults>& rows, int tap, std::int64_t n, float (&totals)[kResults]) {
    const std::int64_t panel = n / kEdge;
    const int row = static_cast<int>(n % kEdge);
    std::int64_t x[kResults];
#pragma unroll
    for (int i = 0; i < kResults; ++i) x[i] = rows[i] < 0 ? -1 : a.x.row_offset(rows[i]);
    for (std::int64_t p = 0; p < a.w.blocks; ++p) {
      const std::int64_t parameter = a.w.parameter_index(panel, p, row), length = a.w.block_length(p);
      const float scale = a.w.scales[parameter], offset = a.w.offsets ? a.w.offsets[parameter] : 0.0f;
      float sums[kResults] = {};
      for (std::int64_t k = 0; k < length; k += 4) {
        const std::uint32_t codes = load_codes(a.w, panel * a.w.taps + tap, p, k / 4, row);
        for (int j = 0; j < 4 && k + j < length; ++j) {
          const float w = numerics::decode(static_cast<std::int8_t>(codes >> (8 * j)), scale, offset);
#pragma unroll
          for (int i = 0; i < kResults; ++i)
            if (rows[i] >= 0)
              sums[i] = numerics::fma_once(
                  load_float(a.x.data, a.x.dtype, x[i] + (p * a.w.block_size + k + j) * a.x.column_stride), w, sums[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kResults; ++i)
        if (rows[i] >= 0) totals[i] += sums[i];
    }
  });
}

template <int kResults>
__global__ void __launch_bounds__(kEdge* kEdge, 2) conv2d_simt_integer_kernel(const IntegerArguments a) {
  for_each_tap<kResults>(a, [&a](const TapRows<kResults>& rows, int tap, std::int64_t n, float (&totals)[kResults]) {
    const std::int64_t panel = n / kEdge, quads = a.x.padded_block / 4;
    const int row = static_cast<int>(n % kEdge);
    for (std::int64_t p = 0; p < a.w.blocks; ++p) {
      const std::int64_t parameter = a.w.parameter_index(panel, p, row), length = a.w.block_length(p);
      long long sums[kResults] = {};
      for (std::int64_t quad = 0; 4 * quad < length; ++quad) {
        const std::uint32_t w = load_codes(a.w, panel * a.w.taps + tap, p, quad, row);
#pragma unroll
        for (int i = 0; i < kResults; ++i) {
          if (rows[i] < 0) continue;
          const uint2 x = reinterpret_cast<const uint2*>(a.x.codes)[(rows[i] * a.x.blocks + p) * quads + quad];
          sums[i] += ptx::dot2_high(x.y, w, ptx::dot2_low(x.x, w, 0));
        }
      }
#pragma unroll
      for (int i = 0; i < kResults; ++i) {
        if (rows[i] < 0) continue;
        const std::int64_t at = p * a.x.rows + rows[i];
        float& y = totals[i];
        y = numerics::add_product(y, sums[i], a.x.scales[at], a.w.scales[parameter]);
        if (a.w.offsets) y = numerics::add_weight_offset(y, a.x.scaled_sums[at], a.w.offsets[parameter]);
        if (a.w.sums)
          y = numerics::add_activation_offset(
              y, a.x.offsets[at], a.w.sums[tap * (a.w.panels * a.w.blocks * PackedLayout::kPanelRows) + parameter]);
      }
    }
  });
}

// The results of images first .. end - 1.
template <class Given>
void launch_images(const char* name, void (*few)(Given), void (*many)(Given), Given a, std::int64_t first,
                   std::int64_t end, std::int64_t most, cudaStream_t stream) {
  const std::int64_t of_image = static_cast<std::int64_t>(a.window.output[0]) * a.window.output[1];
  for (a.first_row = first * of_image; a.first_row < end * of_image; a.first_row += a.results) {
    a.first = FirstResult(a.window, a.first_row);
    a.results = static_cast<int>(std::min(most, end * of_image - a.first_row));
    const int rows = a.results <= kEdge ? kEdge : kManyResults * kEdge;
    launch(name, a.results <= kEdge ? few : many,
           {dim3(static_cast<unsigned>(a.w.panels), static_cast<unsigned>(ceil_div(a.results, rows))),
            dim3(kEdge * kEdge)},
           stream, a);
  }
}

void run_integer(const Conv2dProblem& problem, IntegerArguments a, const Conv2dBounds& bounds, cudaStream_t stream) {
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const std::int64_t padded_block = round_up(std::min(a.w.block_size, a.w.k), 4);
  const std::int64_t image_codes = std::max<std::int64_t>(a.window.image * a.w.blocks * padded_block, 1);
  const std::int64_t images = std::min(std::max<std::int64_t>(bounds.codes / image_codes, 1), problem.batch);
  const std::int64_t blocks = images * a.window.image * a.w.blocks;

  ScratchPlan plan;
  const auto codes = plan.add<std::int16_t>(blocks * padded_block);
  const auto scales = plan.add<float>(blocks);
  const auto scaled_sums = plan.add<float>(a.w.offsets ? blocks : 0);
  const auto offsets = plan.add<float>(activation_offsets ? blocks : 0);
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(a.w) : 0);
  CudaScratch scratch(plan, problem.device.index, stream);
  if (activation_offsets) add_weight_sums(a.w, scratch[weight_sums], stream);
  const RowView pixels = pixel_rows(problem);
  for (a.first_image = 0; a.first_image < problem.batch; a.first_image += images) {
    const std::int64_t here = std::min(images, problem.batch - a.first_image);
    a.x = {scratch[codes],
           scratch[scales],
           a.w.offsets ? scratch[scaled_sums] : nullptr,
           activation_offsets ? scratch[offsets] : nullptr,
           here * a.window.image,
           a.w.blocks,
           padded_block};
    quantize_activations(pixels, {}, a.first_image * a.window.image, a.w.k, a.w.block_size, problem.compute, a.x,
                         stream);
    launch_images<IntegerArguments>("conv2d_simt_integer", conv2d_simt_integer_kernel<1>,
                                    conv2d_simt_integer_kernel<kManyResults>, a, a.first_image, a.first_image + here,
                                    bounds.results, stream);
  }
}

}  // namespace

const char* conv2d_simt_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.weight->layout.n >= kMaxWindowExtent) return "it takes less than 2^28 output channels";
  return window_unsupported_reason(problem.rows, problem.columns);
}

void run_conv2d_simt(const Conv2dProblem& problem, const Conv2dBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  Arguments shared{};
  shared.w = device_weight(*problem.weight);
  shared.out = device_output(result_rows(problem), problem.bias, problem.activation);
  const std::int64_t line = problem.columns.input * problem.groups;
  shared.window = device_window(problem.rows, problem.columns, problem.rows.input * line, line, problem.groups);
  shared.outputs_per_group = shared.w.n / problem.groups;
  if (problem.compute != ComputeMode::floating)
    return run_integer(problem, IntegerArguments{shared, {}}, bounds, stream);
  launch_images<FloatArguments>("conv2d_simt_float", conv2d_simt_float_kernel<1>,
                                conv2d_simt_float_kernel<kManyResults>, FloatArguments{shared, pixel_rows(problem)}, 0,
                                problem.batch, bounds.results, stream);
}

}  // namespace qcore
