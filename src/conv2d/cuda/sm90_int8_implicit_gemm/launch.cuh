#pragma once

#include "conv2d/cuda/kernels.h"
#include "gemm/cuda/sm90_int8_mma/arguments.cuh"
#include "gemm/cuda/sm90_int8_wgmma/arguments.cuh"

// Integer activations under a window on sm_90: tiles of linear's sm90_int8_mma where few would be large ones, those of
// sm90_int8_wgmma elsewhere, with rows of codes that are gathered from pixels.
namespace qcore::sm90_int8_implicit_gemm {

// Of results by channels; the first three compute products of warps, with symmetric weights and activations.
enum class Tile { rows16, rows32, tall, warpgroups32, warpgroups64, warpgroups128 };
constexpr int kTiles = 6;

void run_mma_w4(const sm90_int8_mma::WindowArguments& arguments, cudaStream_t stream);
void run_mma_w8(const sm90_int8_mma::WindowArguments& arguments, cudaStream_t stream);
void run_wgmma(const sm90_int8_wgmma::WindowArguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm90_int8_implicit_gemm
