#include <algorithm>

#include "activations/checks.h"
#include "activations/dispatch.h"
#include "decoder/checks.h"
#include "decoder/dispatch.h"
#include "qcore/decoder.h"
#include "runtime/check.h"
#include "runtime/memory.h"

#if defined(QCORE_CUDA_BACKEND)
#include "decoder/cuda/kernels.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#endif

// Operators that end with codes. Without a kernel that does both, their results go through scratch memory: on the CPU
// some rows at a time, which stay in a cache.
namespace qcore::decoder {
namespace {

bool has_even_rows(const RowView& view) { return view.leading <= 1; }

// Rows [begin, begin + count) of a view with even rows, or of none.
RowView rows_of(RowView view, std::int64_t begin, std::int64_t count) {
  if (!view.data) return view;
  view.data = static_cast<const char*>(view.data) + begin * view.row_stride() * item_size(view.dtype);
  if (view.leading) view.shape[0] = count;
  return view;
}

RowView contiguous_rows(const void* data, DType dtype, std::int64_t rows, std::int64_t columns) {
  RowView view;
  view.data = data;
  view.dtype = dtype;
  view.append(rows, columns);
  return view;
}

NormProblem rows_of(NormProblem problem, std::int64_t begin, std::int64_t count) {
  problem.x = rows_of(problem.x, begin, count);
  problem.residual = rows_of(problem.residual, begin, count);
  problem.rows = count;
  return problem;
}
GateProblem rows_of(GateProblem problem, std::int64_t begin, std::int64_t count) {
  problem.x = rows_of(problem.x, begin, count);
  problem.rows = count;
  return problem;
}
ActivationsProblem rows_of(ActivationsProblem problem, std::int64_t begin, std::int64_t count) {
  problem.codes = rows_of(problem.codes, begin, count);
  problem.scales = rows_of(problem.scales, begin, count);
  problem.offsets = rows_of(problem.offsets, begin, count);
  problem.m = count;
  return problem;
}

bool has_even_rows(const NormProblem& p) { return has_even_rows(p.x) && has_even_rows(p.residual); }
bool has_even_rows(const GateProblem& p) { return has_even_rows(p.x); }

// Runs the first operator to memory for rows of x's dtype, then quantizes these.
template <class Problem>
void run_through(Problem first, ActivationsProblem codes, KernelTable<Problem>& table, void* memory) {
  first.y = codes.x = contiguous_rows(memory, first.x.dtype, first.rows, first.count);
  table.run(first);
  quantize_activations_dispatch().run(codes);
}

template <class Problem>
void run(const Problem& first, const ActivationsProblem& codes, KernelTable<Problem>& table) {
  const std::int64_t row_bytes = first.count * item_size(first.x.dtype);
#if defined(QCORE_CUDA_BACKEND)
  if (first.device.type == DeviceType::cuda) {
    const bool forced = table.forced() >= 0 || quantize_activations_dispatch().forced() >= 0;
    if (!forced && run_quantizing_cuda(first, codes)) return;
    DeviceGuard guard(first.device.index);
    ScratchPlan plan;
    const auto memory = plan.add<char>(first.rows * row_bytes);
    CudaScratch scratch(plan, first.device.index, static_cast<cudaStream_t>(first.stream));
    return run_through(first, codes, table, scratch[memory]);
  }
#endif
  constexpr std::int64_t kCachedBytes = 1 << 18;
  const bool even =
      has_even_rows(first) && has_even_rows(codes.codes) && has_even_rows(codes.scales) && has_even_rows(codes.offsets);
  const std::int64_t at_once = even ? std::clamp<std::int64_t>(kCachedBytes / row_bytes, 1, first.rows) : first.rows;
  Scratch scratch;
  char* memory = scratch.take<char>(at_once * row_bytes);
  for (std::int64_t begin = 0; begin < first.rows; begin += at_once) {
    const std::int64_t count = std::min(at_once, first.rows - begin);
    if (count == first.rows) return run_through(first, codes, table, memory);
    run_through(rows_of(first, begin, count), rows_of(codes, begin, count), table, memory);
  }
}

}  // namespace

void rms_norm_quantize(const TensorView& x, const TensorView* weight, const QuantizedActivations& y,
                       const TensorView* residual, const RmsNormOptions& options, float scale) {
  constexpr const char* op = "rms_norm_quantize";
  const NormProblem problem = checked_norm(op, x, weight, residual, options);
  y.check_writable(op, "y", x);
  y.check_apart(op, "y", "x", x);
  check_activation_scale(op, "scale", scale, y.mode);
  for (const TensorView* other : {weight, residual})
    if (other) y.check_apart(op, "y", other == weight ? "weight" : "residual", *other);
  if (x.size() == 0) return;
  run(problem, activations_problem(y, x, scale, options.stream), decoder_norm_dispatch());
}

void gated_activation_quantize(const TensorView& x, const QuantizedActivations& y, const GatedOptions& options,
                               float scale) {
  constexpr const char* op = "gated_activation_quantize";
  const GateProblem problem = checked_gate(op, x, options);
  TensorView result = x;
  result.shape[x.rank - 1] = problem.count;
  y.check_writable(op, "y", result);
  y.check_apart(op, "y", "x", x);
  check_activation_scale(op, "scale", scale, y.mode);
  if (result.size() == 0) return;
  run(problem, activations_problem(y, result, scale, options.stream), decoder_gate_dispatch());
}

}  // namespace qcore::decoder
