#include <algorithm>

#include "gemm/cuda/window/window.cuh"
#include "numerics/requantize.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"
#include "static/cuda/kernels.h"
#include "static/cuda/requantized_channels.cuh"

// A thread per result: any layer, plain loops.
namespace qcore {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 65535;  // of a grid's second axis

struct Arguments {
  const std::uint32_t* words;  // of StaticLayer: [groups, panels, taps, steps, 16]
  int channels, n;             // of all groups, of one
  int k, panels, steps, parts;
  ImageView x, y;
  bool x_signed;
  int zero_point;  // of x
  DeviceWindow window;
  FirstResult first;
  int results;
  static_gemm::Requantization requantization;
  int channel_shift;  // a thread block has 1 << channel_shift channels of as many results as it has threads for
};

__global__ void __launch_bounds__(kThreads, 4) static_simt_kernel(const Arguments a) {
  const int thread = static_cast<int>(threadIdx.x);
  const int channel = (static_cast<int>(blockIdx.x) << a.channel_shift) + (thread & ((1 << a.channel_shift) - 1));
  const int result = static_cast<int>(blockIdx.y) * (kThreads >> a.channel_shift) + (thread >> a.channel_shift);
  if (channel >= a.channels || result >= a.results) return;
  const ResultPlace place(a.window, a.first, result);
  WindowOrigin origin;
  origin.set(a.window, place, 0);

  const int group = channel / a.n, row = channel - group * a.n,
            taps = a.parts * a.window.kernel[0] * a.window.kernel[1];
  const std::uint32_t* words =
      a.words + (static_cast<std::int64_t>(group) * a.panels + row / 16) * taps * a.steps * 16 + row % 16;
  const auto* x = static_cast<const std::uint8_t*>(a.x.data) + static_cast<std::int64_t>(group) * a.k * a.x.channel;
  auto sum = static_cast<std::uint32_t>(a.requantization.acc_init[channel]);
  for (int part = 0; part < a.parts; ++part)
    for (int i = 0; i < a.window.kernel[0]; ++i)
      for (int j = 0; j < a.window.kernel[1]; ++j, words += static_cast<std::int64_t>(a.steps) * 16) {
        std::int64_t at = 0;
        const bool inside = origin.find(a.window, i, j, at);
        for (int k = 0; k < a.k; k += 4) {
          const std::uint32_t w = words[static_cast<std::int64_t>(k) * 4];
#pragma unroll
          for (int byte = 0; byte < 4; ++byte) {
            if (k + byte >= a.k) break;
            const std::uint8_t* from = x + at + (k + byte) * a.x.channel;
            const int code = !inside ? a.zero_point : a.x_signed ? static_cast<std::int8_t>(*from) : *from;
            sum += static_cast<std::uint32_t>(code * static_cast<std::int8_t>(w >> (8 * byte)));
          }
        }
      }
  const static_gemm::Requantization& to = a.requantization;
  const std::int32_t code =
      numerics::requantize(static_cast<std::int32_t>(sum), to.multipliers[channel], to.lo, to.hi, to.zero_point);
  static_cast<std::uint8_t*>(const_cast<void*>(a.y.data))[a.y.offset(place.image, channel, place.row, place.column)] =
      static_cast<std::uint8_t>(code);
}

}  // namespace

const char* static_simt_unsupported_reason(const StaticProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.layer->shape[0] > kMaxPixels || problem.layer->layout.k > kMaxPixels)
    return "it takes up to 2^30 channels";
  return window_unsupported_reason(problem.rows, problem.columns);
}

void run_static_simt(const StaticProblem& problem, const StaticBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  const StaticLayer& layer = *problem.layer;
  Arguments a{};
  a.words = reinterpret_cast<const std::uint32_t*>(layer.codes);
  a.channels = static_cast<int>(layer.shape[0]);
  a.n = static_cast<int>(layer.layout.n);
  a.k = static_cast<int>(layer.layout.k);
  a.panels = static_cast<int>(layer.layout.panels());
  a.steps = static_cast<int>(layer.layout.steps());
  a.parts = static_cast<int>(layer.parts);
  a.x = problem.x;
  a.y = problem.y;
  a.x_signed = layer.options.x.dtype == DType::i8;
  a.zero_point = layer.options.x.zero_point;
  a.window = device_window(problem.rows, problem.columns, problem.x.image, problem.x.row, problem.x.column);
  a.requantization = static_gemm::Requantization(layer);
  // Neighboring threads are neighbors in y's memory.
  a.channel_shift = problem.y.channel == 1 ? 5 : 0;
  const int rows = kThreads >> a.channel_shift;
  const std::int64_t results = problem.results(), most = std::min<std::int64_t>(bounds.results, kMaxBlocks * rows);
  for (std::int64_t first = 0; first < results; first += a.results) {
    a.first = FirstResult(a.window, first);
    a.results = static_cast<int>(std::min(most, results - first));
    launch("static_simt", static_simt_kernel,
           {dim3(static_cast<unsigned>(ceil_div(a.channels, std::int64_t{1} << a.channel_shift)),
                 static_cast<unsigned>(ceil_div(a.results, rows))),
            dim3(kThreads)},
           static_cast<cudaStream_t>(problem.stream), a);
  }
}

}  // namespace qcore
