#pragma once

#include <cstdint>

#include "linear/problem.h"

namespace qcore {

namespace sm90_int8_mma {
enum class Size;
}

// What bounds the scratch memory of one call on a CUDA device, whatever M, N and K are: larger problems go through it
// in several passes. Each bound yields to one row (fused, sliced: 128), or one block of k.
struct ScratchBounds {
  std::int64_t rows = 1 << 20;             // of x at a time
  std::int64_t codes = 128 << 20;          // of quantized activations
  std::int64_t products = 32 << 20;        // int32, and as many fp32 totals
  std::int64_t unpacked_bytes = 64 << 20;  // of the weight
  std::int64_t fewest_rows = 128;          // a GEMM's tile
};

void run_sm75_int8_sliced(const LinearProblem& problem, const ScratchBounds& bounds);
void run_sm80_float_mma(const LinearProblem& problem, const ScratchBounds& bounds, std::int64_t enough_tiles);
void run_sm80_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds, std::int64_t enough_tiles);
void run_sm90_int8_wgmma(const LinearProblem& problem, const ScratchBounds& bounds, std::int64_t enough_tiles);
void run_simt(const LinearProblem& problem, const ScratchBounds& bounds);
// `size` may be null: Tuning::choose().
void run_sm90_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds, const sm90_int8_mma::Size* size);

}  // namespace qcore
