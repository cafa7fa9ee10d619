#include "conv2d/cpu/depthwise_product.h"

#include <algorithm>
#include <cstdint>

#include "conv2d/cpu/depthwise.h"
#include "formats/compute_mode.h"
#include "formats/row_view.h"
#include "gemm/cpu/row_packer.h"
#include "gemm/cpu/tiled.h"
#include "gemm/cpu/window_rows.h"
#include "gemm/result_rows.h"
#include "qcore/kernels.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

// Computes a depthwise convolution: rows of the image are packed just before the results that see them, into a ring of
// rows that stays in the second-level cache, and lines of results follow. x and y go through the caches once.
class DepthwiseProduct {
 public:
  DepthwiseProduct(const BlockProduct& product, const BlockKernels& kernels)
      : product_(product),
        kernels_(kernels),
        weight_(*product.weight),
        layout_(weight_.layout),
        result_rows_(product, kernels),
        panels_(std::min<std::int64_t>(kernels.max_panels, kernels.max_products / kernels.max_rows)),
        columns_(ceil_div(layout_.panels(), panels_)),
        lines_(product.images * product.rows.output) {}

  void run() {
    Scratch scratch;
    prepare(scratch);
    const Parts parts = this->parts();
    for_each_task(parts.rows * parts.columns, parts.parallel, [&](std::int64_t task) {
      const std::int64_t part = task / parts.rows, row_part = task % parts.rows;
      Task(*this, part * columns_ / parts.columns, (part + 1) * columns_ / parts.columns)
          .run(row_part * lines_ / parts.rows, (row_part + 1) * lines_ / parts.rows);
    });
  }

 private:
  // Results whose taps are found together.
  static constexpr std::int64_t kResults = 96;

  struct Parts {
    std::int64_t rows, columns;
    bool parallel;
  };

  void prepare(Scratch& scratch) {
    if (product_.compute == ComputeMode::int8_asym) weight_sums_ = weight_.weight_sums();
    rows_.plane_channels = panels_ * PackedLayout::kPanelRows;
    const std::int64_t bytes = rows_.plane_channels * static_cast<std::int64_t>(sizeof(float));
    const bool scaled_sums = product_.compute != ComputeMode::floating && weight_.offsets && !weight_sums_;
    rows_.codes = scaled_sums ? bytes : 0;
    rows_.row_bytes = scaled_sums ? 2 * bytes : bytes;
    const numerics::WindowAxis& columns = product_.columns;
    slides_ = !scaled_sums && columns.kernel == 3 && columns.stride == 1 && columns.dilation == 1;
    choose_lines();
    if (slides_) {
      before_ = columns.before;
      after_ = std::max<std::int64_t>(0, columns.output + columns.kernel - 1 - before_ - columns.input);
    }
    line_bytes_ = (before_ + columns.input + after_) * rows_.row_bytes;
    padding_at_ = ring_ * line_bytes_;
    rows_.plane_bytes = padding_at_ + std::max(line_bytes_, rows_.row_bytes);
    // Planes whose addresses agree in the bits that choose a set of the first-level cache push each other out of it.
    constexpr std::int64_t kSetBytes = 2048;
    if (rows_.plane_bytes % kSetBytes == 0) rows_.plane_bytes += kAlignment;
    make_weights(scratch);
    scales_ = float_scales(scratch);
    bias_ = result_rows_.float_bias(layout_.panels(), scratch);
  }

  // Chooses how many lines of results follow each other without packing, and how many rows of x they see: lines of one
  // image, or whole small images.
  void choose_lines() {
    const numerics::WindowAxis& rows = product_.rows;
    const std::int64_t image_results = rows.output * product_.columns.output;
    images_together_ = kResults / image_results;
    if (images_together_) {
      lines_together_ = images_together_ * rows.output;
      ring_ = std::max<std::int64_t>(1, std::min(images_together_, product_.images) * rows.input);
    } else {
      lines_together_ = std::clamp<std::int64_t>(kResults / product_.columns.output, 1, rows.output);
      // Results that are transposed into place go there by whole lines of the cache.
      if (product_.y.column_stride != 1 && product_.y.row_stride() == 1)
        while (lines_together_ < rows.output && lines_together_ * product_.columns.output % RowPacker::kLine != 0)
          ++lines_together_;
      ring_ = std::max<std::int64_t>(
          1, std::min(rows.input, (lines_together_ - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1));
    }
  }

  // Cuts the work into tasks. Their rings fit the second-level cache. Rows at the edge of a part are packed twice, a
  // seventh of all at most.
  Parts parts() const {
    constexpr std::int64_t kRingBytes = 256 << 10, kTasksPerThread = 4, kRowsPerOverlap = 7;
    const bool parallel = product_.results() * layout_.n * layout_.taps > kSerialProducts;
    const std::int64_t threads = parallel ? get_num_threads() : 1,
                       wanted = threads == 1 ? 1 : threads * kTasksPerThread;
    // Channels of x that lie apart are read along rows of the image, one plane after the other.
    const bool apart = product_.x.column_stride != 1 && product_.x.row_stride() == 1;
    const std::int64_t fitting = apart ? 1 : std::max<std::int64_t>(1, kRingBytes / rows_.plane_bytes);
    const std::int64_t fewest_columns = ceil_div(columns_, fitting);
    const numerics::WindowAxis& rows = product_.rows;
    const std::int64_t overlap = std::max<std::int64_t>(0, (rows.kernel - 1) * rows.dilation + 1 - rows.stride);
    const std::int64_t least = std::max(lines_together_, ceil_div(kRowsPerOverlap * overlap, rows.stride));
    const std::int64_t most_rows = std::max(product_.images, lines_ / least);
    const std::int64_t row_parts = std::min(most_rows, ceil_div(wanted, fewest_columns));
    return {row_parts, std::min(columns_, std::max(fewest_columns, ceil_div(wanted, row_parts))), parallel};
  }

  // Prepares the factors of each tap. Activations with offsets multiply the weights' sums, which are there already.
  void make_weights(Scratch& scratch) {
    if (weight_sums_) {
      weights_ = weight_sums_;
      weights_tap_ = layout_.parameter_count();
      weights_panel_ = PackedLayout::kPanelRows;
      return;
    }
    float* weights = scratch.take<float>(layout_.panels() * layout_.taps * PackedLayout::kPanelRows);
    DepthwiseTileArguments t = arguments(0);
    t.panels = static_cast<int>(layout_.panels());
    kernels_.depthwise_weights(t, activation_mode(product_.compute), weights);
    weights_ = weights;
    weights_tap_ = PackedLayout::kPanelRows;
    weights_panel_ = layout_.taps * PackedLayout::kPanelRows;
  }

  const float* float_scales(Scratch& scratch) const {
    const TileParameters scales = tile_parameters(weight_.scales, 0);
    if (!scales.half) return static_cast<const float*>(scales.data);
    float* const values = scratch.take<float>(layout_.parameter_count());
    kernels_.rows->widen(scales.data, kF16, layout_.parameter_count(), values);
    return values;
  }

  // Returns what tiles from a panel on take beside their place.
  DepthwiseTileArguments arguments(std::int64_t panel) const {
    DepthwiseTileArguments t{};
    t.layout = &layout_;
    t.blocks = 1, t.block_steps = t.last_block_steps = 1, t.end_block = 1;
    t.panel_bytes = layout_.panel_bytes();
    t.codes = weight_.codes + panel * t.panel_bytes;
    t.first_panel = panel;
    t.parameters_panel = PackedLayout::kPanelRows;
    t.scales = tile_parameters(weight_.scales, panel * PackedLayout::kPanelRows);
    t.offsets = tile_parameters(weight_.offsets, panel * PackedLayout::kPanelRows);
    t.nibbles = kPlainNibbles;
    t.codes_at = rows_.codes;
    t.finishes = true;
    result_rows_.finish_in_tile(t, bias_, panel);
    t.weights = weights_ + panel * weights_panel_;
    t.weights_tap = weights_tap_;
    t.weights_panel = weights_panel_;
    t.slides = slides_;
    return t;
  }

  // Some columns of tiles, and memory for the rows of x that they see.
  class Task {
   public:
    Task(const DepthwiseProduct& all, std::int64_t first_column, std::int64_t end_column)
        : all_(all),
          first_column_(first_column),
          end_column_(end_column),
          first_channel_(first_column * all.rows_.plane_channels),
          layout_(all.layout_),
          x_(all.product_.x),
          rows_(all.rows_) {
      layout_.n = std::min(layout_.n, end_column * rows_.plane_channels) - first_channel_;
      x_.data = static_cast<const char*>(x_.data) + first_channel_ * x_.column_stride * item_size(x_.dtype);
      rows_.weight_scales = {all.scales_ + first_channel_, false};
      const std::int64_t planes = end_column - first_column;
      rows_.data = scratch_.take<char>(planes * rows_.plane_bytes);
      for (std::int64_t plane = 0; plane < planes; ++plane) clear_padding(rows_.data + plane * rows_.plane_bytes);
      most_results_ = std::max(all.lines_together_ * all.product_.columns.output, kResults);
      if (most_results_ > 2 * kResults) most_results_ = kResults;
      table_ = scratch_.take<const char*>(layout_.taps * most_results_);
      buffer_ = scratch_.take<float>(most_results_ * rows_.plane_channels);
    }

    void run(std::int64_t begin, std::int64_t end) {
      const numerics::WindowAxis& rows = all_.product_.rows;
      const std::int64_t width = all_.product_.columns.output;
      std::int64_t packed = 0;  // rows of x, of all images
      for (std::int64_t line = begin, stop; line < end; line = stop) {
        const std::int64_t image = line / rows.output, images = std::max<std::int64_t>(1, all_.images_together_);
        stop = std::min({end, line + all_.lines_together_, (image + images) * rows.output});
        const std::int64_t first = image * rows.input + seen(line % rows.output, 0);
        const std::int64_t last = stop - 1;
        const std::int64_t behind = last / rows.output * rows.input + seen(last % rows.output, rows.kernel - 1) + 1;
        packed = std::max(packed, first);
        pack(packed, behind);
        packed = std::max(packed, behind);
        for (std::int64_t at = line * width; at < stop * width; at += most_results_)
          multiply(at, std::min(stop * width, at + most_results_));
      }
    }

   private:
    void clear_padding(char* plane) const {
      std::fill_n(plane + all_.padding_at_, std::max(all_.line_bytes_, rows_.row_bytes), char{0});
      const std::int64_t before = all_.before_ * rows_.row_bytes, after = all_.after_ * rows_.row_bytes;
      for (std::int64_t row = 1; row <= all_.ring_; ++row) {
        std::fill_n(plane + row * all_.line_bytes_ - after, after, char{0});
        std::fill_n(plane + (row - 1) * all_.line_bytes_, before, char{0});
      }
    }

    // Returns the row of an image that a tap sees, or the one next to it if that is padding.
    std::int64_t seen(std::int64_t result, std::int64_t tap) const {
      const numerics::WindowAxis& rows = all_.product_.rows;
      return std::max<std::int64_t>(0,
                                    std::min(result * rows.stride + tap * rows.dilation - rows.before, rows.input - 1));
    }

    // Packs the rows [begin, end) of x, of all images, into their places in the ring. Channels that do not lie together
    // are copied for that.
    void pack(std::int64_t begin, std::int64_t end) const {
      const std::int64_t width = all_.product_.columns.input, item = item_size(x_.dtype);
      if (all_.product_.inputs() == 0) return;
      x_.for_runs(begin * width, end * width, [&](std::int64_t first, std::int64_t count, std::int64_t offset) {
        const char* const data = static_cast<const char*>(x_.data) + offset * item;
        if (x_.column_stride == 1) return pack_pixels(data, static_cast<int>(x_.dtype), x_.row_stride(), first, count);
        Scratch scratch;
        const std::int64_t stride = round_up(layout_.n, RowPacker::kLine);
        float* const copy = scratch.take<float>(count * stride);
        if (x_.row_stride() == 1) {
          all_.kernels_.rows->transpose(data, static_cast<int>(x_.dtype), x_.column_stride, layout_.n, count, copy,
                                        stride);
        } else {
          for (std::int64_t pixel = 0; pixel < count; ++pixel)
            for (std::int64_t c = 0; c < layout_.n; ++c)
              copy[pixel * stride + c] =
                  load_float(x_.data, x_.dtype, offset + pixel * x_.row_stride() + c * x_.column_stride);
        }
        pack_pixels(reinterpret_cast<const char*>(copy), kF32, stride, first, count);
      });
    }

    // Packs `count` pixels from `first` on, of all images: as far as the ring goes at once or, where padding lies
    // between rows, one row after the other.
    void pack_pixels(const char* data, int dtype, std::int64_t stride, std::int64_t first, std::int64_t count) const {
      const std::int64_t width = all_.product_.columns.input, together = all_.before_ + all_.after_ ? 1 : all_.ring_;
      const std::int64_t pixel_bytes = stride * item_size(static_cast<DType>(dtype));
      PackedRows packed = rows_;
      packed.x_dtype = dtype;
      for (std::int64_t at = first, end = first + count, stop; at < end; at = stop) {
        const std::int64_t row = at / width, column = at % width;
        stop = std::min(end, (row / together + 1) * together * width);
        packed.data = rows_.data + row % all_.ring_ * all_.line_bytes_ + (all_.before_ + column) * rows_.row_bytes;
        all_.kernels_.pack(reinterpret_cast<const float*>(data + (at - first) * pixel_bytes), stride, stop - at,
                           layout_, activation_mode(all_.product_.compute), packed);
      }
    }

    void multiply(std::int64_t begin, std::int64_t end) const {
      const BlockProduct& product = all_.product_;
      const std::int64_t results = end - begin;
      find(begin, end);
      for (std::int64_t column = first_column_; column < end_column_; ++column) {
        const std::int64_t panel = column * all_.panels_, channel = panel * PackedLayout::kPanelRows;
        const std::int64_t panels = std::min(all_.panels_, all_.layout_.panels() - panel);
        const std::int64_t channels = std::min(all_.layout_.n - channel, panels * PackedLayout::kPanelRows);
        DepthwiseTileArguments t = all_.arguments(panel);
        t.x_offset = (column - first_column_) * rows_.plane_bytes;
        t.tap_stride = all_.slides_ ? rows_.row_bytes : results;
        t.panels = static_cast<int>(panels);
        const bool in_place = all_.in_place(channels);
        t.out_stride = in_place ? product.y.row_stride() : rows_.plane_channels;
        t.out_dtype = in_place ? static_cast<int>(product.y.dtype) : kF32;
        const std::int64_t item = item_size(product.y.dtype);
        char* const y = reinterpret_cast<char*>(all_.result_rows_.y());
        char* const out = in_place ? y + (begin * t.out_stride + channel) * item : reinterpret_cast<char*>(buffer_);
        multiply(t, begin, end, out, in_place ? item : static_cast<std::int64_t>(sizeof(float)));
        if (!in_place) all_.result_rows_.store(channel, channels, begin, end, buffer_, t.out_stride);
      }
    }

    // Computes tiles, which end with a line of results where they slide along it.
    void multiply(DepthwiseTileArguments& t, std::int64_t begin, std::int64_t end, char* out, std::int64_t item) const {
      const std::int64_t width = all_.product_.columns.output, kernel_rows = all_.product_.rows.kernel;
      const std::int64_t x_offset = t.x_offset;
      t.x = table_ - (all_.slides_ ? kernel_rows : 0);
      for (std::int64_t at = begin, stop = begin; at < end; at += t.rows) {
        if (at == stop) {
          stop = all_.slides_ ? std::min(end, (at / width + 1) * width) : end;
          if (all_.slides_) t.x += kernel_rows, t.x_offset = x_offset;
        }
        t.rows = static_cast<int>(rows_of_tile(stop - at, all_.kernels_.max_rows));
        t.out = reinterpret_cast<float*>(out + (at - begin) * t.out_stride * item);
        if (!all_.slides_) t.x = table_ + (at - begin);
        all_.kernels_.tile(t);
        if (all_.slides_) t.x_offset += t.rows * rows_.row_bytes;
      }
    }

    // Finds the pixels of the results [begin, end).
    void find(std::int64_t begin, std::int64_t end) const {
      const BlockProduct& product = all_.product_;
      const numerics::WindowAxis& rows = product.rows;
      if (all_.slides_) {
        const char** found = table_;
        for (std::int64_t at = begin; at < end;) {
          const std::int64_t line = at / product.columns.output, column = at % product.columns.output;
          for (std::int64_t tap = 0; tap < rows.kernel; ++tap) {
            const std::int64_t h = rows.at(line % rows.output, tap), row = line / rows.output * rows.input + h;
            const std::int64_t start = h < 0 ? all_.padding_at_ : row % all_.ring_ * all_.line_bytes_;
            *found++ = rows_.data + start + column * rows_.row_bytes;
          }
          at += product.columns.output - column;
        }
        return;
      }
      const WindowRows window{rows,
                              product.columns,
                              layout_.taps,
                              rows_.data,
                              rows_.data + all_.padding_at_,
                              rows.input * all_.line_bytes_,
                              all_.line_bytes_,
                              rows_.row_bytes,
                              all_.ring_};
      window.find(begin, end, table_);
    }

    const DepthwiseProduct& all_;
    const std::int64_t first_column_, end_column_, first_channel_;
    PackedLayout layout_;  // of the task's channels
    RowView x_;            // likewise
    PackedRows rows_;
    Scratch scratch_;
    std::int64_t most_results_;
    const char** table_;
    float* buffer_;
  };

  bool in_place(std::int64_t channels) const {
    const RowView& y = product_.y;
    return channels % PackedLayout::kPanelRows == 0 && result_rows_.finished() && y.column_stride == 1 &&
           y.leading <= 1;
  }

  const BlockProduct& product_;
  const BlockKernels& kernels_;
  const PackedWeight& weight_;
  const PackedLayout& layout_;
  const ResultRows result_rows_;
  const std::int64_t panels_, columns_;  // of a tile; tiles side by side
  const std::int64_t lines_;             // of results, of all images
  bool slides_ = false;                  // tiles slide along rows of the image
  std::int64_t images_together_ = 0, lines_together_ = 0, ring_ = 0;
  PackedRows rows_{};
  std::int64_t before_ = 0, after_ = 0;           // pixels of padding in each row of the ring, for tiles that slide
  std::int64_t line_bytes_ = 0, padding_at_ = 0;  // of a row of the ring; a row of zeros, from the start of a plane
  const float* scales_ = nullptr;                 // of the weight, as fp32
  const float* weight_sums_ = nullptr;
  const float* weights_ = nullptr;
  std::int64_t weights_tap_ = 0, weights_panel_ = 0;
  const float* bias_ = nullptr;
};

}  // namespace

void run_depthwise_product(const BlockProduct& product, const BlockKernels& kernels) {
  DepthwiseProduct(product, kernels).run();
}

}  // namespace qcore
