#include <algorithm>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"
#include "static/cuda/kernels.h"
#include "static/cuda/requantization.cuh"
#include "static/cuda/sm75_int8_implicit_gemm/launch.cuh"

namespace qcore {
namespace {

constexpr std::int64_t kMaxDepth = 1 << 20;                 // a grid's second axis takes 2^16 times 16 channels
constexpr std::int64_t kMaxSum = 1 << 26;                   // channels times taps: 8 panels are counted in int
constexpr std::int64_t kMinChannels = 8;                    // of a group
constexpr std::int64_t kMaxGroups = 65535;                  // a grid's third axis

std::int64_t depth_of(const StaticLayer& layer) { return round_up(layer.layout.k, static_gemm::kChunk); }

// Whether products can read x as it is.
bool in_place(const StaticProblem& problem) {
  const ImageView& x = problem.x;
  return x.channel == 1 && problem.layer->layout.k % static_gemm::kChunk == 0 && x.column % 16 == 0 &&
         x.row % 16 == 0 && x.image % 16 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

class Run {
 public:
  Run(const StaticProblem& problem, const StaticBounds& bounds)
      : problem_(problem), layer_(*problem.layer), bounds_(bounds), stream_(static_cast<cudaStream_t>(problem.stream)) {
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
    a_.requantization = requantization(layer_);
    a_.enough_tiles = bounds.enough_tiles;
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
    for (std::int64_t result = image * image_results; result < end * image_results; result += a_.results) {
      a_.first = FirstResult(a_.window, result);
      a_.results = static_cast<int>(std::min(bounds_.results, end * image_results - result));
      static_gemm::run(a_, stream_);
    }
  }

  const StaticProblem& problem_;
  const StaticLayer& layer_;
  const StaticBounds& bounds_;
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
  DeviceGuard guard(problem.device.index);
  const auto run = [&](const StaticProblem& part) { Run(part, bounds).run(); };
  const std::int64_t row = problem.columns.input * depth_of(*problem.layer);
  if (in_place(problem) || !is_product(problem) || problem.rows.input * row <= bounds.codes) return run(problem);
  const std::int64_t rows = std::max<std::int64_t>(bounds.codes / row, 1),
                     columns = std::max<std::int64_t>(bounds.codes / depth_of(*problem.layer), 1);
  for_each_part(problem, &StaticProblem::rows, &ImageView::row, rows, [&](const StaticProblem& band) {
    for_each_part(band, &StaticProblem::columns, &ImageView::column, columns, run);
  });
}

void run_static_sm75_int8_implicit_gemm(const StaticProblem& problem) {
  run_static_sm75_int8_implicit_gemm(problem, StaticBounds{});
}

}  // namespace qcore
