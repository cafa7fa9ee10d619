#include "gemm/cuda/operand_stage.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_bytes.cuh"
#include "runtime/memory.h"
#include "static/cuda/sm75_int8_implicit_gemm/launch.cuh"

namespace qcore::static_gemm {
namespace {

enum class Size { small, large };

constexpr sm80_int8_mma::Shape shape_of(Size size) {
  return size == Size::small ? sm80_int8_mma::Shape{2, 2, 1, 4} : sm80_int8_mma::Shape{4, 2, 1, 8};
}

// Codes are copied under one tap after the other, in chunks of 32 channels. Sums stay in int32, exact modulo 2^32, over
// all of them.
template <bool kSignedX, int kChunks, Size kSize>
class Gemm {
 public:
  static constexpr sm80_int8_mma::Shape kShape = shape_of(kSize);
  static constexpr int kRows = kShape.rows(), kColumns = kShape.columns(), kTiles = kShape.tiles;
  static constexpr int kStages = 3;
  using Copier = sm80_int8_mma::OperandCopier<kShape.threads(), 8, kChunks, kColumns, kRows>;
  using Stage = typename Copier::To;
  // Where results' windows begin, and where they are stored.
  struct Places {
    WindowOrigins<kRows> origins;
    std::int64_t y[kRows];
  };
  static constexpr std::size_t kSharedBytes = kStages * sizeof(Stage) + sizeof(Places);
  static_assert(kSharedBytes <= 64 << 10, "what every device since sm_75 grants");

  __device__ explicit Gemm(const Arguments& a)
      : a_(a),
        stages_(reinterpret_cast<Stage*>(dynamic_shared())),
        places_(*reinterpret_cast<Places*>(stages_ + kStages)),
        tap_units_(static_cast<int>(a.steps * 4)),
        tap_stages_(a.depth / (kChunk * kChunks)),
        first_panel_(static_cast<std::int64_t>(blockIdx.x) * Stage::kPanels),
        copier_(reinterpret_cast<const uint4*>(a.words) + (blockIdx.z * a.panels + first_panel_) * panel_units(a),
                a.panels - first_panel_, panel_units(a), tap_units_),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        group_(static_cast<int>(threadIdx.x) % kWarpSize / 4),
        quad_(static_cast<int>(threadIdx.x) % 4),
        first_column_(warp_ % kShape.warps_n * 32),
        first_row_(warp_ / kShape.warps_n * (8 * kTiles)) {}

  __device__ void run() {
    set_places();
    __syncthreads();
    set_row();
    const int count = taps(a_) * tap_stages_;
    for (int i = 0; i + 1 < kStages; ++i) copy(i, i < count);
    int stage = 0;
    for (int i = 0; i < count; ++i) {
      ptx::copy_wait<kStages - 2>();
      // Behind it everybody's copies of this stage are there, and nobody reads the one before it any more.
      __syncthreads();
      copy(stage == 0 ? kStages - 1 : stage - 1, i + kStages - 1 < count);
      multiply(stages_[stage]);
      if (++stage == kStages) stage = 0;
    }
    ptx::copy_wait<0>();
    store();
  }

 private:
  __device__ static int taps(const Arguments& a) { return a.parts * a.window.kernel[0] * a.window.kernel[1]; }
  __device__ static int panel_units(const Arguments& a) { return taps(a) * static_cast<int>(a.steps * 4); }

  __device__ void set_places() {
    const int first_row = static_cast<int>(blockIdx.y) * kRows;
    places_.origins.set(a_.window, a_.first, first_row, a_.results, a_.first_image);
    for (int i = static_cast<int>(threadIdx.x); i < kRows; i += kShape.threads()) {
      const ResultPlace place(a_.window, a_.first, first_row + i);
      places_.y[i] = a_.y.offset(place.image, 0, place.row, place.column);
    }
  }

  __device__ void set_row() {
    std::int64_t at = 0;
    const bool found = places_.origins.of[copier_.row()].find(a_.window, tap_row_, tap_column_, at);
    copier_.set_row(a_.x + at + blockIdx.z * a_.group_step, found);
  }

  // The next stage, one group of copies whether there is one or not.
  __device__ void copy(int at, bool exists) {
    if (exists) {
      copier_.copy_weights(stages_[at]);
      copier_.copy_codes_or_fill(stages_[at], a_.zero);
      copier_.next();
      if (++stage_of_tap_ == tap_stages_) next_tap();
    }
    ptx::copy_commit();
  }

  __device__ void next_tap() {
    stage_of_tap_ = 0;
    copier_.next_tap(tap_stages_ * Copier::kPanelUnits, tap_units_);
    if (++tap_column_ == a_.window.kernel[1]) {
      tap_column_ = 0;
      if (++tap_row_ == a_.window.kernel[0]) tap_row_ = 0;
    }
    set_row();
  }

  __device__ void multiply(const Stage& stage) {
    sm80_int8_mma::WeightFragments<8, kChunks> w;
    w.load(stage, first_column_ / 16 + group_ / 4, quad_, group_ % 4);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const uint2 codes = stage.codes_of(chunk, first_row_ + 8 * tile + group_, quad_);
        const std::uint32_t x[2] = {codes.x, codes.y};
        ptx::mma_bytes<true, kSignedX>(sums_[tile][0], w.first[chunk], x);
        ptx::mma_bytes<true, kSignedX>(sums_[tile][1], w.second[chunk], x);
      }
  }

  // A lane has four neighboring channels of every result.
  __device__ void store() const {
    const std::int64_t n = first_panel_ * 16 + first_column_ + 4 * group_;
    if (n >= a_.n) return;
    const std::int64_t first = blockIdx.z * a_.n;
    const RequantizedChannels channels(a_.requantization, first + n, first + a_.n);
    auto* y = static_cast<std::uint8_t*>(const_cast<void*>(a_.y.data)) + (first + n) * a_.y.channel;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = first_row_ + 8 * tile + 2 * quad_ + j;
        if (static_cast<int>(blockIdx.y) * kRows + row >= a_.results) continue;
        const std::int32_t sums[4] = {sums_[tile][0][j], sums_[tile][0][2 + j], sums_[tile][1][j],
                                      sums_[tile][1][2 + j]};
        channels.store(y + places_.y[row], a_.y.channel, channels.codes(sums));
      }
  }

  const Arguments& a_;
  Stage* stages_;
  Places& places_;
  int tap_units_, tap_stages_;
  std::int64_t first_panel_;
  Copier copier_;
  int warp_, group_, quad_;
  int first_column_, first_row_;  // of the warp, in the tile
  int stage_of_tap_ = 0, tap_row_ = 0, tap_column_ = 0;
  std::int32_t sums_[kTiles][2][4] = {};
};

template <bool kSignedX, int kChunks, Size kSize>
__global__ void __launch_bounds__(shape_of(kSize).threads(), kSize == Size::large ? 2 : 4)
    static_gemm_kernel(const Arguments a) {
  Gemm<kSignedX, kChunks, kSize>(a).run();
}

template <bool kSignedX, int kChunks, Size kSize>
void launch_kernel(const Arguments& a, cudaStream_t stream) {
  constexpr sm80_int8_mma::Shape kShape = shape_of(kSize);
  launch("static_gemm", static_gemm_kernel<kSignedX, kChunks, kSize>,
         {dim3(static_cast<unsigned>(ceil_div(a.n, kShape.columns())),
               static_cast<unsigned>(ceil_div(a.results, kShape.rows())), static_cast<unsigned>(a.groups)),
          dim3(static_cast<unsigned>(kShape.threads())), Gemm<kSignedX, kChunks, kSize>::kSharedBytes},
         stream, a);
}

template <bool kSignedX, int kChunks>
void launch_size(const Arguments& a, cudaStream_t stream) {
  constexpr sm80_int8_mma::Shape kLarge = shape_of(Size::large);
  if (ceil_div(a.n, kLarge.columns()) * a.groups * ceil_div(a.results, kLarge.rows()) >= a.enough_tiles)
    launch_kernel<kSignedX, kChunks, Size::large>(a, stream);
  else
    launch_kernel<kSignedX, kChunks, Size::small>(a, stream);
}

template <bool kSignedX>
void launch_chunks(const Arguments& a, cudaStream_t stream) {
  if (a.depth % (2 * kChunk) == 0)
    launch_size<kSignedX, 2>(a, stream);
  else
    launch_size<kSignedX, 1>(a, stream);
}

constexpr int kPackThreads = 128;

// A thread takes 16 channels of a pixel; neighbors take neighboring pixels, whose channels may lie far apart.
__global__ void __launch_bounds__(kPackThreads) static_pack_kernel(const Packing a) {
  const int row = static_cast<int>(blockIdx.x * kPackThreads + threadIdx.x);
  if (row >= a.batch * a.rows * a.columns * a.groups) return;
  const int pixel = row / a.groups, line = pixel / a.columns, image = line / a.rows;
  const int first = static_cast<int>(blockIdx.y) * 16;
  const auto* from =
      static_cast<const std::uint8_t*>(a.x.data) +
      a.x.offset(image, (row - pixel * a.groups) * a.k + first, line - image * a.rows, pixel - line * a.columns);
  std::uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (first + i < a.k) words[i / 4] |= static_cast<std::uint32_t>(from[i * a.x.channel]) << (8 * (i % 4));
  *reinterpret_cast<uint4*>(a.to + static_cast<std::int64_t>(row) * a.depth + first) = {words[0], words[1], words[2],
                                                                                        words[3]};
}

}  // namespace

void run(const Arguments& a, cudaStream_t stream) {
  if (a.x_signed)
    launch_chunks<true>(a, stream);
  else
    launch_chunks<false>(a, stream);
}

void pack(const Packing& a, cudaStream_t stream) {
  const std::int64_t rows = std::int64_t{a.batch} * a.rows * a.columns * a.groups;
  if (rows == 0 || a.depth == 0) return;
  launch("static_pack", static_pack_kernel,
         {dim3(static_cast<unsigned>(ceil_div(rows, kPackThreads)), static_cast<unsigned>(a.depth / 16)),
          dim3(kPackThreads)},
         stream, a);
}

}  // namespace qcore::static_gemm
