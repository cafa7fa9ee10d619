#include "gemm/cuda/sm80_int8_mma16/gemm.cuh"
#include "runtime/memory.h"

namespace qcore::sm80_int8_mma16 {
namespace {

template <int kBits, Terms kTerms, Size kSize>
void launch_kernel(const Arguments& a, cudaStream_t stream) {
  constexpr Shape kShape = Tuning::shape(kSize);
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.w.n, kShape.columns())),
                         static_cast<unsigned>(ceil_div(a.x.rows, kShape.rows()))),
                    dim3(static_cast<unsigned>(kShape.threads())), Gemm<kBits, kTerms, kSize>::kSharedBytes};
  shape.overlap = a.overlap;
  launch("sm80_int8_mma16", sm80_int8_mma16_kernel<kBits, kTerms, kSize>, shape, stream, a);
}

template <int kBits, Terms kTerms>
void launch_size(const Arguments& a, cudaStream_t stream) {
  if (a.size == Size::small) return launch_kernel<kBits, kTerms, Size::small>(a, stream);
  if (a.size == Size::medium) return launch_kernel<kBits, kTerms, Size::medium>(a, stream);
  launch_kernel<kBits, kTerms, Size::large>(a, stream);
}

template <int kBits>
void launch_terms(const Arguments& a, cudaStream_t stream) {
  switch (a.terms()) {
    case Terms::products:
      return launch_size<kBits, Terms::products>(a, stream);
    case Terms::weight_offsets:
      return launch_size<kBits, Terms::weight_offsets>(a, stream);
    case Terms::all:
      return launch_kernel<kBits, Terms::all, Size::medium>(a, stream);
  }
}

}  // namespace

void run(const Arguments& a, cudaStream_t stream) {
  a.w.bits == 8 ? launch_terms<8>(a, stream) : launch_terms<4>(a, stream);
}

}  // namespace qcore::sm80_int8_mma16
