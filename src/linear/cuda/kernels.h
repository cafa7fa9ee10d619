#pragma once

#include <algorithm>

#include "linear/problem.h"

// Rows of linear's kernel table for CUDA devices. Every pointer of their problems lies on problem.device, and
// problem.stream is a cudaStream_t.
namespace qcore {

// Bounds of the scratch memory of one call on a CUDA device, whatever M, N and K are: larger problems go through it
// in several passes. Each bound yields to one row (tiles: 128), or one block of k.
struct ScratchBounds {
  std::int64_t rows = 1 << 20;              // of x at a time
  std::int64_t codes = 128 << 20;           // of quantized activations
  std::int64_t products = 32 << 20;         // int32, and as many fp32 totals
  std::int64_t unpacked_bytes = 64 << 20;   // of the weight
  std::int64_t expanded_bytes = 256 << 20;  // of an encoded weight in plain form; a band of 256 columns if that is more
  std::int64_t fewest_rows = 128;           // a GEMM's tile
  std::int64_t enough_tiles = 0;            // with fewer large ones, small tiles; 0: as many as kernels are tuned for
  int tile = -1;                            // a Size, of sm90_int8_mma or sm80_int8_mma16; the height's logarithm, of
                                            // sm90_int8_wgmma's tiles for experts; of linear's wgmma kernels 1 for
                                            // spread steps and 0 for whole tiles; otherwise one is chosen
  std::int64_t multiprocessors = 0;         // that tiles of warpgroups are planned for; 0: the device's
};

using LinearKernel = void(const LinearProblem&, const ScratchBounds&);

// Calls a kernel that reads plain weights. An encoded weight is expanded first, in bands of columns that fit in
// bounds.expanded_bytes; such a kernel sees the layout of the plain weight in its unsupported_reason(). Codes of 4 bits
// that already lie as plain ones do are read where they are. `extended`: the kernel waits for
// the weight, so that what is in front of it may overlap, and takes weights with offsets that have counts_from_zero.
void run_expanded(const LinearProblem& problem, const ScratchBounds& bounds, LinearKernel* run, bool extended = false);

// Rows that one pass takes, with so many codes in each.
inline std::int64_t rows_at_once(const ScratchBounds& bounds, std::int64_t row_codes, std::int64_t m) {
  const std::int64_t fitting = std::min(bounds.codes / std::max<std::int64_t>(row_codes, 1), bounds.rows);
  return std::min(std::max(fitting, bounds.fewest_rows), m);
}

// float, int8 and int8_asym for few rows: every weight is read once.
const char* sm75_gemv_unsupported_reason(const LinearProblem& problem);
void run_sm75_gemv(const LinearProblem& problem, const ScratchBounds& bounds);

// int8 and int8_asym for few rows of an encoded weight, whose codes and parameters are read as they lie.
const char* sm75_gemv_encoded_unsupported_reason(const LinearProblem& problem);
void run_sm75_gemv_encoded(const LinearProblem& problem, const ScratchBounds& bounds);

// float on tensor cores: codes times activations in 16 bits, scaled block by block.
const char* sm80_float_mma_unsupported_reason(const LinearProblem& problem);
void run_sm80_float_mma(const LinearProblem& problem, const ScratchBounds& bounds);

// float with fp16 or bf16 x and more rows than a few: products of warpgroups, x by the copy engine.
const char* sm90_float_wgmma_unsupported_reason(const LinearProblem& problem);
void run_sm90_float_wgmma(const LinearProblem& problem, const ScratchBounds& bounds);

// int8, up to 128 rows: tensor cores, tiles for all multiprocessors. The fewest rows depend on the weight; one block
// per row is for symmetric weights only.
const char* sm90_int8_mma_unsupported_reason(const LinearProblem& problem);
void run_sm90_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds);

// int8 and int8_asym: products of warpgroups, sums and offsets in one launch.
const char* sm90_int8_wgmma_unsupported_reason(const LinearProblem& problem);
void run_sm90_int8_wgmma(const LinearProblem& problem, const ScratchBounds& bounds);

// int8 and int8_asym: tensor cores, sums and offsets in one launch.
const char* sm80_int8_mma_unsupported_reason(const LinearProblem& problem);
void run_sm80_int8_mma(const LinearProblem& problem, const ScratchBounds& bounds);

// int8 and int8_asym: one tensor-core GEMM per block of k, then dequantize and accumulate.
const char* sm75_int8_sliced_unsupported_reason(const LinearProblem& problem);
void run_sm75_int8_sliced(const LinearProblem& problem, const ScratchBounds& bounds);

// Every compute mode and shape on plain CUDA cores.
const char* simt_unsupported_reason(const LinearProblem& problem);
void run_simt(const LinearProblem& problem, const ScratchBounds& bounds);

}  // namespace qcore
