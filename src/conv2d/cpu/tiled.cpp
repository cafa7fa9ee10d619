#include <algorithm>

#include "conv2d/cpu/pixels.h"
#include "conv2d/cpu/vtable.h"
#include "conv2d/dispatch.h"
#include "gemm/cpu/driver.h"
#include "gemm/epilogue.h"
#include "qcore/kernels.h"

// Drives the tile kernels of one instruction set: quantize each pixel once, then walk over tiles of results by panels,
// each of whose taps finds its pixels through a table.
namespace qcore {
namespace {

class TiledConv {
 public:
  TiledConv(const Conv2dProblem& problem, const ConvKernels& kernels)
      : problem_(problem),
        kernels_(kernels),
        layout_(problem.weight->layout),
        depthwise_(kernels.weights != nullptr),
        groups_(depthwise_ ? 1 : problem.groups),
        input_(input_pixels(problem)),
        output_(output_pixels(problem)),
        results_(output_.count()),
        parallel_(results_ * layout_.n * layout_.k * layout_.taps > kSerialProducts),
        simple_(is_clamp_or_none(problem.activation)),
        slides_(depthwise_ && problem.columns.kernel == 3 && problem.columns.stride == 1 &&
                problem.columns.dilation == 1),
        direct_(simple_ && output_.view.dtype == DType::f32 && output_.view.channel == 1 && output_.evenly_spaced()) {}

  void run() {
    Scratch scratch;
    allocate(scratch);
    pack_all();

    constexpr std::int64_t kResultsPerTask =
        96;  // whole tiles and vectors; whose weights stay in the second-level cache, column after column
    constexpr std::int64_t kTasksPerThread = 8;  // enough to even out threads of unequal speed
    const std::int64_t row_tasks = ceil_div(results_, kResultsPerTask);
    const std::int64_t columns = groups_ * columns_per_group();
    const std::int64_t wanted = parallel_ ? get_num_threads() * kTasksPerThread : 1;
    const std::int64_t column_tasks = std::min(columns, ceil_div(wanted, row_tasks));
    for_each_task(row_tasks * column_tasks, parallel_, [&](std::int64_t task) {
      const std::int64_t row = task / column_tasks, column = task % column_tasks;
      const std::int64_t begin = row * kResultsPerTask, end = std::min(results_, begin + kResultsPerTask);
      multiply(begin, end, column * columns / column_tasks, (column + 1) * columns / column_tasks);
    });
  }

 private:
  void allocate(Scratch& scratch) {
    const bool integer = problem_.compute != ComputeMode::floating;
    if (problem_.compute == ComputeMode::int8_asym) weight_sums_ = problem_.weight->weight_sums();
    if (depthwise_) {
      rows_.plane_channels = kernels_.max_panels * PackedLayout::kPanelRows;
      const std::int64_t bytes = rows_.plane_channels * static_cast<std::int64_t>(sizeof(float));
      const bool scaled_sums = integer && problem_.weight->offsets && !weight_sums_;
      rows_.codes = scaled_sums ? bytes : 0;
      rows_.row_bytes = scaled_sums ? 2 * bytes : bytes;
      rows_.weight_scales = tile_parameters(problem_.weight->scales, 0);
      make_depthwise_weights(scratch);
    } else {
      const std::int64_t blocks = layout_.blocks(), item = kernels_.bytes_per_code;
      rows_.codes = integer ? PixelRows::kParameters * blocks * static_cast<std::int64_t>(sizeof(float)) : 0;
      // Whole vectors of codes are stored from each block's start.
      const std::int64_t last = layout_.block_first_step(blocks - 1) * layout_.step_k() * item;
      const std::int64_t last_bytes = layout_.block_steps(blocks - 1) * layout_.step_k() * item;
      rows_.row_bytes = rows_.codes + last + round_up(last_bytes, PackedRows::kSlackBytes);
    }
    pixel_bytes_ = rows_.row_bytes * groups_;
    rows_.plane_bytes = (input_.count() + 1) * pixel_bytes_;
    const std::int64_t planes = depthwise_ ? columns_per_group() : 1;
    rows_.data = scratch.take<char>(planes * rows_.plane_bytes);
    for (std::int64_t plane = 1; plane <= planes; ++plane)
      std::fill_n(rows_.data + plane * rows_.plane_bytes - pixel_bytes_, pixel_bytes_, char{0});
    bias_ = float_bias(problem_.bias, layout_.n, layout_.panels() * PackedLayout::kPanelRows, scratch);
  }

  // Activations with offsets multiply the weights' sums, which are there already.
  void make_depthwise_weights(Scratch& scratch) {
    if (weight_sums_) {
      weights_ = weight_sums_;
      weights_tap_ = layout_.parameter_count();
      weights_panel_ = PackedLayout::kPanelRows;
      return;
    }
    float* weights = scratch.take<float>(layout_.panels() * layout_.taps * PackedLayout::kPanelRows);
    kernels_.weights(column_arguments(0, 0, layout_.panels()), activation_mode(problem_.compute), weights);
    weights_ = weights;
    weights_tap_ = PackedLayout::kPanelRows;
    weights_panel_ = layout_.taps * PackedLayout::kPanelRows;
  }

  std::int64_t outputs_per_group() const { return layout_.n / groups_; }

  // ---- quantization of x

  void pack_all() const {
    constexpr std::int64_t kPixelsPerTask = 64;
    const std::int64_t pixels = input_.count(), tasks = ceil_div(pixels, kPixelsPerTask);
    for_each_task(tasks, pixels * channels() > kSerialElements, [&](std::int64_t task) {
      input_.for_runs(task * pixels / tasks, (task + 1) * pixels / tasks, [&](const PixelRun& run) { pack_run(run); });
    });
  }

  std::int64_t channels() const { return problem_.groups * layout_.k; }

  // Copies what is not fp32 with neighboring channels, in pieces that stay in the first-level cache.
  void pack_run(const PixelRun& run) const {
    const ImageView& x = input_.view;
    if (x.dtype == DType::f32 && x.channel == 1)
      return pack(static_cast<const float*>(x.data) + run.offset, x.column, run.first, run.count);
    constexpr std::int64_t kCopy = 8192;
    const std::int64_t stride = round_up(channels(), PackedLayout::kPanelRows);
    const std::int64_t pieces = ceil_div(run.count, std::max<std::int64_t>(PackedLayout::kPanelRows, kCopy / stride));
    Scratch scratch;
    float* copy = scratch.take<float>((run.count / pieces + 1) * stride);
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const std::int64_t begin = piece * run.count / pieces, end = (piece + 1) * run.count / pieces;
      copy_floats(run.offset + begin * x.column, end - begin, copy, stride);
      pack(copy, stride, run.first + begin, end - begin);
    }
  }

  void copy_floats(std::int64_t offset, std::int64_t count, float* copy, std::int64_t stride) const {
    const ImageView& x = input_.view;
    const int dtype = static_cast<int>(x.dtype);
    if (x.column == 1) {
      const char* data = static_cast<const char*>(x.data) + offset * item_size(x.dtype);
      kernels_.transpose(data, dtype, x.channel, channels(), count, copy, stride);
      return;
    }
    for (std::int64_t pixel = 0; pixel < count; ++pixel, offset += x.column, copy += stride) {
      if (x.channel == 1)  // fp16 or bf16
        kernels_.widen(static_cast<const std::uint16_t*>(x.data) + offset, dtype, channels(), copy);
      else
        for (std::int64_t c = 0; c < channels(); ++c) copy[c] = load_float(x.data, x.dtype, offset + c * x.channel);
    }
  }

  void pack(const float* values, std::int64_t stride, std::int64_t first, std::int64_t count) const {
    const std::int64_t row_values = channels() / groups_;
    PixelRows rows = rows_;
    rows.data += first * pixel_bytes_;
    if (groups_ == 1 || stride == channels()) {
      kernels_.pack(values, groups_ == 1 ? stride : row_values, count * groups_, layout_,
                    activation_mode(problem_.compute), rows);
      return;
    }
    for (; count > 0; --count, values += stride, rows.data += pixel_bytes_)
      kernels_.pack(values, row_values, groups_, layout_, activation_mode(problem_.compute), rows);
  }

  // ---- products

  std::int64_t columns_per_group() const {
    // Groups of outputs need not start with a panel: their first and last one may hold others', which are not stored.
    const std::int64_t outputs = outputs_per_group();
    const std::int64_t panels = groups_ == 1                              ? layout_.panels()
                                : outputs % PackedLayout::kPanelRows == 0 ? outputs / PackedLayout::kPanelRows
                                                                          : outputs / PackedLayout::kPanelRows + 2;
    return ceil_div(panels, kernels_.max_panels);
  }

  // Results [begin, end) of columns [first, last): up to max_panels panels of one group each.
  void multiply(std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t last) const {
    Scratch scratch;
    const std::int64_t stride = end - begin + kernels_.max_results;
    auto* table = scratch.take<std::int64_t>(layout_.taps * stride);
    for (std::int64_t tap = 0; tap < layout_.taps; ++tap) find_pixels(begin, end, tap, table + tap * stride, stride);
    float* results = scratch.take<float>(stride * kernels_.max_panels * PackedLayout::kPanelRows);
    float* turned = scratch.take<float>(kernels_.max_panels * PackedLayout::kPanelRows * round_up(stride, kLine));
    for (std::int64_t column = first; column < last; ++column) {
      const std::int64_t group = column / columns_per_group(), outputs = outputs_per_group();
      const std::int64_t first_panel =
          group * outputs / PackedLayout::kPanelRows + column % columns_per_group() * kernels_.max_panels;
      const std::int64_t end_panel = std::min<std::int64_t>(ceil_div((group + 1) * outputs, PackedLayout::kPanelRows),
                                                            first_panel + kernels_.max_panels);
      if (first_panel >= end_panel) continue;
      ConvTileArguments arguments = column_arguments(group, first_panel, end_panel);
      arguments.tap_stride = stride;
      const std::int64_t row_length = arguments.panels * PackedLayout::kPanelRows;
      const std::int64_t first_channel = first_panel * PackedLayout::kPanelRows;
      const std::int64_t begin_channel = std::max(group * outputs, first_channel);
      const std::int64_t end_channel = std::min((group + 1) * outputs, end_panel * PackedLayout::kPanelRows);
      const bool direct = direct_ && end_channel - begin_channel == row_length;
      const auto store_tiles = [&](std::int64_t from, std::int64_t to) {
        store(begin + from, begin + to, first_channel, begin_channel, end_channel, results + from * row_length,
              row_length, turned);
      };
      for (std::int64_t at = 0, count; at < end - begin; at += count) {
        arguments.pixels = table + at;
        count = std::min<std::int64_t>(kernels_.max_results, end - begin - at);
        if (slides_) count = std::min(count, output_.columns - (begin + at) % output_.columns);
        arguments.results = static_cast<int>(round_up(count, 2));
        const bool whole = direct && count % 2 == 0;
        arguments.out = whole ? y_ + (begin + at) * output_.view.column + begin_channel : results + at * row_length;
        arguments.out_stride = whole ? output_.view.column : row_length;
        kernels_.tile(arguments);
        if (direct && !whole) store_tiles(at, at + count);
      }
      if (!direct) store_tiles(0, end - begin);
    }
  }

  ConvTileArguments column_arguments(std::int64_t group, std::int64_t panel, std::int64_t end_panel) const {
    const PackedWeight& w = *problem_.weight;
    const std::int64_t parameters = panel * layout_.blocks() * PackedLayout::kPanelRows;
    ConvTileArguments arguments{};
    arguments.layout = &layout_;
    arguments.codes = w.codes + panel * layout_.panel_bytes();
    arguments.scales = tile_parameters(w.scales, parameters);
    arguments.offsets = tile_parameters(w.offsets, parameters);
    arguments.weight_sums = weight_sums_ ? weight_sums_ + parameters : nullptr;
    arguments.rows = rows_.data + group * rows_.row_bytes;
    if (depthwise_) {
      arguments.rows += panel / kernels_.max_panels * rows_.plane_bytes;
      arguments.weights = weights_ + panel * weights_panel_;
      arguments.weights_tap = weights_tap_;
      arguments.weights_panel = weights_panel_;
      arguments.slides = slides_;
    }
    arguments.codes_at = rows_.codes;
    arguments.panels = static_cast<int>(end_panel - panel);
    if (simple_) {
      const FusedActivation& act = problem_.activation;
      arguments.bias = bias_ ? bias_ + panel * PackedLayout::kPanelRows : nullptr;
      arguments.clamp = act.kind == ActivationKind::clamp;
      arguments.lo = act.lo, arguments.hi = act.hi;
    }
    return arguments;
  }

  // The pixel under one tap, in bytes from the first, for each of the results [begin, end), and that of zeros up to
  // `length` of them.
  void find_pixels(std::int64_t begin, std::int64_t end, std::int64_t tap, std::int64_t* pixels,
                   std::int64_t length) const {
    const numerics::WindowAxis &rows = problem_.rows, &columns = problem_.columns;
    const std::int64_t tap_row = tap / columns.kernel, tap_column = tap % columns.kernel;
    const std::int64_t zeros = input_.count() * pixel_bytes_, step = columns.stride * pixel_bytes_;
    // Input columns are inside the image for results [inside, outside).
    const std::int64_t shift = columns.before - tap_column * columns.dilation;
    const std::int64_t inside = shift > 0 ? ceil_div(shift, columns.stride) : 0;
    const std::int64_t outside =
        columns.input + shift > 0 ? ceil_div(columns.input + shift, columns.stride) : std::int64_t{0};
    std::int64_t* const all = pixels + length;
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t row = at / columns.output, first = at % columns.output;
      const std::int64_t last = std::min(columns.output, first + end - at);
      const std::int64_t h = rows.at(row % rows.output, tap_row);
      const std::int64_t from = h < 0 ? last : std::clamp(inside, first, last);
      const std::int64_t to = h < 0 ? last : std::clamp(outside, from, last);
      const std::int64_t start = (row / rows.output * rows.input + h) * columns.input - shift;
      pixels = std::fill_n(pixels, from - first, zeros);
      std::int64_t pixel = (start + from * columns.stride) * pixel_bytes_;
      for (std::int64_t j = from; j < to; ++j, pixel += step) *pixels++ = pixel;
      pixels = std::fill_n(pixels, last - to, zeros);
      at += last - first;
    }
    std::fill(pixels, all, zeros);
  }

  // ---- results

  // Channels [begin_channel, end_channel) of the results [begin, end), whose rows start with first_channel.
  void store(std::int64_t begin, std::int64_t end, std::int64_t first_channel, std::int64_t begin_channel,
             std::int64_t end_channel, float* results, std::int64_t row_length, float* turned) const {
    const ImageView& y = output_.view;
    const std::int64_t count = end_channel - begin_channel;
    results += begin_channel - first_channel;
    if (simple_ && y.channel == 1) {
      output_.for_runs(begin, end, [&](const PixelRun& run) {
        for (std::int64_t pixel = 0; pixel < run.count; ++pixel, results += row_length)
          store_row(results, count, run.offset + pixel * y.column + begin_channel);
      });
    } else if (simple_ && y.column == 1) {
      const bool floats = y.dtype == DType::f32;
      output_.for_runs(begin, end, [&](const PixelRun& run) {
        const std::int64_t offset = run.offset + begin_channel * y.channel;
        // Whole vectors of pixels go to their places, the rest by way of `turned`.
        const std::int64_t placed = floats ? run.count / kLine * kLine : 0, rest = run.count - placed;
        if (placed) turn(results, row_length, placed, count, y_ + offset, y.channel);
        if (rest) {
          const std::int64_t stride = round_up(rest, kLine);
          turn(results + placed * row_length, row_length, rest, count, turned, stride);
          for (std::int64_t c = 0; c < count; ++c)
            store_row(turned + c * stride, rest, offset + placed + c * y.channel);
        }
        results += run.count * row_length;
      });
    } else {
      output_.for_runs(begin, end, [&](const PixelRun& run) {
        for (std::int64_t pixel = 0; pixel < run.count; ++pixel, results += row_length)
          for (std::int64_t c = 0; c < count; ++c)
            store_result(problem_, run.offset + pixel * y.column + (begin_channel + c) * y.channel, begin_channel + c,
                         results[c]);
      });
    }
  }

  void turn(const float* from, std::int64_t row_length, std::int64_t rows, std::int64_t columns, float* to,
            std::int64_t stride) const {
    kernels_.transpose(from, static_cast<int>(DType::f32), row_length, rows, columns, to, stride);
  }

  // The tile has finished these, but for their dtype.
  void store_row(const float* values, std::int64_t count, std::int64_t offset) const {
    char* data = reinterpret_cast<char*>(y_) + offset * y_item_;
    kernels_.store_row(values, count, {data, static_cast<int>(output_.view.dtype), nullptr, false, 0.0f, 0.0f});
  }

  static constexpr std::int64_t kLine = 16;  // floats that the widest vector holds

  const Conv2dProblem& problem_;
  const ConvKernels& kernels_;
  const PackedLayout& layout_;
  const bool depthwise_;
  const std::int64_t groups_;  // depthwise tiles take channels together whose groups differ
  const ImagePixels input_, output_;
  const std::int64_t results_;
  const bool parallel_;
  const bool simple_;  // bias and activation are done in the tile
  const bool slides_;  // of depthwise tiles, which then end with a row of results
  const bool direct_;  // so that tiles may store to y
  float* const y_ = static_cast<float*>(const_cast<void*>(output_.view.data));  // of whatever dtype
  const std::int64_t y_item_ = static_cast<std::int64_t>(item_size(output_.view.dtype));
  PixelRows rows_{};
  std::int64_t pixel_bytes_ = 0;
  const float* weight_sums_ = nullptr;
  const float* weights_ = nullptr;  // of depthwise tiles
  std::int64_t weights_tap_ = 0, weights_panel_ = 0;
  float* bias_ = nullptr;
};

}  // namespace

const char* tiled_conv_unsupported_reason(const Conv2dProblem& problem) {
  if (problem.device.type != DeviceType::cpu) return "it runs on the CPU";
  const PackedLayout& layout = problem.weight->layout;
  if (layout.k == 0) return "its weight has no channels";
  // The sum of 65,536 16-bit codes is the last that fits in int32.
  if (layout.block_length(0) > 65536) return "its blocks are longer than 65536";
  if (input_pixels(problem).count() >= std::int64_t{1} << 31) return "x has 2^31 pixels or more";
  return nullptr;
}

void run_tiled_conv(const Conv2dProblem& problem, const ConvKernels& kernels) {
  // A kernel of one element sees the pixels under its results only.
  Conv2dProblem seen = problem;
  seen.skip_unseen_pixels();
  TiledConv(seen, kernels).run();
}

}  // namespace qcore
