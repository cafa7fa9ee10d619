#include <algorithm>

#include "qcore/kernels.h"
#include "static/cpu/channels_last.h"
#include "static/cpu/depthwise.h"
#include "static/dispatch.h"

// Drives the tile kernels of one instruction set. A tile's pixels are found through pointers, one for each pixel and
// tap, so that x is read where it lies, whatever the window.
namespace qcore {
namespace {

constexpr std::int64_t kPixels = StaticTileArguments::kMaxPixels;

class TiledConvolution {
 public:
  TiledConvolution(const StaticProblem& problem, const StaticTileKernels& kernels)
      : problem_(problem),
        kernels_(kernels),
        layer_(*problem.layer),
        layout_(problem.layer->layout),
        pixel_tiles_(ceil_div(problem.results(), kPixels)),
        least_(problem.results() / pixel_tiles_),
        larger_(problem.results() % pixel_tiles_),
        group_blocks_(ceil_div(layout_.panels(), kernels.max_panels)),
        format_(code_format(*problem.layer)) {}

  void run() {
    Scratch scratch;
    x_ = channels_last(problem_, kernels_, true, scratch);
    prepare(scratch);
    const std::int64_t products = problem_.results() * layer_.shape[0] * layout_.taps * layout_.k;
    const bool parallel = products > kSerialStaticProducts;
    const std::int64_t blocks = layer_.window.groups * group_blocks_;
    // Enough tasks to even out threads of unequal speed; a task's pixels are many, because they share its weights.
    const std::int64_t wanted = parallel ? 6 * get_num_threads() : 1;
    const std::int64_t blocks_in_cache =
        std::max<std::int64_t>(1, kCachedWeights / (kernels_.max_panels * layout_.panel_bytes() + 1));
    const std::int64_t column_tasks =
        std::min(blocks, std::max(ceil_div(blocks, blocks_in_cache), ceil_div(wanted, pixel_tiles_)));
    const std::int64_t pixel_tasks = std::min(pixel_tiles_, ceil_div(wanted, column_tasks));
    for_each_task(column_tasks * pixel_tasks, parallel, [&](std::int64_t task) {
      const std::int64_t column = task / pixel_tasks, pixel = task % pixel_tasks;
      run_task(column * blocks / column_tasks, (column + 1) * blocks / column_tasks, pixel * pixel_tiles_ / pixel_tasks,
               (pixel + 1) * pixel_tiles_ / pixel_tasks);
    });
  }

 private:
  static constexpr std::int64_t kCachedWeights = 256 << 10;  // of the second-level cache

  static constexpr std::int64_t kKeptPointers = 2 << 10;

  // Where a tile's pixels are read, and written.
  struct Pixels {
    const std::uint8_t* x[kPixels];
    std::int64_t row[kPixels], column[kPixels];  // of the window's first tap, in x
    std::uint8_t* y[kPixels];                    // the first channel
    int count;
  };

  // The next result, found without divisions.
  struct Cursor {
    std::int64_t n, i, j;
  };

  // Pixels are spread evenly: 7 become tiles of 4 and 3, not of 6 and 1.
  std::int64_t first_pixel(std::int64_t tile) const { return tile * least_ + std::min(tile, larger_); }

  void prepare(Scratch& scratch) {
    const std::int64_t padded = layout_.panels() * PackedLayout::kPanelRows, groups = layer_.window.groups;
    auto* acc_init = scratch.take<std::int32_t>(groups * padded);
    auto* multipliers = scratch.take<float>(groups * padded);
    for (std::int64_t group = 0; group < groups; ++group) {
      for (std::int64_t n = 0; n < padded; ++n) {
        const bool valid = n < layout_.n;
        const std::int64_t channel = group * layout_.n + n;
        acc_init[group * padded + n] = valid ? unsigned_start(layer_, channel) : 0;
        multipliers[group * padded + n] = valid ? layer_.multipliers[channel] : 0.0f;
      }
    }
    acc_init_ = acc_init, multipliers_ = multipliers;
    run_columns_ = x_.joined ? 1 : problem_.columns.kernel;
    taps_ = problem_.rows.kernel * run_columns_;
    auto* offsets = scratch.take<std::int64_t>(taps_);
    for (std::int64_t tap = 0; tap < taps_; ++tap)
      offsets[tap] = tap / run_columns_ * problem_.rows.dilation * x_.row +
                     tap % run_columns_ * problem_.columns.dilation * x_.column;
    tap_offsets_ = offsets;
    steps_ = layout_.steps() * (x_.joined ? problem_.columns.kernel : 1);
  }

  void run_task(std::int64_t first_block, std::int64_t end_block, std::int64_t first_tile,
                std::int64_t end_tile) const {
    Scratch scratch;
    const bool direct = problem_.y.channel == 1;
    const std::int64_t first = first_pixel(first_tile), count = first_pixel(end_tile) - first;
    const std::int64_t block_channels = kernels_.max_panels * PackedLayout::kPanelRows;
    const std::int64_t width = problem_.columns.output, height = problem_.rows.output;
    // Pointers of all tiles serve all blocks, if they are few.
    const std::int64_t tile_pointers = layer_.parts * taps_ * kPixels, tiles = end_tile - first_tile;
    const bool kept = end_block - first_block > 1 && tile_pointers * tiles <= kKeptPointers;
    auto* pointers = scratch.take<const std::uint8_t*>(tile_pointers * (kept ? tiles : 1));
    auto* pixels = scratch.take<Pixels>(kept ? tiles : 1);
    auto* codes = direct ? nullptr : scratch.take<std::uint8_t>(count * block_channels);
    for (std::int64_t block = first_block; block < end_block; ++block) {
      const std::int64_t group = block / group_blocks_, panel = block % group_blocks_ * kernels_.max_panels;
      const std::int64_t channel = group * layout_.n + panel * PackedLayout::kPanelRows;
      StaticTileArguments t = block_arguments(group, panel);
      t.y_offset = direct ? channel * problem_.y.channel : 0;
      const bool found = kept && block > first_block && group == (block - 1) / group_blocks_;
      Cursor cursor{first / width / height, first / width % height, first % width};
      std::uint8_t* buffered = codes;
      for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
        const std::int64_t place = kept ? tile - first_tile : 0;
        Pixels& here = pixels[place];
        const std::uint8_t** to = pointers + place * tile_pointers;
        if (!found) {
          here.count = static_cast<int>(least_ + (tile < larger_));
          locate(cursor, group, here);
          for (int p = 0; p < here.count && !direct; ++p, buffered += block_channels) here.y[p] = buffered;
          point(here, to);
        }
        t.pixels = here.count;
        t.x = to;
        t.y = here.y;
        kernels_.tile(t);
      }
      if (!direct) scatter(problem_, kernels_, codes, block_channels, first, count, channel, t.channels);
    }
  }

  StaticTileArguments block_arguments(std::int64_t group, std::int64_t panel) const {
    const std::int64_t padded = layout_.panels() * PackedLayout::kPanelRows;
    const std::int64_t channel = panel * PackedLayout::kPanelRows;
    StaticTileArguments t;
    t.panels = static_cast<int>(std::min<std::int64_t>(kernels_.max_panels, layout_.panels() - panel));
    t.taps = layer_.parts * taps_;
    t.steps = steps_;
    t.sign_xor_mask = x_flip(layer_) * 0x01010101u;
    t.weights = layer_.codes + group * layout_.code_bytes() + panel * layout_.panel_bytes();
    t.panel_bytes = layout_.panel_bytes();
    t.acc_init = acc_init_ + group * padded + channel;
    t.multipliers = multipliers_ + group * padded + channel;
    t.format = format_;
    t.channels = static_cast<int>(std::min<std::int64_t>(t.panels * PackedLayout::kPanelRows, layout_.n - channel));
    return t;
  }

  void locate(Cursor& cursor, std::int64_t group, Pixels& pixels) const {
    const numerics::WindowAxis &rows = problem_.rows, &columns = problem_.columns;
    const std::int64_t before = x_.joined ? 0 : columns.before;
    auto* y = static_cast<std::uint8_t*>(const_cast<void*>(problem_.y.data));
    for (int p = 0; p < pixels.count; ++p) {
      pixels.row[p] = cursor.i * rows.stride - rows.before;
      pixels.column[p] = cursor.j * columns.stride - before;
      pixels.x[p] =
          x_.data + cursor.n * x_.image + pixels.row[p] * x_.row + pixels.column[p] * x_.column + group * x_.group;
      pixels.y[p] = y + cursor.n * problem_.y.image + cursor.i * problem_.y.row + cursor.j * problem_.y.column;
      if (++cursor.j < columns.output) continue;
      cursor.j = 0;
      if (++cursor.i < rows.output) continue;
      cursor.i = 0;
      ++cursor.n;
    }
  }

  void point(const Pixels& pixels, const std::uint8_t** pointers) const {
    const numerics::WindowAxis &rows = problem_.rows, &columns = problem_.columns;
    const std::int64_t last_row = (rows.kernel - 1) * rows.dilation,
                       last_column = (run_columns_ - 1) * columns.dilation;
    bool inside = true;
    for (int p = 0; p < pixels.count; ++p)
      inside &= pixels.row[p] >= 0 && pixels.row[p] + last_row < rows.input &&
                (x_.joined || (pixels.column[p] >= 0 && pixels.column[p] + last_column < columns.input));
    const std::uint8_t** to = pointers;
    if (inside) {
      for (std::int64_t tap = 0; tap < taps_; ++tap, to += kPixels)
        for (int p = 0; p < pixels.count; ++p) to[p] = pixels.x[p] + tap_offsets_[tap];
    } else {
      for (std::int64_t tap = 0; tap < taps_; ++tap, to += kPixels) {
        const std::int64_t row = tap / run_columns_ * rows.dilation, column = tap % run_columns_ * columns.dilation;
        for (int p = 0; p < pixels.count; ++p) {
          const bool valid = within(pixels.row[p] + row, rows.input) &&
                             (x_.joined || within(pixels.column[p] + column, columns.input));
          to[p] = valid ? pixels.x[p] + tap_offsets_[tap] : x_.padding;
        }
      }
    }
    for (std::int64_t part = 1; part < layer_.parts; ++part, to += taps_ * kPixels)
      std::copy(pointers, pointers + taps_ * kPixels, to);
  }

  static bool within(std::int64_t place, std::int64_t extent) {
    return static_cast<std::uint64_t>(place) < static_cast<std::uint64_t>(extent);
  }

  const StaticProblem& problem_;
  const StaticTileKernels& kernels_;
  const StaticLayer& layer_;
  const PackedLayout& layout_;
  const std::int64_t pixel_tiles_, least_, larger_;  // so many tiles have a pixel more than the least
  const std::int64_t group_blocks_;                  // blocks of panels in a group
  const StaticCodeFormat format_;
  ChannelsLast x_;
  std::int64_t run_columns_ = 1;  // runs of a row of the kernel: its taps, or one
  std::int64_t taps_ = 0;         // runs of the kernel
  std::int64_t steps_ = 0;        // of a run
  const std::int32_t* acc_init_ = nullptr;
  const float* multipliers_ = nullptr;
  const std::int64_t* tap_offsets_ = nullptr;
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
