#include "qcore/linear.h"

#include "conv2d/dispatch.h"

namespace qcore {
namespace {

// [N, C, H, W] as [N, H, W, C].
TensorView pixels(TensorView view) {
  for (auto* axes : {view.shape, view.strides}) {
    const std::int64_t channels = axes[1];
    axes[1] = axes[2];
    axes[2] = axes[3];
    axes[3] = channels;
  }
  return view;
}

}  // namespace

const char* conv2d_linear_unsupported_reason(const Conv2dProblem& problem) {
  if (!problem.is_product()) return "it takes 1x1 kernels of stride 1 without padding or groups";
  if (problem.x.channel != 1 || problem.y.channel != 1) return "it takes channels_last x and out";
  return nullptr;
}

void run_conv2d_linear(const Conv2dProblem& problem) {
  LinearOptions options;
  options.compute = problem.compute;
  options.activation = problem.activation;
  options.stream = problem.stream;
  linear(pixels(*problem.x_view), *problem.quantized, problem.bias_view, pixels(*problem.y_view), options);
}

}  // namespace qcore
