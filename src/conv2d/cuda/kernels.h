#pragma once

#include "conv2d/problem.h"

// Rows of conv2d's kernel table for CUDA devices. Every pointer of their problems lies on problem.device, and
// problem.stream is a cudaStream_t.
namespace qcore {

// Tiles of results by channels; the first three compute products of warps, with symmetric weights and activations.
enum class Sm90ConvTile { rows16, rows32, tall, warpgroups32, warpgroups64, warpgroups128 };
constexpr int kSm90ConvTiles = 6;

// Bounds of the scratch memory of one call and of the size of its launches; each yields to one image.
struct Conv2dBounds {
  std::int64_t codes = 128 << 20;  // of quantized pixels, or bytes of float ones
  std::int64_t results = 1 << 19;  // pixels of y in one launch
  std::int64_t enough_tiles = 96;  // with fewer, smaller ones
  int tile = -1;  // a Sm90ConvTile, of sm90_int8_implicit_gemm; of float: 1 spreads, 0 does not; -1 chooses
};

// int8 and int8_asym: pixels quantized once, then tensor cores over taps and blocks in one launch.
const char* sm80_int8_implicit_gemm_unsupported_reason(const Conv2dProblem& problem);
void run_sm80_int8_implicit_gemm(const Conv2dProblem& problem, const Conv2dBounds& bounds);

// int8 and int8_asym on sm_90: the same with the tiles of linear's sm90_int8_mma and sm90_int8_wgmma.
const char* sm90_int8_implicit_gemm_unsupported_reason(const Conv2dProblem& problem);
void run_sm90_int8_implicit_gemm(const Conv2dProblem& problem, const Conv2dBounds& bounds);

// float: tensor cores over taps and blocks in one launch, x in 16 bits.
const char* sm80_float_implicit_gemm_unsupported_reason(const Conv2dProblem& problem);
void run_sm80_float_implicit_gemm(const Conv2dProblem& problem, const Conv2dBounds& bounds);

// float on sm_90: the tiles of linear's sm90_float_wgmma, symmetric weights.
const char* sm90_float_implicit_gemm_unsupported_reason(const Conv2dProblem& problem);
void run_sm90_float_implicit_gemm(const Conv2dProblem& problem, const Conv2dBounds& bounds);
// Whether its tiles are as many as it needs to be faster than sm80_float_implicit_gemm.
bool sm90_float_implicit_gemm_pays(const Conv2dProblem& problem);

// Every compute mode, one channel in and out per group: a thread makes neighboring pixels of two channels.
const char* conv2d_depthwise_unsupported_reason(const Conv2dProblem& problem);
void run_conv2d_depthwise(const Conv2dProblem& problem, const Conv2dBounds& bounds);

// Every compute mode and shape: a thread per result.
const char* conv2d_simt_unsupported_reason(const Conv2dProblem& problem);
void run_conv2d_simt(const Conv2dProblem& problem, const Conv2dBounds& bounds);

// Returns why no implicit GEMM takes a problem, null if one may.
const char* implicit_gemm_unsupported_reason(const Conv2dProblem& problem);

}  // namespace qcore
