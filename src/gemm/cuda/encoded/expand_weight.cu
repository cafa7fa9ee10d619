#include <algorithm>

#include "gemm/cuda/encoded/expand_weight.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kRows = PackedLayout::kPanelRows;

struct Arguments {
  DeviceEncoded w;
  std::int64_t first_panel, words, parameters;  // of a panel: words of four codes, scales
  std::uint32_t* codes;
  float *scales, *offsets;
};

// One thread per word of four codes, then one per scale; blockIdx.y goes over the panels. The 16 rows of a panel read
// 64 consecutive bytes of each plane.
__global__ void __launch_bounds__(kThreads) expand_weight_kernel(const __grid_constant__ Arguments a) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t panel = blockIdx.y;
  const int lane = static_cast<int>(at % kRows);
  const PackedLayout& layout = a.w.layout;
  if (at < a.words) {
    const std::int64_t step = at / kRows, block_steps = layout.block_steps(0);
    const std::int64_t p = block_steps ? step / block_steps : 0;
    // Padding is code 0.
    const std::int64_t left = layout.block_length(p) - layout.step_k() * (step - p * block_steps);
    const std::uint32_t stored = a.w.stored_codes(a.first_panel + panel, step, lane);
    const std::uint32_t mask = left >= 4 ? ~0u : (1u << (8 * left)) - 1;
    a.codes[panel * a.words + at] = (stored & mask) | (0x80808080u & ~mask);
    return;
  }
  const std::int64_t parameter = at - a.words;
  if (parameter >= a.parameters) return;
  const std::int64_t row = (a.first_panel + panel) * kRows + lane, p = parameter / kRows;
  const bool exists = row < layout.n;
  a.scales[panel * a.parameters + parameter] = exists ? a.w.encoded.scale(row, p) : 0.0f;
  if (a.offsets) a.offsets[panel * a.parameters + parameter] = exists ? a.w.encoded.offset(row, p) : 0.0f;
}

}  // namespace

std::int64_t expanded_bytes(const PackedWeight& weight, std::int64_t panels) {
  const std::int64_t arrays = weight.has_offsets() ? 2 : 1;
  return panels * (weight.layout.panel_bytes() + weight.layout.blocks() * kRows * 4 * arrays);
}

ScratchPlan ExpandedWeight::plan(const PackedWeight& weight, std::int64_t first, std::int64_t panels) {
  const PackedLayout& layout = weight.layout;
  const std::int64_t n = std::min(layout.n - first * kRows, panels * kRows);
  plain_.layout = PackedLayout(n, layout.k, 1, layout.block_size, 8);
  plain_.shape[0] = n, plain_.shape[1] = layout.k;
  plain_.scheme = weight.scheme;
  plain_.device = weight.device;
  ScratchPlan plan;
  codes_ = plan.add<std::uint8_t>(plain_.layout.code_bytes());
  scales_ = plan.add<float>(plain_.layout.parameter_count());
  offsets_ = plan.add<float>(weight.has_offsets() ? plain_.layout.parameter_count() : 0);
  return plan;
}

ExpandedWeight::ExpandedWeight(const PackedWeight& weight, std::int64_t first, std::int64_t panels, cudaStream_t stream)
    : scratch_(plan(weight, first, panels), weight.device.index, stream) {
  const PackedLayout& layout = plain_.layout;
  plain_.codes = scratch_[codes_];
  plain_.scales = {scratch_[scales_], false};
  if (weight.has_offsets()) plain_.offsets = {scratch_[offsets_], false};
  const std::int64_t words = layout.steps() * kRows, parameters = layout.blocks() * kRows;
  constexpr std::int64_t kMaxGridRows = 65535;
  for (std::int64_t panel = 0; words > 0 && panel < layout.panels(); panel += kMaxGridRows)
    launch("expand_weight", expand_weight_kernel,
           {dim3(static_cast<unsigned>(ceil_div(words + parameters, kThreads)),
                 static_cast<unsigned>(std::min(layout.panels() - panel, kMaxGridRows))),
            dim3(kThreads)},
           stream,
           Arguments{DeviceEncoded(weight), first + panel, words, parameters,
                     reinterpret_cast<std::uint32_t*>(scratch_[codes_]) + panel * words,
                     scratch_[scales_] + panel * parameters,
                     weight.has_offsets() ? scratch_[offsets_] + panel * parameters : nullptr});
}

}  // namespace qcore
