#pragma once

#include <algorithm>

#include "gemm/cuda/sm80_int8_mma/stage.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "linear/cuda/kernels.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

namespace qcore::sm80_int8_mma {

// Quantizes x as this kernel takes it, as many rows at a time as scratch memory has room for, and has each lot of them
// multiplied: multiply(x, row, w), where `row` is the first of x's rows in the problem.
template <class Multiply>
void for_each_pass(const LinearProblem& problem, const ScratchBounds& bounds, const Multiply& multiply) {
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  DeviceWeight w = device_weight(*problem.weight);
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const std::int64_t padded_block = round_up(std::max<std::int64_t>(std::min(w.block_size, w.k), 1), kChunk);
  const std::int64_t rows = rows_at_once(bounds, w.blocks * padded_block, problem.m);

  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(rows * w.blocks * padded_block);
  const auto terms = plan.add<ActivationTerms>(rows * w.blocks);
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(w) : 0);
  CudaScratch scratch(plan, problem.device.index, stream);
  if (activation_offsets) add_weight_sums(w, scratch[weight_sums], stream);
  for (std::int64_t row = 0; row < problem.m; row += rows) {
    QuantizedRows<std::int8_t> x{scratch[codes], nullptr,     nullptr, nullptr, std::min(rows, problem.m - row),
                                 w.blocks,       padded_block};
    x.terms = scratch[terms];
    x.zero_code = problem.weight->layout.zero_code();
    quantize_activations(problem.x, problem.scales, row, w.k, w.block_size, problem.compute, x, stream);
    multiply(x, row, w);
  }
}

}  // namespace qcore::sm80_int8_mma
