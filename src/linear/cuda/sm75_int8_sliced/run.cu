#include <algorithm>

#include "gemm/cuda/quantize_activations.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "linear/cuda/kernels.h"
#include "linear/cuda/sm75_int8_sliced/dequantize_accumulate.cuh"
#include "linear/cuda/sm75_int8_sliced/gemm_int8.cuh"
#include "linear/cuda/sm75_int8_sliced/unpack_weight.cuh"
#include "linear/cuda/tile_limits.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

// Quantize the activations once; then, for each block of k, one integer GEMM and one pass that adds its products to
// the fp32 totals. The first pass initializes them and the last one finishes y, so nothing is cleared and nothing is
// added atomically.
//
// The weight stays packed on the device and is unpacked to bytes in every call: next to the M*N*4 bytes that each
// block's products take, N*K bytes once are little (this algorithm is for large M), and a resident copy in bytes would
// need 8 bits beside every 4-bit weight, three times its memory.
namespace qcore {
namespace {

constexpr std::int64_t kMaxExtent = 1 << 30;  // CUTLASS counts in int

struct Passes {
  std::int64_t padded_block;  // codes of one block, in a's rows and in b's
  std::int64_t blocks;        // unpacked at a time
  std::int64_t rows;          // of x at a time
  std::int64_t row_length;    // of products and totals
};

Passes plan_passes(const LinearProblem& problem, const DeviceWeight& w, const ScratchBounds& bounds) {
  Passes passes;
  passes.padded_block = round_up(std::min(w.block_size, w.k), 16);
  const std::int64_t slice = std::max<std::int64_t>(w.panels * PackedLayout::kPanelRows * passes.padded_block, 1);
  passes.blocks = std::clamp<std::int64_t>(bounds.unpacked_bytes / slice, 1, std::max<std::int64_t>(w.blocks, 1));
  passes.row_length = round_up(w.n, 4);
  const std::int64_t row_codes = std::max<std::int64_t>(w.blocks * passes.padded_block, 1);
  const std::int64_t rows = std::min({bounds.products / passes.row_length, bounds.codes / row_codes, bounds.rows});
  passes.rows = std::min(std::max(rows, bounds.fewest_rows), problem.m);
  return passes;
}

struct SlicedScratch {
  ScratchPlan plan;
  ScratchSlot<std::int8_t> a, b;
  ScratchSlot<std::int32_t> products;
  ScratchSlot<float> totals, scales, scaled_sums, offsets, weight_sums;

  SlicedScratch(const Passes& passes, const DeviceWeight& w, bool activation_offsets) {
    const std::int64_t per_block = w.blocks * passes.rows;
    a = plan.add<std::int8_t>(per_block * passes.padded_block);
    b = plan.add<std::int8_t>(w.panels * PackedLayout::kPanelRows * passes.blocks * passes.padded_block);
    products = plan.add<std::int32_t>(w.blocks > 0 ? passes.rows * passes.row_length : 0);
    totals = plan.add<float>(w.blocks > 1 ? passes.rows * passes.row_length : 0);
    scales = plan.add<float>(per_block);
    scaled_sums = plan.add<float>(w.offsets ? per_block : 0);
    offsets = plan.add<float>(activation_offsets ? per_block : 0);
    weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(w) : 0);
  }
};

class Sliced {
 public:
  Sliced(const LinearProblem& problem, const ScratchBounds& bounds)
      : problem_(problem),
        stream_(static_cast<cudaStream_t>(problem.stream)),
        gemm_(compute_capability(problem.device.index) >= 80 ? gemm_int8_sm80 : gemm_int8_sm75),
        w_(device_weight(*problem.weight)),
        activation_offsets_(problem.compute == ComputeMode::int8_asym),
        passes_(plan_passes(problem, w_, bounds)),
        slots_(passes_, w_, activation_offsets_),
        scratch_(slots_.plan, problem.device.index, stream_) {}

  void run() {
    if (activation_offsets_) add_weight_sums(w_, scratch_[slots_.weight_sums], stream_);
    const bool unpack_once = passes_.blocks >= w_.blocks;
    if (unpack_once) unpack(0, w_.blocks);
    for (std::int64_t row = 0; row < problem_.m; row += passes_.rows) {
      const std::int64_t rows = std::min(passes_.rows, problem_.m - row);
      const QuantizedRows<std::int8_t> x = quantize(row, rows);
      if (w_.blocks == 0) accumulate(x, row, 0);
      for (std::int64_t p = 0; p < w_.blocks; ++p) {
        if (!unpack_once && p % passes_.blocks == 0) unpack(p, std::min(passes_.blocks, w_.blocks - p));
        // The last block's pass also finishes y.
        multiply(x, p);
        accumulate(x, row, p);
      }
    }
  }

 private:
  void unpack(std::int64_t first_block, std::int64_t blocks) {
    unpacked_blocks_ = blocks;
    unpack_weight(w_, first_block, blocks, passes_.padded_block, scratch_[slots_.b], stream_);
  }

  QuantizedRows<std::int8_t> quantize(std::int64_t first_row, std::int64_t rows) {
    const QuantizedRows<std::int8_t> x{scratch_[slots_.a],
                                       scratch_[slots_.scales],
                                       w_.offsets ? scratch_[slots_.scaled_sums] : nullptr,
                                       activation_offsets_ ? scratch_[slots_.offsets] : nullptr,
                                       rows,
                                       w_.blocks,
                                       passes_.padded_block};
    quantize_activations(problem_.x, problem_.scales, first_row, w_.k, w_.block_size, problem_.compute, x, stream_);
    return x;
  }

  void multiply(const QuantizedRows<std::int8_t>& x, std::int64_t p) {
    Int8Gemm gemm;
    gemm.m = static_cast<int>(x.rows);
    gemm.n = static_cast<int>(passes_.row_length);  // the padded panels of b are zeros
    gemm.k = static_cast<int>(round_up(w_.block_length(p), 16));
    gemm.a = x.codes + p * passes_.padded_block;
    gemm.lda = w_.blocks * passes_.padded_block;
    gemm.b = scratch_[slots_.b] + p % passes_.blocks * passes_.padded_block;
    gemm.ldb = unpacked_blocks_ * passes_.padded_block;
    gemm.c = scratch_[slots_.products];
    gemm.ldc = passes_.row_length;
    gemm_(gemm, stream_);
  }

  void accumulate(const QuantizedRows<std::int8_t>& x, std::int64_t first_row, std::int64_t p) {
    Accumulation block{};
    block.rows = x.rows;
    block.first_row = first_row;
    block.row_length = passes_.row_length;
    block.totals = scratch_[slots_.totals];
    block.p = p;
    block.first = p == 0;
    block.last = p + 1 >= w_.blocks;
    if (w_.blocks > 0) {
      block.products = scratch_[slots_.products];
      block.scales = x.scales + p * x.rows;
      if (x.scaled_sums) block.scaled_sums = x.scaled_sums + p * x.rows;
      if (x.offsets) block.offsets = x.offsets + p * x.rows;
    }
    dequantize_accumulate(w_, block, device_output(problem_), stream_);
  }

  const LinearProblem& problem_;
  cudaStream_t stream_;
  void (*gemm_)(const Int8Gemm&, cudaStream_t);
  DeviceWeight w_;
  bool activation_offsets_;
  Passes passes_;
  SlicedScratch slots_;
  CudaScratch scratch_;
  std::int64_t unpacked_blocks_ = 0;
};

}  // namespace

const char* sm75_int8_sliced_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (problem.compute != ComputeMode::int8 && problem.compute != ComputeMode::int8_asym)
    return "it computes int8 and int8_asym only";
  const PackedLayout& layout = problem.weight->layout;
  if (layout.taps != 1) return "it takes weights [N, K] only";
  if (const char* reason = long_block_reason(layout)) return reason;
  if (layout.n > kMaxExtent) return "it takes N up to 2^30";
  if (compute_capability(problem.device.index) < 75) return "it needs compute capability 7.5";
  return nullptr;
}

void run_sm75_int8_sliced(const LinearProblem& problem, const ScratchBounds& bounds) {
  if (problem.m == 0 || problem.weight->layout.n == 0) return;
  DeviceGuard guard(problem.device.index);
  Sliced(problem, bounds).run();
}

}  // namespace qcore
