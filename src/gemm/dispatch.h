#pragma once

#include "gemm/cpu/encoded_panels.h"
#include "gemm/cpu/vtable.h"
#include "gemm/product.h"

// The functions behind the CPU rows of the kernel tables of linear, grouped_linear and conv2d; their Problem has a
// product().
namespace qcore {

// Computes a product with per-block weights by the tiles of an instruction set.
void run_product(const BlockProduct& product, const BlockKernels& kernels);

template <class Problem>
const char* reference_unsupported_reason(const Problem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

template <class Problem>
void run_reference(const Problem& problem) {
  run_product_reference(problem.product());
}

template <class Problem>
const char* tiled_unsupported_reason(const Problem& problem) {
  if (problem.device.type != DeviceType::cpu) return "it runs on the CPU";
  const PackedLayout& layout = problem.weight->layout;
  return layout.blocks() && layout.block_length(0) > kLongestBlock ? "its blocks are longer than 65536" : nullptr;
}

template <class Problem>
const char* int8_unsupported_reason(const Problem& problem) {
  if (problem.compute != ComputeMode::int8 && problem.compute != ComputeMode::int8_asym)
    return "it computes in int8 and int8_asym";
  return tiled_unsupported_reason(problem);
}

template <class Problem>
const char* int16_unsupported_reason(const Problem& problem) {
  return problem.compute == ComputeMode::int16 ? tiled_unsupported_reason(problem) : "it computes in int16";
}

template <class Problem>
const char* float_unsupported_reason(const Problem& problem) {
  return problem.compute == ComputeMode::floating ? tiled_unsupported_reason(problem) : "it computes in float";
}

template <class Problem>
const char* bfloat_unsupported_reason(const Problem& problem) {
  if (problem.compute != ComputeMode::floating || problem.x.dtype != DType::bf16)
    return "it computes in float from bfloat16 x";
  return tiled_unsupported_reason(problem);
}

// Returns whether AMX is faster than vectors. Its tiles have 16 rows and take as long for fewer. 16 rows pay in float,
// where AVX-512 took three to four times as long, but not in int8, where its dot products took as long; in int16 they
// should, because those of words have half the speed. A block must have so many k that adding its terms does not take
// longer than its products.
template <class Problem>
bool amx_pays(const Problem& problem) {
  const bool bytes = problem.compute != ComputeMode::floating && problem.compute != ComputeMode::int16;
  const std::int64_t min_rows = bytes ? 32 : 16;
  constexpr std::int64_t kMinBlock = 32;
  const BlockProduct product = problem.product();
  const PackedLayout& layout = product.weight->layout;
  return product.results() >= min_rows * product.experts && layout.blocks() && layout.block_length(0) >= kMinBlock;
}

// Without dot products of bytes, 4-bit codes have a faster way than 8-bit ones.
template <class Problem>
void run_int8_avx2(const Problem& problem) {
  const int bits = EncodedPanels::tile_layout(*problem.weight, kInt8W4Avx2.looks_up_nibbles).bits;
  run_product(problem.product(), bits == 4 ? kInt8W4Avx2 : kInt8Avx2);
}

}  // namespace qcore
