#include <algorithm>
#include <cstdint>
#include <optional>

#include "formats/compute_mode.h"
#include "formats/row_view.h"
#include "gemm/cpu/encoded_panels.h"
#include "gemm/cpu/expert_pieces.h"
#include "gemm/cpu/row_packer.h"
#include "gemm/cpu/tiled.h"
#include "gemm/cpu/vtable.h"
#include "gemm/cpu/window_rows.h"
#include "gemm/dispatch.h"
#include "gemm/product.h"
#include "gemm/result_rows.h"
#include "qcore/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

// The product of linear, grouped_linear and conv2d on the CPU, compiled once for all three.

namespace qcore {
namespace {

// Hands a product with per-block weights, of linear or conv2d, to the driver: each row of x is packed once, then tiles
// multiply.
class TiledProduct {
 public:
  using Result = float;

  TiledProduct(const BlockProduct& product, const BlockKernels& kernels)
      : product_(product),
        kernels_(kernels),
        weight_(*product.weight),
        layout_(EncodedPanels::tile_layout(*product.weight, kernels.looks_up_nibbles)),
        only_decoded_(kernels.decoded_panel_bytes != nullptr),
        groups_(product.groups),
        column_groups_(groups_ * product.experts),
        channels_(product.groups * layout_.k),
        results_(product.results()),
        most_rows_(most_rows(product)),
        rows_per_tile_(ceil_div(most_rows_, ceil_div(most_rows_, kernels.max_rows))),
        panels_(std::min<std::int64_t>(kernels.max_panels, kernels.max_products / rows_per_tile_)),
        panel_bytes_(layout_.panel_bytes()),
        result_rows_(product, kernels) {
    if (weight_.encoded) {
      encoded_.emplace(weight_, layout_, kernels, most_rows_, rows_per_tile_, panels_);
      panels_ = encoded_->panels();
      panel_bytes_ = encoded_->panel_bytes();
    }
    columns_per_group_ = ceil_div(panels_per_group(), panels_);
    blocks_per_run_ = encoded_ ? encoded_->blocks_per_run() : blocks_per_run();
  }

  void run() {
    Scratch scratch;
    allocate(scratch);
    pack_all();
    const TileTasks plan = tasks();
    const TileDriver<TiledProduct> driver(*this, plan, rows_per_tile_, panels_);
    if (!product_.expert_ends) return driver.run();
    driver.run(expert_pieces(product_, columns_per_group_, rows_per_tile_, plan.row_parts * plan.column_parts));
  }

  // ---- what the driver asks for

  std::int64_t results() const { return results_; }

  WindowRows window() const {
    const std::int64_t row_bytes = product_.columns.input * pixel_bytes_;
    return {product_.rows,
            product_.columns,
            layout_.taps,
            rows_.data,
            rows_.data + product_.inputs() * pixel_bytes_,
            product_.rows.input * row_bytes,
            row_bytes,
            pixel_bytes_};
  }

  std::int64_t columns() const { return column_groups_ * columns_per_group_; }

  TileColumn column(std::int64_t index) const {
    const std::int64_t group = index / columns_per_group_, outputs = layout_.n / column_groups_;
    const std::int64_t first = group * outputs, end = first + outputs;
    const std::int64_t panel = first / PackedLayout::kPanelRows + index % columns_per_group_ * panels_;
    const std::int64_t end_panel = std::min(ceil_div(end, PackedLayout::kPanelRows), panel + panels_);
    const std::int64_t channel = std::max(first, panel * PackedLayout::kPanelRows);
    return {group % groups_,
            panel,
            end_panel - panel,
            channel,
            std::min(end, end_panel * PackedLayout::kPanelRows) - channel,
            channel - panel * PackedLayout::kPanelRows};
  }

  BlockTileArguments arguments(const TileColumn& column) const {
    const std::int64_t blocks = layout_.blocks(), parameters = column.panel * blocks * PackedLayout::kPanelRows;
    BlockTileArguments t{};
    t.layout = &layout_;
    t.x_offset = column.group * rows_.row_bytes;
    t.blocks = blocks;
    t.block_steps = layout_.block_first_step(1);
    t.last_block_steps = blocks ? layout_.block_steps(blocks - 1) : 0;
    t.panel_bytes = panel_bytes_;
    t.codes = weight_.codes + column.panel * panel_bytes_;
    t.first_panel = column.panel;
    t.parameters_panel = blocks * PackedLayout::kPanelRows;
    if (!encoded_) {
      t.scales = tile_parameters(weight_.scales, parameters);
      t.offsets = tile_parameters(weight_.offsets, parameters);
    }
    t.weight_sums = weight_sums_ ? weight_sums_ + parameters : nullptr;
    t.weight_sums_tap = layout_.parameter_count();
    t.codes_at = rows_.codes;
    t.nibbles = encoded_ ? encoded_->nibbles() : kPlainNibbles;
    t.end_block = blocks;
    t.finishes = true;
    set_prefetch(t, 0, 1);
    result_rows_.finish_in_tile(t, bias_, column.panel);
    return t;
  }

  std::int64_t y_step() const { return product_.y.row_stride(); }

  float* in_place(const TileColumn& column) const {
    const RowView& y = product_.y;
    const bool whole = column.channels == column.panels * PackedLayout::kPanelRows;
    return whole && result_rows_.finished() && y.dtype == DType::f32 && y.column_stride == 1 && y.leading <= 1 &&
                   blocks_per_run_ >= layout_.blocks()
               ? result_rows_.y() + column.channel % product_.outputs()
               : nullptr;
  }

  // Cuts K into runs of blocks whose weights stay in the second-level cache while every tile uses them; a tile's
  // results wait in `out` from run to run. Runs that fit the first level would be too short: a tile costs some 120
  // cycles to start and end. Windows take all of K under one tap after the other.
  template <class Walk>
  void multiply(BlockTileArguments& t, std::int64_t tiles, const Walk& walk, TaskMemory& memory) const {
    const std::int64_t blocks = layout_.blocks();
    const bool several = tiles > 1, decode = kernels_.decode && (only_decoded_ || (several && layout_.taps == 1));
    const bool in_runs = several || encoded_ || only_decoded_;
    const std::int64_t run = in_runs ? blocks_per_run_ : std::max<std::int64_t>(blocks, 1);
    const std::uint8_t* const stored = t.codes;
    auto* const expanded = encoded_ ? memory.take_once<std::uint8_t>(0, encoded_->expanded_bytes()) : nullptr;
    t.first_block = 0, t.end_block = std::min(run, blocks);
    void* const decoded = decode ? memory.take_once<char>(1, panels_ * decoded_panel_bytes(t)) : nullptr;
    // A weight without blocks (K = 0) still has one, empty, run: its results are zeros.
    for (t.first_block = 0; t.first_block == 0 || t.first_block < blocks; t.first_block += run) {
      t.end_block = std::min(blocks, t.first_block + run);
      t.finishes = t.end_block == blocks;
      if (encoded_)
        encoded_->set_run(t, stored, expanded);
      else
        t.codes = stored + t.first_block * t.block_steps * PackedLayout::kStepBytes;
      if (decode) {
        set_prefetch(t, 0, 1);
        t.decoded_steps = steps_between(t.first_block, t.end_block);
        kernels_.decode(t, decoded);
        t.decoded = decoded;
      }
      walk([&](std::int64_t tile) {
        if (layout_.taps == 1 && tile <= panels_) set_prefetch(t, tile, tiles);
        t.encoded ? kernels_.encoded_tile(t) : kernels_.tile(t);
      });
    }
  }

  void end_task() const {
    if (kernels_.release) kernels_.release();
  }

  // Brings results that are not in place to y.
  void store(const TileColumn& column, std::int64_t begin, std::int64_t end, float* results,
             std::int64_t row_length) const {
    result_rows_.store(column.channel, column.channels, begin, end, results + column.skipped, row_length);
  }

 private:
  static constexpr std::int64_t kLine = RowPacker::kLine;

  // ---- x

  void allocate(Scratch& scratch) {
    if (product_.compute == ComputeMode::int8_asym) weight_sums_ = weight_.weight_sums();
    const std::int64_t blocks = layout_.blocks(), step_bytes = layout_.step_k() * kernels_.bytes_per_code;
    const bool fp32 = kernels_.bytes_per_code == static_cast<int>(sizeof(float));
    rows_.codes = fp32 ? 0 : PackedRows::kParameters * blocks * static_cast<std::int64_t>(sizeof(float));
    if (only_decoded_) rows_.codes = round_up(rows_.codes, PackedRows::kSlackBytes);  // whole cache lines for tiles
    // Whole vectors of codes are stored from each block's start.
    const std::int64_t last_steps = blocks ? layout_.block_steps(blocks - 1) : 0;
    rows_.row_bytes = rows_.codes + (layout_.steps() - last_steps) * step_bytes +
                      round_up(last_steps * step_bytes, PackedRows::kSlackBytes);
    // Such tiles read behind a row's end. An odd number of lines spreads rows over the first-level cache's sets.
    if (only_decoded_) rows_.row_bytes = round_up(rows_.row_bytes, 2 * kAlignment) + PackedRows::kSlackBytes;
    // Rows whose addresses agree in the bits that choose a set of the first-level cache push each other out of it.
    constexpr std::int64_t kSetBytes = 2048;
    if (rows_.row_bytes % kSetBytes == 0) rows_.row_bytes += kAlignment;
    rows_.zero_code = encoded_ ? encoded_->zero_code() : layout_.zero_code();
    pixel_bytes_ = rows_.row_bytes * groups_;
    const std::int64_t bytes = product_.inputs() * pixel_bytes_;
    rows_.data = scratch.take<char>(bytes + pixel_bytes_);
    std::fill_n(rows_.data + bytes, pixel_bytes_, char{0});
    bias_ = result_rows_.float_bias(layout_.panels(), scratch);
  }

  // Packs x. A task's rows stay in the first-level cache while they are copied and packed. Those that lie side by side
  // are transposed, by whole cache lines of them.
  void pack_all() const {
    constexpr std::int64_t kElements = 8192;
    const RowPacker packer(product_.x, product_.scales, product_.compute, kernels_, layout_, channels_, groups_);
    const std::int64_t rows = product_.inputs(), least = product_.x.row_stride() == 1 ? kLine : 1;
    const std::int64_t rows_per_task = std::max(least, kElements / std::max<std::int64_t>(channels_, 1));
    for_each_task(ceil_div(rows, rows_per_task), rows * channels_ > kSerialElements, [&](std::int64_t task) {
      PackedRows packed = rows_;
      packed.data += task * rows_per_task * pixel_bytes_;
      packer.pack(task * rows_per_task, std::min(rows, (task + 1) * rows_per_task), packed, pixel_bytes_);
    });
  }

  // ---- tasks

  TileTasks tasks() const {
    constexpr std::int64_t kTasksPerThread = 32;  // enough to even out threads of unequal speed
    const bool parallel = results_ * layout_.n * layout_.k * layout_.taps > kSerialProducts;
    const std::int64_t threads = parallel ? get_num_threads() : 1, columns = this->columns();
    if (product_.expert_ends) return {1, parallel ? threads * kTasksPerThread : 1, 0, parallel};
    if (layout_.taps == 1 && groups_ == 1 && product_.images * product_.rows.output == 1) {
      // Rows, as linear has them: columns are cut first, because each of them goes through the caches once for all rows
      // of a task.
      const std::int64_t row_tiles = ceil_div(results_, rows_per_tile_);
      if (only_decoded_) return decoded_tasks(row_tiles, threads, parallel);
      const std::int64_t parts = ceil_div(columns, std::max<std::int64_t>(1, columns / (threads * kTasksPerThread)));
      const std::int64_t row_tasks = std::min(row_tiles, std::max<std::int64_t>(1, threads * kTasksPerThread / parts));
      return {row_tasks, parts, 0, parallel};
    }
    // Images are cut first: all taps and columns see the same pixels. Whole tiles and vectors, whose weights stay in
    // the second-level cache, column after column.
    constexpr std::int64_t kRows = 96, kImageTasksPerThread = 8;
    const std::int64_t wanted = parallel ? threads * kImageTasksPerThread : 1;
    const std::int64_t row_parts = ceil_div(results_, kRows);
    return {row_parts, std::min(columns, ceil_div(wanted, row_parts)), kRows, parallel};
  }

  // Cuts rows so that a task's stay in the second-level cache while column after column of decoded weights meets them:
  // tiles of many rows take so few cycles that the third level could not deliver either.
  TileTasks decoded_tasks(std::int64_t row_tiles, std::int64_t threads, bool parallel) const {
    constexpr std::int64_t kTasksPerThread = 8;
    const std::int64_t wanted = parallel ? threads * kTasksPerThread : 1, tile_bytes = rows_.row_bytes * rows_per_tile_;
    const std::int64_t tiles_per_task = std::max<std::int64_t>(1, kernels_.task_bytes / tile_bytes);
    const std::int64_t row_parts = ceil_div(row_tiles, tiles_per_task);
    const std::int64_t column_parts = std::min(columns(), ceil_div(wanted, row_parts));
    return {std::min(row_tiles, std::max(row_parts, ceil_div(wanted, column_parts))), column_parts, 0, parallel};
  }

  // Counts the panels that a group's outputs lie in: its first and last one may hold others', which are not stored.
  std::int64_t panels_per_group() const {
    const std::int64_t outputs = layout_.n / column_groups_, whole = outputs / PackedLayout::kPanelRows;
    return column_groups_ == 1 ? layout_.panels() : outputs % PackedLayout::kPanelRows == 0 ? whole : whole + 2;
  }

  // Says what a tile prefetches; those behind the first ones, nothing. A single tile asks for its own weights early,
  // and towards its end for the next column's, whose panels do not follow its own in memory; parameters, little of
  // which lies together, a whole column early. Of several tiles, only the first would meet weights that are not in a
  // cache yet: each of the first ones fetches a panel of the next column's, so that memory works while they compute.
  void set_prefetch(BlockTileArguments& t, std::int64_t tile, std::int64_t tiles) const {
    if (encoded_ && !encoded_->has_plain_codes()) return encoded_->set_prefetch(t);
    const std::int64_t ahead = prefetch_bytes(panel_bytes_);
    const bool single = tiles == 1;
    const std::int64_t next_column = panels_ * panel_bytes_;
    for (std::int64_t panel = 0; panel < BlockTileArguments::kMaxPanels; ++panel)
      t.prefetch_distance[panel] = single ? ahead : tile == panel ? next_column : 0;
    const std::int64_t block_bytes = t.block_steps * PackedLayout::kStepBytes;
    t.prefetch_switch_block = single && layout_.taps == 1 ? (panel_bytes_ - ahead) / block_bytes : -1;
    t.prefetch_switch_bytes = next_column - panel_bytes_;
    t.prefetch_parameters =
        single && layout_.taps == 1 && !encoded_ ? panels_ * layout_.blocks() * PackedLayout::kPanelRows : 0;
    if (t.prefetch_switch_block < 0 || t.first_block <= t.prefetch_switch_block) return;
    for (std::int64_t& distance : t.prefetch_distance) distance += t.prefetch_switch_bytes;
  }

  // Returns the size of one step of a panel's decoded weights.
  std::int64_t decoded_step_bytes() const {
    const int code_bytes = kernels_.decoded_code_bytes ? kernels_.decoded_code_bytes : kernels_.bytes_per_code;
    return layout_.step_k() * PackedLayout::kPanelRows * code_bytes;
  }

  std::int64_t decoded_panel_bytes(const BlockTileArguments& t) const {
    return only_decoded_ ? kernels_.decoded_panel_bytes(t) : steps_between(0, t.end_block) * decoded_step_bytes();
  }

  std::int64_t steps_between(std::int64_t first_block, std::int64_t end_block) const {
    return first_block == end_block ? 0
                                    : layout_.block_first_step(end_block - 1) + layout_.block_steps(end_block - 1) -
                                          layout_.block_first_step(first_block);
  }

  std::int64_t blocks_per_run() const {
    constexpr std::int64_t kWeightBytes = 512 << 10;
    if (layout_.taps > 1 || (most_rows_ <= rows_per_tile_ && !only_decoded_))
      return std::max<std::int64_t>(1, layout_.blocks());
    const std::int64_t step_bytes = kernels_.decode ? decoded_step_bytes() : PackedLayout::kStepBytes;
    const std::int64_t block_bytes = std::max<std::int64_t>(1, panels_ * layout_.block_steps(0) * step_bytes);
    return std::max<std::int64_t>(1, (only_decoded_ ? kernels_.run_bytes : kWeightBytes) / block_bytes);
  }

  const BlockProduct& product_;
  const BlockKernels& kernels_;
  const PackedWeight& weight_;
  std::optional<EncodedPanels> encoded_;
  const PackedLayout layout_;  // of the codes that tiles read
  const bool only_decoded_;    // the tiles read nothing but decoded weights
  const std::int64_t groups_;
  const std::int64_t column_groups_;  // those of all experts
  const std::int64_t channels_, results_, most_rows_;
  const std::int64_t rows_per_tile_;
  std::int64_t panels_;  // of a tile: the fewer its rows, the more, so that enough memory is being read at once
  std::int64_t panel_bytes_;
  const ResultRows result_rows_;
  std::int64_t columns_per_group_ = 0, blocks_per_run_ = 0;
  PackedRows rows_{};
  std::int64_t pixel_bytes_ = 0;
  const float* weight_sums_ = nullptr;
  const float* bias_ = nullptr;
};

}  // namespace

void run_product(const BlockProduct& product, const BlockKernels& kernels) { TiledProduct(product, kernels).run(); }

}  // namespace qcore
