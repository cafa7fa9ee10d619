#include <algorithm>
#include <optional>

#include "gemm/cpu/driver.h"
#include "gemm/epilogue.h"
#include "linear/cpu/vtable.h"
#include "linear/dispatch.h"
#include "qcore/kernels.h"

// Drives the tile kernels of one instruction set: pack the activations once, then walk over tiles of rows x panels.
namespace qcore {
namespace {

class TiledLinear {
 public:
  TiledLinear(const LinearProblem& problem, const TileKernels& kernels)
      : problem_(problem),
        kernels_(kernels),
        layout_(problem.weight->layout),
        parallel_(problem.m * layout_.n * layout_.k > kSerialProducts),
        row_tiles_(ceil_div(problem.m, kernels.max_rows)),
        panels_(std::min<std::int64_t>(kernels.max_panels, kernels.max_products / ceil_div(problem.m, row_tiles_))) {}

  void run() {
    Scratch scratch;
    allocate(scratch);
    for_each_task(row_tiles_, problem_.m * layout_.k > kSerialElements, [&](std::int64_t tile) { pack(tile); });

    const std::int64_t column_tiles = ceil_div(layout_.panels(), panels_);
    const std::int64_t threads = parallel_ ? get_num_threads() : 1;
    constexpr std::int64_t kTasksPerThread = 32;  // enough to even out threads of unequal speed
    const std::int64_t columns_per_task = std::max<std::int64_t>(1, column_tiles / (threads * kTasksPerThread));
    const std::int64_t column_tasks = ceil_div(column_tiles, columns_per_task);
    const std::int64_t row_tasks =
        std::min(row_tiles_, std::max<std::int64_t>(1, threads * kTasksPerThread / column_tasks));
    for_each_task(column_tasks * row_tasks, parallel_, [&](std::int64_t task) {
      const std::int64_t column_task = task / row_tasks, row_task = task % row_tasks;
      const std::int64_t first_tile = row_task * row_tiles_ / row_tasks,
                         end_tile = (row_task + 1) * row_tiles_ / row_tasks;
      const std::int64_t end_column = std::min(column_tiles, (column_task + 1) * columns_per_task);
      for (std::int64_t column = column_task * columns_per_task; column < end_column; ++column)
        multiply(first_tile, end_tile, column);
    });
  }

 private:
  // Rows are spread evenly: 7 rows become tiles of 4 and 3, not of 6 and 1.
  std::int64_t first_row(std::int64_t tile) const { return tile * problem_.m / row_tiles_; }

  void allocate(Scratch& scratch) {
    const std::int64_t blocks = layout_.blocks(), codes_per_row = layout_.steps() * layout_.step_k();
    row_bytes_ = round_up(codes_per_row * kernels_.bytes_per_code + PackedRows::kSlackBytes, kAlignment);
    codes_ = scratch.take<char>(problem_.m * row_bytes_);
    scales_ = scratch.take<float>(problem_.m * blocks);
    scaled_sums_ = scratch.take<float>(problem_.m * blocks);
    sums_ = scratch.take<std::int32_t>(problem_.m * blocks);
    acc_init_ = scratch.take<std::int32_t>(problem_.m * blocks);
    const bool activation_offsets = problem_.compute == ComputeMode::int8_asym;
    offsets_ = activation_offsets ? scratch.take<float>(problem_.m * blocks) : nullptr;
    weight_sums_ = activation_offsets ? problem_.weight->weight_sums() : nullptr;
    bias_ = float_bias(problem_.bias, layout_.n, layout_.n, scratch);
  }

  PackedRows rows_of(std::int64_t tile) const {
    const std::int64_t first = first_row(tile), at = first * layout_.blocks();
    return {static_cast<int>(first_row(tile + 1) - first),
            codes_ + first * row_bytes_,
            row_bytes_ / kernels_.bytes_per_code,
            scales_ + at,
            scaled_sums_ + at,
            offsets_ ? offsets_ + at : nullptr,
            sums_ + at,
            acc_init_ + at};
  }

  void pack(std::int64_t tile) const {
    const RowView& x = problem_.x;
    const PackedRows rows = rows_of(tile);
    const int mode = activation_mode(problem_.compute);
    Scratch scratch;
    const bool in_place = x.dtype == DType::f32 && x.column_stride == 1;
    float* copy = in_place ? nullptr : scratch.take<float>(layout_.k);
    for (int slot = 0; slot < rows.rows; ++slot) {
      const std::int64_t offset = x.row_offset(first_row(tile) + slot);
      const float* values = copy;
      if (in_place)
        values = static_cast<const float*>(x.data) + offset;
      else if (x.dtype != DType::f32 && x.column_stride == 1)
        kernels_.widen(static_cast<const std::uint16_t*>(x.data) + offset, static_cast<int>(x.dtype), layout_.k, copy);
      else
        for (std::int64_t k = 0; k < layout_.k; ++k)
          copy[k] = load_float(x.data, x.dtype, offset + k * x.column_stride);
      kernels_.pack_row(values, layout_, mode, slot, rows);
    }
  }

  // One column of tiles. K is cut into runs of blocks whose weights stay in the second-level cache while every tile
  // uses them; a tile's results wait in `results` from run to run. Runs that fit the first level would be too short: a
  // tile costs some 120 cycles to start and end.
  void multiply(std::int64_t first_tile, std::int64_t end_tile, std::int64_t column) const {
    const std::int64_t tile_results = kernels_.max_rows * panels_ * PackedLayout::kPanelRows;
    TileArguments arguments = column_arguments(column);
    const std::int64_t blocks = layout_.blocks();
    const bool several = end_tile - first_tile > 1, decode = several && kernels_.decode;
    // A column of a single row takes less than a microsecond, of which scratch memory would be a tenth.
    alignas(kAlignment) float few_results[TileArguments::kMaxPanels * PackedLayout::kPanelRows];
    std::optional<Scratch> scratch;
    if (several || problem_.m > 1) scratch.emplace();
    float* results = scratch ? scratch->take<float>((end_tile - first_tile) * tile_results) : few_results;
    const std::int64_t run = several ? blocks_per_run() : std::max<std::int64_t>(blocks, 1);
    float* decoded =
        decode ? scratch->take<float>(panels_ * steps_between(0, std::min(run, blocks)) * step_floats()) : nullptr;
    // A weight without blocks (K = 0) still has one, empty, run: its results are zeros.
    for (arguments.first_block = 0; arguments.first_block == 0 || arguments.first_block < blocks;
         arguments.first_block += run) {
      arguments.end_block = std::min(blocks, arguments.first_block + run);
      if (decode) {
        set_prefetch(arguments, 0, 1);
        arguments.decoded_steps = steps_between(arguments.first_block, arguments.end_block);
        kernels_.decode(arguments, decoded);
        arguments.decoded = decoded;
      }
      for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
        arguments.rows = rows_of(tile);
        arguments.out = results + (tile - first_tile) * tile_results;
        set_prefetch(arguments, tile - first_tile, end_tile - first_tile);
        kernels_.tile(arguments);
      }
    }
    for (std::int64_t tile = first_tile; tile < end_tile; ++tile)
      store(tile, column, results + (tile - first_tile) * tile_results);
  }

  // A single tile asks for its own weights early, and towards its end for the next column's, whose panels do not follow
  // its own in memory; parameters, little of which lies together, a whole column early. Of several tiles, only the
  // first would meet weights that are not in a cache yet: each of the first ones fetches a panel of the next column's,
  // so that memory works while they compute.
  void set_prefetch(TileArguments& arguments, std::int64_t tile, std::int64_t tiles) const {
    constexpr std::int64_t kAhead = 1024;
    const std::int64_t next_column = panels_ * layout_.panel_bytes();
    for (std::int64_t panel = 0; panel < TileArguments::kMaxPanels; ++panel)
      arguments.prefetch_distance[panel] = tiles == 1 ? kAhead : tile == panel ? next_column : 0;
    const std::int64_t block_bytes = layout_.block_first_step(1) * PackedLayout::kStepBytes;
    arguments.prefetch_switch_block =
        tiles == 1 ? std::max<std::int64_t>(0, layout_.panel_bytes() - kAhead) / block_bytes : -1;
    arguments.prefetch_switch_bytes = next_column - layout_.panel_bytes();
    arguments.prefetch_parameters = tiles == 1 ? panels_ * layout_.blocks() * PackedLayout::kPanelRows : 0;
  }

  // fp32 weights of one step of a panel.
  std::int64_t step_floats() const { return layout_.step_k() * PackedLayout::kPanelRows; }

  std::int64_t steps_between(std::int64_t first_block, std::int64_t end_block) const {
    return first_block == end_block ? 0
                                    : layout_.block_first_step(end_block - 1) + layout_.block_steps(end_block - 1) -
                                          layout_.block_first_step(first_block);
  }

  std::int64_t blocks_per_run() const {
    constexpr std::int64_t kWeightBytes = 512 << 10;
    const std::int64_t step_bytes =
        kernels_.decode ? step_floats() * static_cast<std::int64_t>(sizeof(float)) : PackedLayout::kStepBytes;
    const std::int64_t block_bytes = std::max<std::int64_t>(1, panels_ * layout_.block_steps(0) * step_bytes);
    return std::max<std::int64_t>(1, kWeightBytes / block_bytes);
  }

  TileArguments column_arguments(std::int64_t column) const {
    const PackedWeight& w = *problem_.weight;
    const std::int64_t panel = column * panels_;
    const std::int64_t parameters = panel * layout_.blocks() * PackedLayout::kPanelRows;
    TileArguments arguments{};
    arguments.layout = &layout_;
    arguments.block_steps = layout_.block_first_step(1);
    arguments.last_block_steps = layout_.blocks() ? layout_.block_steps(layout_.blocks() - 1) : 0;
    arguments.codes = w.codes + panel * layout_.panel_bytes();
    arguments.scales = tile_parameters(w.scales, parameters);
    arguments.offsets = tile_parameters(w.offsets, parameters);
    arguments.weight_sums = weight_sums_ ? weight_sums_ + parameters : nullptr;
    arguments.panels = static_cast<int>(std::min(panels_, layout_.panels() - panel));
    return arguments;
  }

  void store(std::int64_t tile, std::int64_t column, const float* results) const {
    const std::int64_t first_n = column * panels_ * PackedLayout::kPanelRows;
    const std::int64_t row_length = std::min(panels_, layout_.panels() - column * panels_) * PackedLayout::kPanelRows;
    const std::int64_t columns = std::min(row_length, layout_.n - first_n);
    const RowView& y = problem_.y;
    const FusedActivation& act = problem_.activation;
    const bool vectorized = y.column_stride == 1 && is_clamp_or_none(act);
    for (std::int64_t m = first_row(tile); m < first_row(tile + 1); ++m, results += row_length) {
      if (vectorized) {
        char* data = static_cast<char*>(const_cast<void*>(y.data)) + (y.row_offset(m) + first_n) * item_size(y.dtype);
        kernels_.store_row(results, columns,
                           {data, static_cast<int>(y.dtype), bias_ ? bias_ + first_n : nullptr,
                            act.kind == ActivationKind::clamp, act.lo, act.hi});
      } else {
        for (std::int64_t n = 0; n < columns; ++n)
          store_result(problem_, y.row_offset(m) + (first_n + n) * y.column_stride, first_n + n, results[n]);
      }
    }
  }

  const LinearProblem& problem_;
  const TileKernels& kernels_;
  const PackedLayout& layout_;
  const bool parallel_;
  const std::int64_t row_tiles_;
  const std::int64_t panels_;  // of a tile: the fewer its rows, the more, so that enough memory is being read at once
  std::int64_t row_bytes_ = 0;
  char* codes_ = nullptr;
  float* scales_ = nullptr;
  float* scaled_sums_ = nullptr;
  float* offsets_ = nullptr;
  std::int32_t* sums_ = nullptr;
  std::int32_t* acc_init_ = nullptr;
  const float* weight_sums_ = nullptr;
  float* bias_ = nullptr;
};

}  // namespace

const char* tiled_unsupported_reason(const LinearProblem& problem) {
  if (problem.device.type != DeviceType::cpu) return "it runs on the CPU";
  const PackedLayout& layout = problem.weight->layout;
  // The sum of 65,536 16-bit codes is the last that fits in int32.
  if (layout.blocks() && layout.block_length(0) > 65536) return "its blocks are longer than 65536";
  return nullptr;
}

void run_tiled(const LinearProblem& problem, const TileKernels& kernels) { TiledLinear(problem, kernels).run(); }

}  // namespace qcore
