#include "static/cpu/depthwise.h"

#include <algorithm>
#include <cstring>

#include "qcore/kernels.h"
#include "static/cpu/channels_last.h"

namespace qcore {
namespace {

constexpr std::int64_t kRows = StaticDepthwiseArguments::kRows;

class Depthwise {
 public:
  Depthwise(const StaticProblem& problem, const StaticTileKernels& kernels)
      : problem_(problem),
        kernels_(kernels),
        layer_(*problem.layer),
        channels_(problem.layer->shape[0]),
        block_(kernels.depthwise_block),
        blocks_(ceil_div(channels_, block_)),
        quads_(ceil_div(problem.rows.kernel, kRows)) {}

  void run() {
    Scratch scratch;
    x_ = channels_last(problem_, kernels_, false, scratch);
    prepare(scratch);
    const std::int64_t rows = problem_.batch * problem_.rows.output;
    const bool parallel = problem_.results() * channels_ > kSerialElements;
    const std::int64_t wanted = parallel ? 8 * get_num_threads() : 1;
    const std::int64_t row_tasks = std::min(rows, ceil_div(wanted, blocks_));
    for_each_task(blocks_ * row_tasks, parallel, [&](std::int64_t task) {
      const std::int64_t block = task / row_tasks, piece = task % row_tasks;
      run_task(block, piece * rows / row_tasks, (piece + 1) * rows / row_tasks);
    });
  }

 private:
  static constexpr std::int64_t kBufferBytes = 16 << 10;  // half of a first-level cache

  // An array of 32-bit values per channel in the kernel's order.
  template <class T>
  void arrange(const T* from, T* to) const {
    const std::int64_t sixteens = block_ / 16;
    for (std::int64_t channel = 0; channel < channels_; ++channel) {
      const std::int64_t within = channel % block_;
      to[channel - within + within % 16 / 4 * (4 * sixteens) + within / 16 * 4 + within % 4] = from[channel];
    }
  }

  void prepare(Scratch& scratch) {
    const std::int64_t padded = blocks_ * block_, taps = quads_ * problem_.columns.kernel;
    auto* weights = scratch.take<std::int32_t>(taps * padded);
    auto* acc_init = scratch.take<std::int32_t>(padded);
    auto* multipliers = scratch.take<float>(padded);
    auto* sums = scratch.take<std::int32_t>(channels_);
    auto* row = scratch.take<std::int32_t>(padded);
    std::fill(weights, weights + taps * padded, 0);
    std::fill(acc_init, acc_init + padded, 0);
    std::fill(multipliers, multipliers + padded, 0.0f);
    for (std::int64_t channel = 0; channel < channels_; ++channel) sums[channel] = sum_start(layer_, kernels_, channel);
    arrange(sums, acc_init);
    arrange(layer_.multipliers, multipliers);
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      std::memcpy(sums, layer_.depthwise + tap * channels_ * 4, channels_ * 4);
      std::fill(row, row + padded, 0);
      arrange(sums, row);
      for (std::int64_t block = 0; block < blocks_; ++block)
        std::copy(row + block * block_, row + (block + 1) * block_, weights + (block * taps + tap) * block_);
    }
    weights_ = reinterpret_cast<const std::int8_t*>(weights);
    acc_init_ = acc_init, multipliers_ = multipliers;
  }

  void run_task(std::int64_t block, std::int64_t first_row, std::int64_t end_row) const {
    const numerics::WindowAxis &rows = problem_.rows, &columns = problem_.columns;
    const ImageView& y = problem_.y;
    const bool direct = y.channel == 1;
    const std::int64_t channel = block * block_, taps = quads_ * columns.kernel;
    const std::int64_t reach = (columns.kernel - 1) * columns.dilation + 1;
    const std::int64_t most = kBufferBytes / (quads_ * block_ * 4);  // columns of the buffer
    const std::int64_t results =
        std::min(columns.output, std::max<std::int64_t>(8, (most - reach) / columns.stride + 1));
    Scratch scratch;
    auto* row_pointers = scratch.take<const std::uint8_t*>(quads_ * kRows);
    auto* row_steps = scratch.take<std::int64_t>(quads_ * kRows);
    auto* codes = direct ? nullptr : scratch.take<std::uint8_t>((end_row - first_row) * columns.output * block_);
    StaticDepthwiseArguments d;
    d.rows = row_pointers;
    d.row_steps = row_steps;
    d.quads = quads_;
    d.padding = x_.padding;
    d.kernel = columns.kernel, d.stride = columns.stride, d.dilation = columns.dilation;
    d.channels = static_cast<int>(std::min(block_, channels_ - channel));
    d.sign_xor_mask = x_flip(layer_, kernels_) * 0x01010101u;
    d.weights = weights_ + block * taps * block_ * 4;
    d.acc_init = acc_init_ + channel;
    d.multipliers = multipliers_ + channel;
    d.format = code_format(layer_);
    d.buffer = scratch.take<std::uint8_t>(quads_ * ((results - 1) * columns.stride + reach) * block_ * 4);
    for (std::int64_t row = first_row; row < end_row; ++row) {
      const std::int64_t image = row / rows.output, i = row % rows.output;
      for (std::int64_t j = 0; j < columns.output; j += results) {
        d.results = std::min(results, columns.output - j);
        d.columns = (d.results - 1) * columns.stride + reach;
        const std::int64_t first = j * columns.stride - columns.before;
        const std::int64_t begin = std::clamp<std::int64_t>(first, 0, columns.input);
        const std::int64_t end = std::clamp<std::int64_t>(first + d.columns, begin, columns.input);
        d.before = std::clamp<std::int64_t>(begin - first, 0, d.columns);
        d.inside = end - begin;
        for (std::int64_t tap = 0; tap < quads_ * kRows; ++tap) {
          const std::int64_t h = tap < rows.kernel ? rows.at(i, tap) : -1;
          row_pointers[tap] =
              h < 0 ? x_.padding : x_.data + image * x_.image + h * x_.row + begin * x_.column + channel;
          row_steps[tap] = h < 0 ? 0 : x_.column;
        }
        if (direct) {
          d.y = static_cast<std::uint8_t*>(const_cast<void*>(y.data)) + y.offset(image, channel, i, j);
          d.y_step = y.column;
        } else {
          d.y = codes + ((row - first_row) * columns.output + j) * block_;
          d.y_step = block_;
        }
        kernels_.depthwise(d);
      }
    }
    if (!direct)
      scatter(problem_.y_rows(), kernels_, codes, block_, first_row * columns.output,
              (end_row - first_row) * columns.output, channel, d.channels);
  }

  const StaticProblem& problem_;
  const StaticTileKernels& kernels_;
  const StaticLayer& layer_;
  const std::int64_t channels_, block_, blocks_;
  const std::int64_t quads_;  // of kernel rows
  ChannelsLast x_;
  const std::int8_t* weights_ = nullptr;
  const std::int32_t* acc_init_ = nullptr;
  const float* multipliers_ = nullptr;
};

}  // namespace

void run_depthwise(const StaticProblem& problem, const StaticTileKernels& kernels) {
  Depthwise(problem, kernels).run();
}

}  // namespace qcore
