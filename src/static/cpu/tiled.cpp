#include "gemm/cpu/tiled.h"

#include <algorithm>

#include "qcore/kernels.h"
#include "static/cpu/channels_last.h"
#include "static/cpu/depthwise.h"
#include "static/dispatch.h"

// Drives the tile kernels of one instruction set. Tiles read x where it lies, whatever the window.
namespace qcore {
namespace {

class TiledConvolution {
 public:
  using Result = std::uint8_t;

  TiledConvolution(const StaticProblem& problem, const StaticTileKernels& kernels)
      : problem_(problem),
        kernels_(kernels),
        layer_(*problem.layer),
        layout_(problem.layer->layout),
        y_(problem.y_rows()),
        group_columns_(ceil_div(layout_.panels(), kernels.max_panels)),
        format_(code_format(*problem.layer)) {}

  void run() {
    Scratch scratch;
    x_ = channels_last(problem_, kernels_, true, scratch);
    taps_ = layer_.parts * problem_.rows.kernel * x_.columns.kernel;
    steps_ = layout_.taps * layout_.steps() / taps_;
    prepare(scratch);
    TileDriver<TiledConvolution>(*this, tasks(), kernels_.max_rows, kernels_.max_panels).run();
  }

  // ---- what the driver asks for

  std::int64_t results() const { return problem_.results(); }

  WindowRows window() const {
    const auto* x = reinterpret_cast<const char*>(x_.data);
    const auto* padding = reinterpret_cast<const char*>(x_.padding);
    return {problem_.rows, x_.columns, taps_, x, padding, x_.image, x_.row, x_.column};
  }

  std::int64_t columns() const { return layer_.window.groups * group_columns_; }

  TileColumn column(std::int64_t index) const {
    const std::int64_t group = index / group_columns_, panel = index % group_columns_ * kernels_.max_panels;
    const std::int64_t panels = std::min<std::int64_t>(kernels_.max_panels, layout_.panels() - panel);
    const std::int64_t channel = panel * PackedLayout::kPanelRows;
    const std::int64_t channels = std::min(panels * PackedLayout::kPanelRows, layout_.n - channel);
    return {group, panel, panels, group * layout_.n + channel, channels, 0};
  }

  StaticTileArguments arguments(const TileColumn& column) const {
    const std::int64_t panel = column.group * layout_.panels() + column.panel;
    StaticTileArguments t{};
    t.layout = &layout_;
    t.x_offset = column.group * x_.group;
    t.taps = taps_;
    t.steps = steps_;
    t.sign_xor_mask = x_flip(layer_, kernels_) * 0x01010101u;
    t.x_is_signed = layer_.options.x.dtype == DType::i8;
    t.weights = layer_.codes + panel * layout_.panel_bytes();
    t.panel_bytes = layout_.panel_bytes();
    t.acc_init = acc_init_ + panel * PackedLayout::kPanelRows;
    t.multipliers = multipliers_ + panel * PackedLayout::kPanelRows;
    t.format = format_;
    t.channels = static_cast<int>(column.channels);
    return t;
  }

  std::int64_t y_step() const { return y_.row_stride(); }

  std::uint8_t* in_place(const TileColumn& column) const {
    if (y_.column_stride != 1 || y_.leading > 1) return nullptr;
    return static_cast<std::uint8_t*>(const_cast<void*>(y_.data)) + column.channel;
  }

  template <class Walk>
  void multiply(const StaticTileArguments& t, std::int64_t, const Walk& walk, TaskMemory&) const {
    walk([&](std::int64_t) { kernels_.tile(t); });
  }

  void end_task() const {
    if (kernels_.release) kernels_.release();
  }

  void store(const TileColumn& column, std::int64_t begin, std::int64_t end, const std::uint8_t* results,
             std::int64_t row_length) const {
    scatter(y_, kernels_, results, row_length, begin, end - begin, column.channel, column.channels);
  }

 private:
  // Returns enough tasks to even out threads of unequal speed. A task's pixels are many, because they share its
  // weights, but few enough for the pointers to them to stay in a cache.
  TileTasks tasks() const {
    constexpr std::int64_t kCachedWeights = 256 << 10, kPointers = 4 << 10;
    const std::int64_t products = results() * layer_.shape[0] * layout_.taps * layout_.k;
    const bool parallel = products > kSerialStaticProducts;
    const std::int64_t wanted = parallel ? 6 * get_num_threads() : 1;
    const std::int64_t tiles = ceil_div(results(), kernels_.max_rows);
    const std::int64_t columns_in_cache =
        std::max<std::int64_t>(1, kCachedWeights / (kernels_.max_panels * layout_.panel_bytes() + 1));
    const std::int64_t column_parts =
        std::min(columns(), std::max(ceil_div(columns(), columns_in_cache), ceil_div(wanted, tiles)));
    const std::int64_t row_parts = std::max(ceil_div(wanted, column_parts), ceil_div(results() * taps_, kPointers));
    return {std::min(tiles, row_parts), column_parts, 0, parallel};
  }

  void prepare(Scratch& scratch) {
    const std::int64_t padded = layout_.panels() * PackedLayout::kPanelRows, groups = layer_.window.groups;
    auto* acc_init = scratch.take<std::int32_t>(groups * padded);
    auto* multipliers = scratch.take<float>(groups * padded);
    for (std::int64_t group = 0; group < groups; ++group) {
      for (std::int64_t n = 0; n < padded; ++n) {
        const bool valid = n < layout_.n;
        const std::int64_t channel = group * layout_.n + n;
        acc_init[group * padded + n] = valid ? sum_start(layer_, kernels_, channel) : 0;
        multipliers[group * padded + n] = valid ? layer_.multipliers[channel] : 0.0f;
      }
    }
    acc_init_ = acc_init, multipliers_ = multipliers;
  }

  const StaticProblem& problem_;
  const StaticTileKernels& kernels_;
  const StaticLayer& layer_;
  const PackedLayout& layout_;
  const RowView y_;
  const std::int64_t group_columns_;  // TileColumns of a group
  const StaticCodeFormat format_;
  ChannelsLast x_;
  std::int64_t taps_ = 0, steps_ = 0;  // runs of all parts of the kernel, and steps of a run
  const std::int32_t* acc_init_ = nullptr;
  const float* multipliers_ = nullptr;
};

}  // namespace

const char* static_tiled_unsupported_reason(const StaticProblem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

void run_static_tiled(const StaticProblem& problem, const StaticTileKernels& kernels) {
  if (problem.layer->depthwise)
    run_depthwise(problem, kernels);
  else
    TiledConvolution(problem, kernels).run();
}

}  // namespace qcore
