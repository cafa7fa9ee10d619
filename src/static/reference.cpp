#include "numerics/requantize.h"
#include "runtime/thread_pool.h"
#include "static/dispatch.h"

namespace qcore {
namespace {

std::int32_t load_code(const ImageView& view, std::int64_t at) {
  return view.dtype == DType::u8 ? std::int32_t{static_cast<const std::uint8_t*>(view.data)[at]}
                                 : std::int32_t{static_cast<const std::int8_t*>(view.data)[at]};
}

// One row of one image's results.
void run_row(const StaticProblem& problem, std::int64_t task) {
  const StaticLayer& layer = *problem.layer;
  const PackedLayout& layout = layer.layout;
  const StaticFormat &x_format = layer.options.x, &y_format = layer.options.y;
  const auto lo = static_cast<float>(layer.options.lo - y_format.zero_point);
  const auto hi = static_cast<float>(layer.options.hi - y_format.zero_point);
  const std::int64_t n = task / problem.rows.output, i = task % problem.rows.output;
  for (std::int64_t j = 0; j < problem.columns.output; ++j) {
    for (std::int64_t channel = 0; channel < layer.shape[0]; ++channel) {
      const std::int64_t first = channel / layout.n * layout.k;
      auto acc = static_cast<std::uint32_t>(layer.acc_init[channel]);
      for (std::int64_t tap = 0; tap < layout.taps; ++tap) {
        const std::int64_t within = tap % layer.kernel_taps();
        const std::int64_t h = problem.rows.at(i, within / layer.shape[3]);
        const std::int64_t w = problem.columns.at(j, within % layer.shape[3]);
        for (std::int64_t k = 0; k < layout.k; ++k) {
          const std::int32_t code =
              h < 0 || w < 0 ? x_format.zero_point : load_code(problem.x, problem.x.offset(n, first + k, h, w));
          acc += static_cast<std::uint32_t>(code * layer.codes[layer.place(channel, k, tap)]);
        }
      }
      const std::int32_t y =
          numerics::requantize(static_cast<std::int32_t>(acc), layer.multipliers[channel], lo, hi, y_format.zero_point);
      static_cast<std::uint8_t*>(const_cast<void*>(problem.y.data))[problem.y.offset(n, channel, i, j)] =
          static_cast<std::uint8_t>(y);
    }
  }
}

}  // namespace

const char* static_reference_unsupported_reason(const StaticProblem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

void run_static_reference(const StaticProblem& problem) {
  parallel_for(problem.batch * problem.rows.output, [&](std::int64_t task) { run_row(problem, task); });
}

}  // namespace qcore
