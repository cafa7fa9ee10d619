#include "conv2d/cuda/sm80_int8_implicit_gemm/launch.cuh"
#include "conv2d/cuda/window_tile.cuh"
#include "gemm/cuda/sm80_int8_mma/gemm.cuh"
#include "runtime/memory.h"

namespace qcore::sm80_int8_implicit_gemm {
namespace {

using sm80_int8_mma::Blocks;
using sm80_int8_mma::Shape;
using sm80_int8_mma::Size;
using sm80_int8_mma::Tuning;

// A tile whose rows of codes change from tap to tap.
template <int kColumns, int kRows>
class Im2colRows : public WindowTile<Arguments, kColumns, kRows> {
  using Tile = WindowTile<Arguments, kColumns, kRows>;

 public:
  using Tile::Tile;
  // -1: there is none.
  __device__ std::int64_t row(int i) const {
    std::int64_t row;
    return Tile::find(i, tap_row_, tap_column_, row) ? row + blockIdx.z : -1;
  }
  __device__ void next_tap() {
    if (++tap_column_ == Tile::a_.window.kernel[1]) {
      tap_column_ = 0;
      ++tap_row_;
    }
  }

 private:
  int tap_row_ = 0, tap_column_ = 0;
};

template <int kBits, int kChunks, Blocks kBlocks, Size kSize>
struct Kernel {
  static constexpr Shape kShape = Tuning::shape(kSize);
  // Weights with offsets go by parts of blocks: half as many instances.
  static constexpr bool kOffsets = kBlocks == Blocks::part;
  using Rows = Im2colRows<kShape.columns(), kShape.rows()>;
  using Gemm = sm80_int8_mma::Gemm<Rows, kBits, kChunks, kBlocks, kOffsets, kSize>;
};

// What a window adds to a thread's registers leaves room for fewer thread blocks than linear has; no instance spills.
constexpr int blocks_per_sm(Size size, int chunks) { return size == Size::large ? 1 : chunks == 4 ? 2 : 3; }

template <int kBits, int kChunks, Blocks kBlocks, Size kSize>
__global__ void __launch_bounds__(Tuning::shape(kSize).threads(), blocks_per_sm(kSize, kChunks))
    sm80_int8_implicit_gemm_kernel(const Arguments a) {
  using Types = Kernel<kBits, kChunks, kBlocks, kSize>;
  const typename Types::Rows rows(a, block_shared<WindowPlaces<Types::kShape.rows()>>());
  rows.set_places();
  __syncthreads();
  typename Types::Gemm(a, rows).run();
}

template <int kBits, int kChunks, Blocks kBlocks, Size kSize>
void launch_kernel(const Arguments& a, cudaStream_t stream) {
  using Types = Kernel<kBits, kChunks, kBlocks, kSize>;
  constexpr Shape kShape = Types::kShape;
  launch("sm80_int8_implicit_gemm", sm80_int8_implicit_gemm_kernel<kBits, kChunks, kBlocks, kSize>,
         {dim3(static_cast<unsigned>(ceil_div(ceil_div(a.w.n, a.groups), kShape.columns())),
               static_cast<unsigned>(ceil_div(a.results, kShape.rows())), static_cast<unsigned>(a.groups)),
          dim3(static_cast<unsigned>(kShape.threads())), Types::Gemm::kSharedBytes},
         stream, a);
}

template <int kBits, Size kSize>
void launch_size(const Arguments& a, cudaStream_t stream) {
  const std::int64_t length = a.w.sums || a.w.offsets ? 0 : a.x.padded_block;
  switch (length) {
    case 32:
      return launch_kernel<kBits, 1, Blocks::whole, kSize>(a, stream);
    case 64:
      return launch_kernel<kBits, 2, Blocks::whole, kSize>(a, stream);
    case 128:
      return launch_kernel<kBits, 4, Blocks::whole, kSize>(a, stream);
    default:
      return launch_kernel<kBits, 1, Blocks::part, kSize>(a, stream);
  }
}

template <int kBits>
void launch_bits(const Arguments& a, cudaStream_t stream) {
  constexpr Shape kLarge = Tuning::shape(Size::large);
  const std::int64_t columns = ceil_div(a.w.n, a.groups);
  if (ceil_div(columns, kLarge.columns()) * a.groups * ceil_div(a.results, kLarge.rows()) >= a.enough_tiles)
    launch_size<kBits, Size::large>(a, stream);
  else
    launch_size<kBits, Size::small>(a, stream);
}

}  // namespace

void run(const Arguments& a, cudaStream_t stream) {
  if (a.w.bits == 8)
    launch_bits<8>(a, stream);
  else
    launch_bits<4>(a, stream);
}

}  // namespace qcore::sm80_int8_implicit_gemm
