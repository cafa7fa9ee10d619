#include <algorithm>

#include "conv2d/cuda/pixel_rows.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "numerics/block_product.h"
#include "numerics/block_scale.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/cuda/ptx.cuh"
#include "runtime/memory.h"

// A thread per result, with the reference's operations in its order: 16 x 16 of them are a panel's channels by 16
// pixels, so that a half warp reads the weights' steps as they lie.
namespace qcore {
namespace {

constexpr int kEdge = PackedLayout::kPanelRows;

struct Arguments {
  DeviceWeight w;
  DeviceOutput out;
  DeviceWindow window;
  ImageView y;
  FirstResult first;
  int results;
  std::int64_t first_image;  // of x
  int outputs_per_group;
};
struct FloatArguments : Arguments {  // window: steps in elements of x
  const void* x;
  DType dtype;
  std::int64_t channel;
};
struct IntegerArguments : Arguments {  // window: steps in rows of x
  QuantizedRows<std::int16_t> x;       // codes take 16 bits in every mode, so that one kernel serves all three
};

// Calls add(place under the tap, tap, total), tap by tap.
template <class Add>
__device__ __forceinline__ void for_each_tap(const Arguments& a, const Add& add) {
  const int tx = static_cast<int>(threadIdx.x) % kEdge, ty = static_cast<int>(threadIdx.x) / kEdge;
  const int n = static_cast<int>(blockIdx.x) * kEdge + tx, result = static_cast<int>(blockIdx.y) * kEdge + ty;
  if (n >= a.w.n || result >= a.results) return;
  const ResultPlace place(a.window, a.first, result);
  WindowOrigin origin;
  origin.set(a.window, place, a.first_image);
  float total = 0.0f;
  int tap = 0;
  for (int i = 0; i < a.window.kernel[0]; ++i)
    for (int j = 0; j < a.window.kernel[1]; ++j, ++tap) {
      std::int64_t at;
      if (origin.find(a.window, i, j, at)) total = add(at, tap, n, total);
    }
  store_epilogue(a.out, a.y.offset(place.image, 0, place.row, place.column), n, total);
}

__global__ void __launch_bounds__(kEdge* kEdge) conv2d_simt_float_kernel(const FloatArguments a) {
  for_each_tap(a, [&a](std::int64_t at, int tap, int n, float total) {
    const std::int64_t panel = n / kEdge, channels = at + n / a.outputs_per_group * a.w.k * a.channel;
    const int row = n % kEdge;
    for (std::int64_t p = 0; p < a.w.blocks; ++p) {
      const std::int64_t parameter = a.w.parameter_index(panel, p, row), length = a.w.block_length(p);
      const float scale = a.w.scales[parameter], offset = a.w.offsets ? a.w.offsets[parameter] : 0.0f;
      float sum = 0.0f;
      for (std::int64_t k = 0; k < length; k += 4) {
        const std::uint32_t codes = load_codes(a.w, panel * a.w.taps + tap, p, k / 4, row);
        for (int i = 0; i < 4 && k + i < length; ++i) {
          const float value = load_float(a.x, a.dtype, channels + (p * a.w.block_size + k + i) * a.channel);
          sum = numerics::fma_once(value, numerics::decode(static_cast<std::int8_t>(codes >> (8 * i)), scale, offset),
                                   sum);
        }
      }
      total += sum;
    }
    return total;
  });
}

__global__ void __launch_bounds__(kEdge* kEdge) conv2d_simt_integer_kernel(const IntegerArguments a) {
  for_each_tap(a, [&a](std::int64_t at, int tap, int n, float total) {
    const std::int64_t panel = n / kEdge, x_row = at + n / a.outputs_per_group;
    const int row = n % kEdge;
    const std::int64_t quads = a.x.padded_block / 4;
    for (std::int64_t p = 0; p < a.w.blocks; ++p) {
      const std::int64_t parameter = a.w.parameter_index(panel, p, row), length = a.w.block_length(p);
      const uint2* x = reinterpret_cast<const uint2*>(a.x.codes) + (x_row * a.x.blocks + p) * quads;
      long long acc = 0;
      for (std::int64_t quad = 0; 4 * quad < length; ++quad) {
        const std::uint32_t w = load_codes(a.w, panel * a.w.taps + tap, p, quad, row);
        acc += ptx::dot2_high(x[quad].y, w, ptx::dot2_low(x[quad].x, w, 0));
      }
      const std::int64_t x_parameter = p * a.x.rows + x_row;
      total = numerics::add_product(total, acc, a.x.scales[x_parameter], a.w.scales[parameter]);
      if (a.w.offsets) total = numerics::add_weight_offset(total, a.x.scaled_sums[x_parameter], a.w.offsets[parameter]);
      if (a.w.sums) {
        const std::int64_t of_tap = tap * a.w.panels * a.w.blocks * PackedLayout::kPanelRows;
        total = numerics::add_activation_offset(total, a.x.offsets[x_parameter], a.w.sums[of_tap + parameter]);
      }
    }
    return total;
  });
}

template <class Given>
void launch_simt(const char* name, void (*kernel)(Given), Given a, std::int64_t first, std::int64_t last,
                 std::int64_t most, cudaStream_t stream) {
  for (; first < last; first += a.results) {
    a.first = FirstResult(a.window, first);
    a.results = static_cast<int>(std::min(most, last - first));
    launch(name, kernel,
           {dim3(static_cast<unsigned>(a.w.panels), static_cast<unsigned>(ceil_div(a.results, kEdge))),
            dim3(kEdge * kEdge)},
           stream, a);
  }
}

void run_float(const Conv2dProblem& problem, const Arguments& shared, const Conv2dBounds& bounds, cudaStream_t stream) {
  FloatArguments a{};
  static_cast<Arguments&>(a) = shared;
  a.window = device_window(problem.rows, problem.columns, problem.x.image, problem.x.row, problem.x.column);
  a.x = problem.x.data;
  a.dtype = problem.x.dtype;
  a.channel = problem.x.channel;
  const std::int64_t results = problem.batch * problem.rows.output * problem.columns.output;
  launch_simt<FloatArguments>("conv2d_simt_float", conv2d_simt_float_kernel, a, 0, results, bounds.results, stream);
}

void run_integer(const Conv2dProblem& problem, const Arguments& shared, const Conv2dBounds& bounds,
                 cudaStream_t stream) {
  IntegerArguments a{};
  static_cast<Arguments&>(a) = shared;
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const std::int64_t padded_block = round_up(std::min(a.w.block_size, a.w.k), 4);
  const std::int64_t image_rows = rows_per_image(problem);
  const std::int64_t images = images_at_once(problem, a.w.blocks * padded_block, bounds.codes);
  const std::int64_t blocks = images * image_rows * a.w.blocks;

  ScratchPlan plan;
  const auto codes = plan.add<std::int16_t>(blocks * padded_block);
  const auto scales = plan.add<float>(blocks);
  const auto scaled_sums = plan.add<float>(a.w.offsets ? blocks : 0);
  const auto offsets = plan.add<float>(activation_offsets ? blocks : 0);
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(a.w) : 0);
  CudaScratch scratch(plan, problem.device.index, stream);
  if (activation_offsets) add_weight_sums(a.w, scratch[weight_sums], stream);
  a.window =
      device_window(problem.rows, problem.columns, image_rows, problem.columns.input * problem.groups, problem.groups);
  const RowView pixels = pixel_rows(problem);
  const std::int64_t image_results = problem.rows.output * problem.columns.output;
  for (std::int64_t image = 0; image < problem.batch; image += images) {
    const std::int64_t here = std::min(images, problem.batch - image);
    a.x = {scratch[codes],
           scratch[scales],
           a.w.offsets ? scratch[scaled_sums] : nullptr,
           activation_offsets ? scratch[offsets] : nullptr,
           here * image_rows,
           a.w.blocks,
           padded_block};
    quantize_activations(pixels, image * image_rows, a.w.k, a.w.block_size, problem.compute, a.x, stream);
    a.first_image = image;
    launch_simt<IntegerArguments>("conv2d_simt_integer", conv2d_simt_integer_kernel, a, image * image_results,
                                  (image + here) * image_results, bounds.results, stream);
  }
}

}  // namespace

const char* conv2d_simt_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.weight->layout.n >= kMaxWindowExtent) return "it takes less than 2^28 output channels";
  if (!fits_device_window(problem.rows) || !fits_device_window(problem.columns) ||
      problem.rows.output * problem.columns.output > std::int64_t{1} << 30)
    return "it takes images of up to 2^30 pixels, and extents and windows up to 2^28";
  return nullptr;
}

void run_conv2d_simt(const Conv2dProblem& problem, const Conv2dBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  Arguments a{};
  a.w = device_weight(*problem.weight);
  a.out = device_output(result_rows(problem), problem.bias, problem.activation);
  a.y = problem.y;
  a.outputs_per_group = static_cast<int>(problem.outputs_per_group());
  if (problem.compute == ComputeMode::floating)
    run_float(problem, a, bounds, stream);
  else
    run_integer(problem, a, bounds, stream);
}

void run_conv2d_simt(const Conv2dProblem& problem) { run_conv2d_simt(problem, Conv2dBounds{}); }

}  // namespace qcore
