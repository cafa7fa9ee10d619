#include "conv2d/dispatch.h"
#include "formats/compute_mode.h"
#include "gemm/epilogue.h"
#include "numerics/activation_block.h"
#include "numerics/block_product.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

using numerics::BlockScale;

class Reference {
 public:
  explicit Reference(const Conv2dProblem& problem)
      : problem_(problem),
        w_(*problem.weight),
        integer_(problem.compute != ComputeMode::floating),
        mode_(activation_mode(problem.compute)),
        weight_sums_(problem.compute == ComputeMode::int8_asym ? w_.weight_sums() : nullptr) {}

  // One row of one image's results.
  void run(std::int64_t task) const {
    const std::int64_t n = task / problem_.rows.output, i = task % problem_.rows.output;
    for (std::int64_t j = 0; j < problem_.columns.output; ++j)
      for (std::int64_t group = 0; group < problem_.groups; ++group) result(n, i, j, group);
  }

 private:
  // One pixel's results of one group of channels.
  void result(std::int64_t n, std::int64_t i, std::int64_t j, std::int64_t group) const {
    const PackedLayout& layout = w_.layout;
    const std::int64_t outputs = problem_.outputs_per_group();
    Scratch scratch;
    float* totals = scratch.take<float>(outputs);
    float* values = scratch.take<float>(layout.k);
    auto* codes = scratch.take<std::int32_t>(layout.k);
    for (std::int64_t o = 0; o < outputs; ++o) totals[o] = 0.0f;
    for (std::int64_t tap = 0; tap < layout.taps; ++tap) {
      const std::int64_t h = problem_.rows.at(i, tap / problem_.columns.kernel);
      const std::int64_t w = problem_.columns.at(j, tap % problem_.columns.kernel);
      if (h < 0 || w < 0) continue;
      for (std::int64_t k = 0; k < layout.k; ++k)
        values[k] = load_float(problem_.x.data, problem_.x.dtype, problem_.x.offset(n, group * layout.k + k, h, w));
      for (std::int64_t p = 0; p < layout.blocks(); ++p) {
        if (integer_)
          add_codes(values, codes, tap, p, group * outputs, totals);
        else
          add_values(values, tap, p, group * outputs, totals);
      }
    }
    for (std::int64_t o = 0; o < outputs; ++o) {
      const std::int64_t channel = group * outputs + o;
      store_result(problem_, problem_.y.offset(n, channel, i, j), channel, totals[o]);
    }
  }

  // Each block's products are summed first, then added to the total, as linear does.
  void add_values(const float* values, std::int64_t tap, std::int64_t p, std::int64_t first, float* totals) const {
    const std::int64_t begin = w_.layout.block_begin(p), end = begin + w_.layout.block_length(p);
    for (std::int64_t o = 0; o < problem_.outputs_per_group(); ++o) {
      const float scale = w_.scale(first + o, p), offset = w_.offset(first + o, p);
      float sum = 0.0f;
      for (std::int64_t k = begin; k < end; ++k)
        sum = numerics::fma_once(values[k], numerics::decode(w_.code(first + o, k, tap), scale, offset), sum);
      totals[o] += sum;
    }
  }

  void add_codes(const float* values, std::int32_t* codes, std::int64_t tap, std::int64_t p, std::int64_t first,
                 float* totals) const {
    const PackedLayout& layout = w_.layout;
    const std::int64_t begin = layout.block_begin(p), end = begin + layout.block_length(p);
    const BlockScale scale = numerics::activation_scale_of(values + begin, end - begin, mode_);
    std::int64_t sum = 0;
    for (std::int64_t k = begin; k < end; ++k) sum += codes[k] = numerics::activation_code(values[k], scale, mode_);
    for (std::int64_t o = 0; o < problem_.outputs_per_group(); ++o) {
      const std::int64_t row = first + o;
      std::int64_t acc = 0;
      for (std::int64_t k = begin; k < end; ++k) acc += static_cast<std::int64_t>(codes[k]) * w_.code(row, k, tap);
      float y = numerics::add_product(totals[o], acc, scale.scale, w_.scale(row, p));
      if (w_.offsets) y = numerics::add_weight_offset(y, scale.scale * static_cast<float>(sum), w_.offset(row, p));
      if (weight_sums_)
        y = numerics::add_activation_offset(
            y, scale.offset, weight_sums_[tap * layout.parameter_count() + layout.parameter_index(row, p)]);
      totals[o] = y;
    }
  }

  const Conv2dProblem& problem_;
  const PackedWeight& w_;
  bool integer_;
  int mode_;
  const float* weight_sums_;
};

}  // namespace

const char* conv2d_reference_unsupported_reason(const Conv2dProblem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

void run_conv2d_reference(const Conv2dProblem& problem) {
  const Reference reference(problem);
  parallel_for(problem.batch * problem.rows.output, [&](std::int64_t task) { reference.run(task); });
}

}  // namespace qcore
