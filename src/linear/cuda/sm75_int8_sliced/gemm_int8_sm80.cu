#include "linear/cuda/sm75_int8_sliced/gemm_int8_cutlass.cuh"

namespace qcore {
namespace {

using cutlass::arch::Sm80;
using cutlass::gemm::GemmShape;
// A tile is 64 deep because that is the usual block of weights, and K here is one block.
using Instruction = GemmShape<16, 8, 32>;
using LargeTiles = CutlassInt8Gemm<Sm80, GemmShape<128, 128, 64>, GemmShape<64, 64, 64>, Instruction, 3>;
using SmallTiles = CutlassInt8Gemm<Sm80, GemmShape<64, 64, 64>, GemmShape<32, 32, 64>, Instruction, 3>;

}  // namespace

void gemm_int8_sm80(const Int8Gemm& gemm, cudaStream_t stream) {
  if (gemm.m <= 64)
    run_cutlass<SmallTiles>("gemm_int8_sm80", gemm, stream);
  else
    run_cutlass<LargeTiles>("gemm_int8_sm80", gemm, stream);
}

}  // namespace qcore
