#pragma once

#include "static/problem.h"

// Rows of static's kernel table for CUDA devices. Every pointer of their problems lies on problem.device, and
// problem.stream is a cudaStream_t.
namespace qcore {

// Bounds of the scratch memory of one call and of the size of its launches; each yields to one image.
struct StaticBounds {
  std::int64_t codes = 128 << 20;  // of pixels that have to be copied
  std::int64_t results = 1 << 19;  // pixels of y in one launch
  std::int64_t enough_tiles = 96;  // with fewer large ones, small tiles
};

// One channel in and out per group: a thread makes neighboring pixels of four channels.
const char* static_depthwise_unsupported_reason(const StaticProblem& problem);
void run_static_depthwise(const StaticProblem& problem, const StaticBounds& bounds);

// Tensor cores over taps and channels, codes requantized where their sums are made.
const char* static_sm75_int8_implicit_gemm_unsupported_reason(const StaticProblem& problem);
void run_static_sm75_int8_implicit_gemm(const StaticProblem& problem, const StaticBounds& bounds);

// Likewise by products of warpgroups on compute capability 9.0: one group, channels in multiples of 32.
const char* static_sm90_int8_implicit_gemm_unsupported_reason(const StaticProblem& problem);
void run_static_sm90_int8_implicit_gemm(const StaticProblem& problem, const StaticBounds& bounds);

// Every layer: a thread per result.
const char* static_simt_unsupported_reason(const StaticProblem& problem);
void run_static_simt(const StaticProblem& problem, const StaticBounds& bounds);

}  // namespace qcore
