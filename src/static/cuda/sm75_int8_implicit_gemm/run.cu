#include <algorithm>

#include "gemm/cuda/operand_stage.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_bytes.cuh"
#include "runtime/cuda/ptx_launch.cuh"
#include "runtime/memory.h"
#include "static/cuda/implicit_gemm.cuh"

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
  using Places = WindowPlaces<kRows>;
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
    ptx::let_next_kernel_start();
    places_.set(a_, static_cast<int>(blockIdx.y) * kRows);
    ptx::wait_for_earlier_kernels();
    set_row();
    const int count = a_.taps() * tap_stages_;
    for (int i = 0; i + 1 < kStages; ++i) copy(i, i < count);
    int stage = 0;
    for (int i = 0; i < count; ++i) {
      ptx::copy_wait<kStages - 2>();
      // After it all threads' copies of this stage are there, and no thread reads the one before it any more.
      __syncthreads();
      copy(stage == 0 ? kStages - 1 : stage - 1, i + kStages - 1 < count);
      multiply(stages_[stage]);
      if (++stage == kStages) stage = 0;
    }
    ptx::copy_wait<0>();
    store();
  }

 private:
  __device__ static int panel_units(const Arguments& a) { return a.taps() * static_cast<int>(a.steps * 4); }

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
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.n, kShape.columns())),
                         static_cast<unsigned>(ceil_div(a.results, kShape.rows())), static_cast<unsigned>(a.groups)),
                    dim3(static_cast<unsigned>(kShape.threads())), Gemm<kSignedX, kChunks, kSize>::kSharedBytes};
  shape.overlap = a.overlap;
  launch("static_gemm", static_gemm_kernel<kSignedX, kChunks, kSize>, shape, stream, a);
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

struct Packing {
  ImageView x;
  int batch, rows, columns, groups;
  std::int64_t k;   // channels of a group
  int depth;        // bytes of a row: k rounded up
  std::int8_t* to;  // [batch, rows, columns, groups, depth]
};

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

// y = requantize(start + sum of x * w).
void run(const Arguments& a, cudaStream_t stream) {
  if (a.x_signed)
    launch_chunks<true>(a, stream);
  else
    launch_chunks<false>(a, stream);
}

// Pixels of any strides, as Arguments::x takes them.
void pack(const Packing& a, cudaStream_t stream) {
  const std::int64_t rows = std::int64_t{a.batch} * a.rows * a.columns * a.groups;
  if (rows == 0 || a.depth == 0) return;
  launch("static_pack", static_pack_kernel,
         {dim3(static_cast<unsigned>(ceil_div(rows, kPackThreads)), static_cast<unsigned>(a.depth / 16)),
          dim3(kPackThreads)},
         stream, a);
}

}  // namespace
}  // namespace qcore::static_gemm

namespace qcore {
namespace {

constexpr std::int64_t kMaxDepth = 1 << 20;  // a grid's second axis takes 2^16 times 16 channels
constexpr std::int64_t kMaxSum = 1 << 26;    // channels times taps: 8 panels are counted in int
constexpr std::int64_t kMinChannels = 8;     // of a group
constexpr std::int64_t kMaxGroups = 65535;   // a grid's third axis

std::int64_t depth_of(const StaticLayer& layer) { return round_up(layer.layout.k, static_gemm::kChunk); }

// Whether products can read x as it is.
bool in_place(const StaticProblem& problem) {
  const ImageView& x = problem.x;
  return x.channel == 1 && problem.layer->layout.k % static_gemm::kChunk == 0 && x.column % 16 == 0 &&
         x.row % 16 == 0 && x.image % 16 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

class Run {
 public:
  Run(const StaticProblem& problem, const StaticBounds& bounds, static_gemm::Product product)
      : problem_(problem),
        layer_(*problem.layer),
        bounds_(bounds),
        product_(product),
        stream_(static_cast<cudaStream_t>(problem.stream)) {
    const PackedLayout& layout = layer_.layout;
    a_.words = layer_.codes;
    a_.n = layout.n;
    a_.panels = layout.panels();
    a_.steps = layout.steps();
    a_.groups = static_cast<int>(layer_.window.groups);
    a_.parts = static_cast<int>(layer_.parts);
    a_.depth = static_cast<int>(depth_of(layer_));
    a_.x_signed = layer_.options.x.dtype == DType::i8;
    a_.zero = 0x01010101u * static_cast<std::uint8_t>(layer_.options.x.zero_point);
    a_.y = problem.y;
    a_.requantization = static_gemm::Requantization(layer_);
    a_.enough_tiles = bounds.enough_tiles;
    a_.overlap = compute_capability(problem.device.index) >= 90;
  }

  void run() {
    const std::int64_t columns = problem_.columns.input, rows = problem_.rows.input;
    if (in_place(problem_)) {
      a_.x = static_cast<const std::int8_t*>(problem_.x.data);
      a_.group_step = layer_.layout.k;
      a_.window = device_window(problem_.rows, problem_.columns, problem_.x.image, problem_.x.row, problem_.x.column);
      return multiply(0, problem_.batch);
    }
    const std::int64_t pixel = a_.depth * layer_.window.groups, image = rows * columns * pixel;
    const std::int64_t images =
        std::min(std::max<std::int64_t>(std::min(bounds_.codes, kMaxBytes) / std::max<std::int64_t>(image, 1), 1),
                 problem_.batch);
    ScratchPlan plan;
    const auto codes = plan.add<std::int8_t>(std::max<std::int64_t>(images * image, 16));
    CudaScratch scratch(plan, problem_.device.index, stream_);
    a_.x = scratch[codes];
    a_.group_step = a_.depth;
    a_.window = device_window(problem_.rows, problem_.columns, image, columns * pixel, pixel);
    for (std::int64_t first = 0; first < problem_.batch; first += images) {
      const std::int64_t here = std::min(images, problem_.batch - first);
      ImageView x = problem_.x;
      x.data = static_cast<const char*>(x.data) + first * x.image;
      static_gemm::pack({x, static_cast<int>(here), static_cast<int>(rows), static_cast<int>(columns), a_.groups,
                         layer_.layout.k, a_.depth, scratch[codes]},
                        stream_);
      multiply(first, first + here);
    }
  }

 private:
  // Rows of codes are counted in int.
  static constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

  // The results of some images, the first of which a_.x begins with.
  void multiply(std::int64_t image, std::int64_t end) {
    const std::int64_t image_results = problem_.rows.output * problem_.columns.output;
    a_.first_image = image;
    a_.images = end - image;
    for (std::int64_t result = image * image_results; result < end * image_results; result += a_.results) {
      a_.first = FirstResult(a_.window, result);
      a_.results = static_cast<int>(std::min(bounds_.results, end * image_results - result));
      product_(a_, stream_);
    }
  }

  const StaticProblem& problem_;
  const StaticLayer& layer_;
  const StaticBounds& bounds_;
  static_gemm::Product product_;
  cudaStream_t stream_;
  static_gemm::Arguments a_{};
};

// Parts of images that no window joins: of a linear layer, whose "image" may be all of its rows.
bool is_product(const StaticProblem& problem) {
  for (const numerics::WindowAxis* axis : {&problem.rows, &problem.columns})
    if (axis->kernel != 1 || axis->stride != 1 || axis->before != 0 || axis->input != axis->output) return false;
  return true;
}

// Calls run(part), parts being `most` of the axis.
template <class Work>
void for_each_part(const StaticProblem& problem, numerics::WindowAxis StaticProblem::* axis,
                   std::int64_t ImageView::* step, std::int64_t most, const Work& work) {
  const std::int64_t length = (problem.*axis).input;
  for (std::int64_t first = 0; first < length; first += most) {
    StaticProblem part = problem;
    (part.*axis).input = (part.*axis).output = std::min(most, length - first);
    part.x.data = static_cast<const char*>(part.x.data) + first * (part.x.*step);
    part.y.data = static_cast<const char*>(part.y.data) + first * (part.y.*step);
    work(part);
  }
}

}  // namespace

const char* static_sm75_int8_implicit_gemm_unsupported_reason(const StaticProblem& problem) {
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  const PackedLayout& layout = problem.layer->layout;
  const std::int64_t groups = problem.layer->window.groups;
  if (groups > 1 && (layout.n < kMinChannels || layout.k < kMinChannels))
    return "it takes groups of at least 8 channels in and out";
  if (groups > kMaxGroups) return "it takes up to 65535 groups";
  if (layout.k > kMaxDepth || layout.k * layout.taps > kMaxSum || layout.n > kMaxPixels)
    return "it takes sums of up to 2^20 channels, and 2^26 with the window's taps";
  if (const char* reason = window_unsupported_reason(problem.rows, problem.columns)) return reason;
  if (problem.rows.input * problem.columns.input * groups > kMaxPixels)
    return "it takes images of up to 2^30 rows of channels";
  return nullptr;
}

void run_static_sm75_int8_implicit_gemm(const StaticProblem& problem, const StaticBounds& bounds) {
  static_gemm::for_each_launch(problem, bounds, static_gemm::run);
}

void static_gemm::for_each_launch(const StaticProblem& problem, const StaticBounds& bounds, Product product) {
  DeviceGuard guard(problem.device.index);
  const auto run = [&](const StaticProblem& part) { Run(part, bounds, product).run(); };
  const std::int64_t row = problem.columns.input * depth_of(*problem.layer);
  if (in_place(problem) || !is_product(problem) || problem.rows.input * row <= bounds.codes) return run(problem);
  const std::int64_t rows = std::max<std::int64_t>(bounds.codes / row, 1),
                     columns = std::max<std::int64_t>(bounds.codes / depth_of(*problem.layer), 1);
  for_each_part(problem, &StaticProblem::rows, &ImageView::row, rows, [&](const StaticProblem& band) {
    for_each_part(band, &StaticProblem::columns, &ImageView::column, columns, run);
  });
}

}  // namespace qcore
