#include "static/cpu/channels_last.h"

#include <algorithm>
#include <cstring>

namespace qcore {
namespace {

constexpr std::int64_t kFewChannels = 16;  // so few that joined runs are worth rows with their padding

const std::uint8_t* codes_of(const ImageView& view) { return static_cast<const std::uint8_t*>(view.data); }

// A tile's pixels whose addresses agree in the bits that choose a set of the first-level cache push each other out of
// it: a copy with longer steps costs less, if many channels are computed from it.
bool pixels_collide(const StaticProblem& problem) {
  constexpr std::int64_t kSetBytes = 2048, kManyChannels = 256;
  const std::int64_t step = problem.x.column * problem.columns.stride;
  return problem.results() > 2 && step % kSetBytes == 0 && problem.layer->layout.n >= kManyChannels;
}

std::int64_t columns_with_padding(const numerics::WindowAxis& axis) {
  return (axis.output - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1;
}

// Copies rows of an image, or the whole image as one row where its rows follow each other.
class Copy {
 public:
  Copy(const StaticProblem& problem, const StaticTileKernels& kernels, const ChannelsLast& to, std::uint8_t* data)
      : problem_(problem),
        kernels_(kernels),
        to_(to),
        data_(data),
        whole_images_(!to.joined && problem.x.row == problem.columns.input * problem.x.column),
        pixels_(whole_images_ ? problem.rows.input * problem.columns.input : problem.columns.input),
        runs_(whole_images_ ? 1 : problem.rows.input) {}

  void run() const {
    const std::int64_t codes = problem_.batch * problem_.rows.input * to_.row;
    // A task is a piece of a run, so that a single image becomes several.
    const std::int64_t pieces = to_.joined ? 1 : std::max<std::int64_t>(1, pixels_ * to_.column / kSerialElements);
    for_each_task(problem_.batch * runs_ * pieces, codes > kSerialElements, [&](std::int64_t task) {
      const std::int64_t piece = task % pieces, run = task / pieces;
      copy(run / runs_, run % runs_, piece * pixels_ / pieces, (piece + 1) * pixels_ / pieces);
    });
  }

 private:
  void copy(std::int64_t image, std::int64_t row, std::int64_t first, std::int64_t end) const {
    const ImageView& x = problem_.x;
    const PackedLayout& layout = problem_.layer->layout;
    const std::uint8_t* from = codes_of(x) + image * x.image + row * x.row + first * x.column;
    std::uint8_t* to = data_ + image * to_.image + row * to_.row;
    const std::int64_t begin = to_.joined ? problem_.columns.before : 0;
    if (to_.joined) {
      std::fill(to, to + to_.row, static_cast<std::uint8_t>(problem_.layer->options.x.zero_point));
      end = std::max(first, std::min(end, to_.row / to_.column - begin));
    }
    to += (begin + first) * to_.column;
    if (!to_.joined && layout.k != to_.group_codes) std::memset(to, 0, (end - first) * to_.column);
    const std::int64_t groups = problem_.layer->window.groups;
    if (groups == 1 || layout.k == to_.group_codes) return copy_channels(from, to, end - first, groups * layout.k);
    for (std::int64_t group = 0; group < groups; ++group)
      copy_channels(from + group * layout.k * x.channel, to + group * to_.group, end - first, layout.k);
  }

  void copy_channels(const std::uint8_t* from, std::uint8_t* to, std::int64_t pixels, std::int64_t k) const {
    const ImageView& x = problem_.x;
    const bool alone = problem_.layer->window.groups == 1;
    if (x.column == 1) {
      kernels_.transpose(from, x.channel, to, to_.column, k, pixels, alone ? to_.column : k);
    } else if (x.channel == 1) {
      std::int64_t i = 0;
      // Colors: four bytes at once, the last of which is the next pixel's, or no one's.
      if (k == 3 && alone && to_.column == 4 && x.column >= 3)
        for (; i + 1 < pixels; ++i) std::memcpy(to + i * 4, from + i * x.column, 4);
      for (; i < pixels; ++i) std::memcpy(to + i * to_.column, from + i * x.column, k);
    } else {
      for (std::int64_t i = 0; i < pixels; ++i)
        for (std::int64_t c = 0; c < k; ++c) to[i * to_.column + c] = from[i * x.column + c * x.channel];
    }
  }

  const StaticProblem& problem_;
  const StaticTileKernels& kernels_;
  const ChannelsLast& to_;
  std::uint8_t* data_;
  bool whole_images_;
  std::int64_t pixels_, runs_;  // of a run; of an image
};

}  // namespace

ChannelsLast channels_last(const StaticProblem& problem, const StaticTileKernels& kernels, bool quads,
                           Scratch& scratch) {
  const StaticLayer& layer = *problem.layer;
  const ImageView& x = problem.x;
  const numerics::WindowAxis& columns = problem.columns;
  const std::int64_t k = layer.layout.k, groups = layer.window.groups;
  const bool joinable = quads && groups == 1 && columns.dilation == 1 && columns.kernel > 1;
  ChannelsLast result;
  if (x.channel == 1 && (!quads || (k % 4 == 0 && !pixels_collide(problem)))) {
    result.data = codes_of(x);
    result.image = x.image, result.row = x.row, result.column = x.column;
    result.group = result.group_codes = k;
    result.joined = joinable && columns.before == 0 && x.column == k && columns_with_padding(columns) <= columns.input;
  } else {
    result.group = result.group_codes = quads ? round_up(k, 4) : k;
    result.joined = joinable && k <= kFewChannels;
    result.column = groups * result.group;
    if (quads && result.column % kAlignment == 0 && k > kFewChannels) result.column += kAlignment;
    result.row = (result.joined ? columns_with_padding(columns) : columns.input) * result.column;
    result.image = problem.rows.input * result.row;
    auto* data = scratch.take<std::uint8_t>(problem.batch * result.image);
    Copy(problem, kernels, result, data).run();
    result.data = data;
  }
  result.columns = columns;
  if (result.joined) result.columns = {columns_with_padding(columns), 1, columns.stride, 1, 0, columns.output};
  const std::int64_t run = groups * result.group + (result.joined ? columns.kernel : 1) * result.group_codes;
  auto* padding = scratch.take<std::uint8_t>(run);
  std::fill(padding, padding + run, static_cast<std::uint8_t>(layer.options.x.zero_point));
  result.padding = padding;
  return result;
}

void scatter(const RowView& y, const StaticTileKernels& kernels, const std::uint8_t* codes, std::int64_t step,
             std::int64_t first, std::int64_t count, std::int64_t channel, std::int64_t channels) {
  auto* data = static_cast<std::uint8_t*>(const_cast<void*>(y.data)) + channel * y.column_stride;
  y.for_runs(first, first + count, [&](std::int64_t, std::int64_t run, std::int64_t offset) {
    if (y.column_stride == 1) {
      for (std::int64_t i = 0; i < run; ++i)
        std::memcpy(data + offset + i * y.row_stride(), codes + i * step, static_cast<std::size_t>(channels));
    } else if (y.row_stride() == 1) {
      kernels.transpose(codes, step, data + offset, y.column_stride, run, channels, run);
    } else {
      for (std::int64_t i = 0; i < run; ++i)
        for (std::int64_t c = 0; c < channels; ++c)
          data[offset + i * y.row_stride() + c * y.column_stride] = codes[i * step + c];
    }
    codes += run * step;
  });
}

StaticCodeFormat code_format(const StaticLayer& layer) {
  const StaticOptions& options = layer.options;
  const int flip = options.y.dtype == DType::i8 ? 0x80 : 0;
  const float* end = layer.multipliers + layer.shape[0];
  const bool needs_saturation = std::any_of(layer.multipliers, end, [](float multiplier) { return multiplier >= 1; });
  return {needs_saturation,
          static_cast<float>(options.hi - options.y.zero_point),
          options.y.zero_point + flip,
          options.lo + flip,
          options.hi + flip,
          flip};
}

}  // namespace qcore
