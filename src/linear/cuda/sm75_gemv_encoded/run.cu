#include <algorithm>
#include <cstdlib>

#include "linear/cuda/kernels.h"
#include "linear/cuda/sm75_gemv_encoded/gemv_encoded.cuh"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

using namespace gemv_encoded;

// Parameters of two panels that are copied into shared memory; more of them are read where they are.
constexpr std::int64_t kMaxParameterBytes = 40 << 10;
// Before 8.0 weights in blocks of 16 take several launches, because only simt and sm75_int8_sliced take them otherwise.
constexpr std::int64_t kMostBefore80 = 128;

bool has_short_blocks(const PackedLayout& layout) {
  const std::int64_t g = layout.block_size;
  return g == 16 || g == 32 || g == 64 || g == 128;
}

Parameters parameters_of(const EncodedParameters& from) {
  Parameters to{};
  to.type = from.type;
  if (from.type == ParameterType::none) return to;
  to.data = from.data;
  to.super = from.super;
  to.panel_bytes = static_cast<int>(from.panel_bytes());
  to.super_bytes = is_integer(from.type) ? static_cast<int>(from.supers() * PackedLayout::kPanelRows * 2) : 0;
  return to;
}

// Plans the schedule and the shared memory; returns false if there is not enough of it.
bool plan(Arguments& a, int bits, bool quantizes, int shared_bytes) {
  const int x_bytes = quantizes ? a.rows * a.quantizer.code_stride : 0;
  const int terms_bytes = quantizes ? a.rows * a.quantizer.scale_stride * 4 : 0;
  a.shared.lines = a.rows + 1 + (a.offsets.type != ParameterType::none) + a.activation_offsets;
  const std::int64_t parameters =
      2 * (std::int64_t{a.scales.panel_bytes} + a.scales.super_bytes + a.offsets.panel_bytes + a.offsets.super_bytes);
  for (const bool copies : {true, false})
    for (a.warps = kMaxWarps; a.warps >= kMinWarps; a.warps /= 2) {
      if (a.warps > kMinWarps && a.warps / 2 >= a.spans) continue;
      if (copies && parameters > kMaxParameterBytes) break;
      if (quantizes && a.blocks == 1 && a.rows > a.warps) break;
      int at = a.warps * kStages * span_bytes(bits) + x_bytes;
      a.shared.x_scales_at = at;
      a.shared.sums_at = at += terms_bytes;
      a.shared.scaled_sums_at = at += terms_bytes;
      if (a.offsets.type != ParameterType::none) at += terms_bytes;
      for (Parameters* each : {&a.scales, &a.offsets}) {
        each->data_at = copies ? at : -1;
        each->super_at = at + 2 * each->panel_bytes;
        if (copies) at = each->super_at + 2 * each->super_bytes;
      }
      a.shared.slots_at = at;
      const std::int64_t bytes = at + std::int64_t{2} * a.warps * a.span_blocks * a.shared.lines * kColumns * 4;
      a.shared.bytes = static_cast<int>(bytes);
      if (bytes <= shared_bytes) return true;
    }
  return false;
}

// Everything but x and y.
Arguments arguments_of(const LinearProblem& problem) {
  const PackedWeight& weight = *problem.weight;
  const PackedLayout& layout = weight.layout;
  const EncodedWeight& encoded = *weight.encoded;
  const WeightEncoding& encoding = encoded.encoding;
  Arguments a{};
  a.codes = weight.codes;
  a.code_panel_bytes = encoded.code_panel_bytes(layout);
  a.n = layout.n, a.panels = layout.panels();
  a.k = static_cast<int>(layout.k);
  a.blocks = static_cast<int>(layout.blocks());
  a.block_size = static_cast<int>(std::min(layout.block_size, layout.k));
  a.zero = encoding.has_codebook ? 128 : encoding.zero;
  for (int i = 0; i < 16; ++i)
    a.codebook[i / 4] |= static_cast<std::uint32_t>(encoding.codebook[i] + 128) << (8 * (i % 4));
  a.form = ParameterForm(encoding);
  a.scales = parameters_of(encoded.scales);
  a.offsets = parameters_of(encoded.offsets);
  a.out = device_output(problem);
  a.rows = static_cast<int>(std::min<std::int64_t>(problem.m, kMaxRows));
  a.activation_offsets = problem.compute == ComputeMode::int8_asym;
  const bool spans_have_blocks = layout.blocks() > 1 && has_short_blocks(layout);
  a.span_blocks = spans_have_blocks ? kSpan / a.block_size : 1;
  a.block_spans = spans_have_blocks ? 1 : static_cast<int>(ceil_div(std::max(a.block_size, 1), kSpan));
  a.spans = static_cast<int>(ceil_div(layout.k, kSpan));
  return a;
}

// Returns whether thread blocks can quantize a.rows rows of x from `first` on themselves, and fills `a.quantizer`.
bool set_quantizer(const LinearProblem& problem, std::int64_t first, Arguments& a) {
  const PackedLayout& layout = problem.weight->layout;
  if (problem.compute != ComputeMode::int8 || a.rows > RowQuantizer::kMaxRows || a.k == 0 ||
      a.k % RowQuantizer::kUnit || problem.x.column_stride != 1 ||
      reinterpret_cast<std::uintptr_t>(problem.x.data) % 16)
    return false;
  const bool one_block = a.blocks == 1;
  if (!one_block && !has_short_blocks(layout)) return false;
  const ActivationScales& scales = problem.scales;
  if (scales.source == ActivationScales::Source::fixed && !one_block) return false;
  if (scales.source == ActivationScales::Source::per_row && !one_block && a.block_size < RowQuantizer::kShortest)
    return false;
  RowQuantizer& x = a.quantizer;
  x.x = problem.x.data;
  x.dtype = problem.x.dtype;
  x.zero_code = -1;  // shifts are sums
  x.rows = a.rows, x.blocks = a.blocks, x.k = a.k;
  x.code_stride = static_cast<int>(round_up(a.k, kSpan)) + 32;
  x.scale_stride = static_cast<int>(round_up(a.blocks, 4));
  x.source = scales.source;
  x.fixed = scales.fixed;
  x.given = static_cast<const float*>(scales.scales.data);
  if (std::abs(scales.scales.column_stride) > kMaxFeatures) return false;
  x.given_step = static_cast<int>(scales.scales.column_stride);
  x.given_blocks = static_cast<int>(scales.blocks_per_scale);
  for (int row = 0; row < x.rows; ++row) {
    x.row_at[row] = problem.x.row_offset(first + row);
    x.given_at[row] = scales.given() ? scales.scales.row_offset(first + row) : 0;
    if (x.row_at[row] * item_size(x.dtype) % 16) return false;
  }
  return true;
}

}  // namespace

const char* sm75_gemv_encoded_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  const PackedWeight& weight = *problem.weight;
  if (!weight.encoded) return "it takes encoded weights";
  if (problem.compute != ComputeMode::int8 && problem.compute != ComputeMode::int8_asym)
    return "it computes int8 and int8_asym only";
  const PackedLayout& layout = weight.layout;
  const int capability = compute_capability(problem.device.index);
  if (problem.m > (layout.block_size == 16 && capability < 80 ? kMostBefore80 : kMaxRows))
    return "it takes M up to 8; with blocks of 16 before compute capability 8.0 up to 128";
  const WeightEncoding& encoding = weight.encoded->encoding;
  if (encoding.has_codebook && encoding.bits != 4) return "it takes codebooks of 4 bits";
  if (layout.blocks() > 1 && !has_short_blocks(layout) && layout.block_size % kSpan)
    return "it takes block sizes 16, 32, 64 and multiples of 128, and one block per row";
  if (layout.k > kMaxFeatures) return "it takes K up to 2^20";
  if (const char* reason = long_block_reason(layout)) return reason;
  if (layout.n > kMaxColumns) return "it takes N up to 2^31";
  if (encoding.super_block & (encoding.super_block - 1)) return "it takes super-blocks of a power of two";
  if (capability < 75) return "it needs compute capability 7.5";
  Arguments a = arguments_of(problem);
  return plan(a, encoding.bits, false, most_shared_bytes(problem.device.index))
             ? nullptr
             : "the sums of so many rows do not fit in its shared memory";
}

void run_sm75_gemv_encoded(const LinearProblem& problem, const ScratchBounds&) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const int device = problem.device.index;
  const WeightEncoding& encoding = problem.weight->encoded->encoding;
  const bool overlap = compute_capability(device) >= 90;
  Arguments a = arguments_of(problem);
  for (std::int64_t first = 0; first < problem.m; first += kMaxRows) {
    a.rows = static_cast<int>(std::min<std::int64_t>(problem.m - first, kMaxRows));
    for (int row = 0; row < a.rows; ++row) a.y_at[row] = problem.y.row_offset(first + row);
    if (set_quantizer(problem, first, a) && plan(a, encoding.bits, true, most_shared_bytes(device))) {
      gemv_encoded::run(a, encoding.bits, encoding.has_codebook, true, overlap, stream);
      continue;
    }
    const std::int64_t padded = round_up(std::max(a.block_size, 1), a.block_size == 16 ? 16 : kChunk);
    a.row_codes = static_cast<int>(a.blocks * padded);
    ScratchPlan memory;
    const auto codes = memory.add<std::int8_t>(std::int64_t{a.rows} * a.row_codes);
    const auto terms = memory.add<ActivationTerms>(std::int64_t{a.rows} * a.blocks);
    CudaScratch scratch(memory, device, stream);
    a.x = {scratch[codes], nullptr, nullptr, nullptr, a.rows, a.blocks, padded};
    a.x.terms = scratch[terms];
    a.x.zero_code = -1;
    quantize_activations(problem.x, problem.scales, first, a.k, problem.weight->layout.block_size, problem.compute, a.x,
                         stream);
    plan(a, encoding.bits, false, most_shared_bytes(device));
    gemv_encoded::run(a, encoding.bits, encoding.has_codebook, false, overlap, stream);
  }
}

}  // namespace qcore
