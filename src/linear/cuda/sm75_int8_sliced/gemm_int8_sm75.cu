#include "linear/cuda/sm75_int8_sliced/gemm_int8_cutlass.cuh"

namespace qcore {
namespace {

using cutlass::arch::Sm75;
using cutlass::gemm::GemmShape;
// A tile is 64 deep because that is the usual block of weights, and K here is one block.
using Instruction = GemmShape<8, 8, 16>;
using LargeTiles = CutlassInt8Gemm<Sm75, GemmShape<128, 128, 64>, GemmShape<64, 64, 64>, Instruction, 2>;
using SmallTiles = CutlassInt8Gemm<Sm75, GemmShape<64, 64, 64>, GemmShape<32, 32, 64>, Instruction, 2>;

}  // namespace

void gemm_int8_sm75(const Int8Gemm& gemm, cudaStream_t stream) {
  if (gemm.m <= 64)
    run_cutlass<SmallTiles>("gemm_int8_sm75", gemm, stream);
  else
    run_cutlass<LargeTiles>("gemm_int8_sm75", gemm, stream);
}

}  // namespace qcore
