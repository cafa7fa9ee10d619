#include <algorithm>
#include <cstdlib>

#include "gemm/cuda/sm90_int8_mma/arguments.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/sm75_gemv/gemv_int8.cuh"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"

namespace qcore {
namespace {

// Limits of the dynamic shared memory of a thread block: before sm_80, from sm_80 on, and on sm_90.
constexpr int kMaxSharedBytes75 = 64 << 10, kMaxSharedBytes = 99 << 10, kMaxSharedBytes90 = 227 << 10;
constexpr std::int64_t kMaxShortDepth = 1 << 20;

// Returns whether sm90_int8_wgmma is faster, for which sm90_int8_mma leaves these rows as well. Measured on an H200,
// see docs/notes/linear-cuda.md.
bool leaves_to_warpgroups(const LinearProblem& problem) {
  const PackedLayout& layout = problem.weight->layout;
  if (sm90_int8_wgmma_unsupported_reason(problem)) return false;
  const int processors = multiprocessors(problem.device.index);
  const std::int64_t g = layout.block_size;
  const bool one_block = layout.blocks() == 1, few_rows = problem.m <= RowQuantizer::kMaxRows;
  const std::int64_t groups = ceil_div(layout.n, gemv::kColumns);
  const bool many_columns = groups > processors;
  if (problem.compute == ComputeMode::int8_asym)
    return few_rows ? g == 32 && !one_block && many_columns : !one_block || many_columns;
  if (one_block) return !few_rows && (layout.bits == 8 || many_columns);
  if (g > 128) return layout.bits == 8 || groups > (few_rows ? 2 : 1) * processors;
  return !few_rows && !sm90_int8_mma::Tuning::is_faster(problem.m, layout.n, layout.k, g, layout.bits,
                                                        problem.weight->has_offsets(), processors);
}

void run_gemv_integer(const LinearProblem& problem, const DeviceWeight& w, std::int64_t padded_block,
                      cudaStream_t stream) {
  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(problem.m * w.blocks * padded_block);
  const auto terms = plan.add<ActivationTerms>(problem.m * w.blocks);
  CudaScratch scratch(plan, problem.device.index, stream);
  QuantizedRows<std::int8_t> x{scratch[codes], nullptr, nullptr, nullptr, problem.m, w.blocks, padded_block};
  x.terms = scratch[terms];
  x.zero_code = problem.weight->layout.zero_code();
  quantize_activations(problem.x, problem.scales, 0, w.k, w.block_size, problem.compute, x, stream);
  const gemv::SplitKSchedule schedule = gemv::plan_split_k(w, padded_block, static_cast<int>(problem.m));
  gemv::run_integer({x, 0, w, device_output(problem), schedule, problem.compute == ComputeMode::int8_asym}, stream);
}

void run_gemv_float(const LinearProblem& problem, const DeviceWeight& w, std::int64_t padded_block,
                    cudaStream_t stream) {
  ScratchPlan plan;
  const auto values = plan.add<float>(problem.m * w.blocks * padded_block);
  CudaScratch scratch(plan, problem.device.index, stream);
  const gemv::FloatRows x{scratch[values], problem.m, w.blocks, padded_block};
  gemv::gather_rows(problem.x, w, x, stream);
  const gemv::SplitKSchedule schedule = gemv::plan_split_k(w, padded_block, static_cast<int>(problem.m));
  gemv::run_float({x, 0, w, device_output(problem), schedule}, stream);
}

}  // namespace

bool gemv::int8_arguments(const LinearProblem& problem, const DeviceWeight& w, bool experts,
                          std::int64_t multiprocessors, Int8Arguments& a) {
  if (problem.compute != ComputeMode::int8 || w.offsets || problem.m > RowQuantizer::kMaxRows || w.k == 0 ||
      w.k % RowQuantizer::kUnit || w.k > kMaxShortDepth || problem.x.column_stride != 1 ||
      reinterpret_cast<std::uintptr_t>(problem.x.data) % 16)
    return false;
  const bool short_blocks = w.block_size == 32 || w.block_size == 64 || w.block_size == 128;
  a.one_block = !short_blocks && w.blocks == 1;
  if (!short_blocks && !a.one_block) return false;
  const ActivationScales& scales = problem.scales;
  if (scales.source == ActivationScales::Source::fixed && !a.one_block) return false;
  if (scales.source == ActivationScales::Source::per_row && w.blocks > 1 && w.block_size < RowQuantizer::kShortest)
    return false;
  a.w = w;
  a.out = device_output(problem);
  RowQuantizer& x = a.x;
  x.x = problem.x.data;
  x.dtype = problem.x.dtype;
  x.zero_code = problem.weight->layout.zero_code();
  x.rows = experts ? 1 : static_cast<int>(problem.m);
  x.blocks = static_cast<int>(w.blocks);
  x.k = static_cast<int>(w.k);
  // Lanes read 8 codes of a row at a time, or 4: rows that lie 32 or 16 bytes more than whole 128 apart take different
  // banks.
  const std::int64_t codes =
      a.one_block ? round_up(w.k, round_chunks(w.bits) * kChunk) : round_up(w.blocks * w.block_size, 128);
  x.code_stride = static_cast<int>(codes) + (w.bits == 8 ? 16 : 32);
  x.scale_stride = static_cast<int>(round_up(w.blocks, 4));
  x.source = scales.source;
  x.fixed = scales.fixed;
  x.given = static_cast<const float*>(scales.scales.data);
  if (std::abs(scales.scales.column_stride) > kMaxShortDepth) return false;
  x.given_step = static_cast<int>(scales.scales.column_stride);
  x.given_blocks = static_cast<int>(scales.blocks_per_scale);
  const std::int64_t item = item_size(x.dtype);
  for (int row = 0; row < static_cast<int>(problem.m); ++row) {
    x.row_at[row] = problem.x.row_offset(row);
    x.given_at[row] = scales.given() ? scales.scales.row_offset(row) : 0;
    if (x.row_at[row] * item % 16) return false;
    a.y_at[row] = problem.y.row_offset(row);
  }
  const int capability = compute_capability(problem.device.index);
  int most_bytes = capability < 80 ? kMaxSharedBytes75 : capability < 90 ? kMaxSharedBytes : kMaxSharedBytes90;
  if (experts) most_bytes -= 1 << 10;  // a copy of the quantizer is there too
  if (experts) multiprocessors = ceil_div(w.panels, 2);
  // For StagedLayout::fill(): one row that most multiprocessors work on, or experts, which have many thread blocks, so
  // that room for others pays whatever their weights.
  constexpr std::int64_t kFewBytes = 128 << 10, kAnyBytes = std::int64_t{1} << 62;
  const std::int64_t few_bytes = experts ? kAnyBytes : x.rows == 1 && w.panels > multiprocessors ? kFewBytes : 0;
  for (a.warps = 16; a.warps >= 8; a.warps /= 2) {
    const auto fill = [&](int adders) {
      a.adders = adders;
      a.layout = int8_layout(a);
      return a.layout.weights.fill(w, multiprocessors, most_bytes, few_bytes);
    };
    if (!fill(0)) continue;
    // Sums of several rounds or groups of columns are added while others are made. For more rows than adders that is
    // slower: their sums take longer than products.
    const StagedLayout& weights = a.layout.weights;
    const bool turns = weights.rounds > 1 || weights.blocks < ceil_div(w.panels, 2);
    const bool adds_ahead = capability == 90 && !a.one_block && !experts && turns && x.rows <= kAdders;
    return !adds_ahead || fill(kAdders) || fill(0);
  }
  return false;
}

const char* sm75_gemv_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.compute == ComputeMode::int16) return "it computes float, int8 and int8_asym only";
  const PackedLayout& layout = problem.weight->layout;
  if (layout.taps != 1) return "it takes weights [N, K] only";
  if (problem.compute == ComputeMode::floating && problem.m > gemv::Tuning::kMaxFloatRows)
    return "it takes M up to 8 with float activations";
  if (problem.m > gemv::Tuning::kMaxRows) return "it takes M up to 16";
  if (layout.blocks() > 1 && layout.block_size % gemv::kChunk) return "it takes block sizes that are multiples of 32";
  if (const char* reason = problem.compute == ComputeMode::floating ? nullptr : long_block_reason(layout))
    return reason;
  if (layout.n > kMaxColumns) return "it takes N up to 2^31";
  const int capability = compute_capability(problem.device.index);
  if (capability < 75) return "it needs compute capability 7.5";
  if (problem.compute == ComputeMode::floating && capability >= 80 && layout.k <= kMaxDepth)
    return "sm80_float_mma takes float activations from compute capability 8.0 on";
  if (leaves_to_warpgroups(problem)) return "sm90_int8_wgmma computes this faster";
  return nullptr;
}

void run_sm75_gemv(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  const DeviceWeight w = device_weight(*problem.weight);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const std::int64_t padded_block = round_up(std::max<std::int64_t>(std::min(w.block_size, w.k), 1), gemv::kChunk);
  const std::int64_t processors =
      bounds.multiprocessors ? bounds.multiprocessors : multiprocessors(problem.device.index);
  if (problem.compute == ComputeMode::floating)
    run_gemv_float(problem, w, padded_block, stream);
  else if (gemv::Int8Arguments arguments{}; gemv::int8_arguments(problem, w, false, processors, arguments))
    gemv::run_int8(arguments, compute_capability(problem.device.index) >= 90, stream);
  else
    run_gemv_integer(problem, w, padded_block, stream);
}

}  // namespace qcore
