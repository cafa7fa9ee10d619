#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/element.h"
#include "gemm/cpu/row_packer.h"
#include "gemm/cpu/tile_data.h"
#include "gemm/cpu/vtable.h"
#include "gemm/epilogue.h"
#include "gemm/product.h"
#include "runtime/memory.h"

namespace qcore {

// Returns a weight's scales or offsets from element `first` on, as tiles read them.
inline TileParameters tile_parameters(const BlockParameters& all, std::int64_t first) {
  return {all ? static_cast<const char*>(all.data) + first * all.item_size() : nullptr, all.half};
}

// Brings the fp32 results of tiles to y.
class ResultRows {
 public:
  ResultRows(const BlockProduct& product, const BlockKernels& kernels)
      : product_(product),
        kernels_(kernels),
        finished_(product.activation.kind == ActivationKind::none || product.activation.kind == ActivationKind::clamp),
        y_(static_cast<float*>(const_cast<void*>(product.y.data))) {}

  // Returns whether tiles add the bias and apply the activation themselves; the other activations are applied value by
  // value.
  bool finished() const { return finished_; }

  float* y() const { return y_; }  // of whatever dtype

  // Returns the bias as fp32 for so many whole panels; null if there is none.
  const float* float_bias(std::int64_t panels, Scratch& scratch) const {
    const TensorView& bias = product_.bias;
    if (!bias.rank) return nullptr;
    const std::int64_t count = product_.weight->layout.n, padded = panels * PackedLayout::kPanelRows;
    float* values = scratch.take<float>(padded);
    for (std::int64_t i = 0; i < count; ++i) values[i] = load_float(bias.data, bias.dtype, product_.bias_place(i));
    std::fill(values + count, values + padded, 0.0f);
    return values;
  }

  // Tells tiles of the panels from `panel` on how to finish their results.
  void finish_in_tile(BlockTileArguments& t, const float* bias, std::int64_t panel) const {
    if (!finished_) return;
    t.bias = bias ? bias + panel * PackedLayout::kPanelRows : nullptr;
    t.clamp = product_.activation.kind == ActivationKind::clamp;
    t.lo = product_.activation.lo, t.hi = product_.activation.hi;
  }

  // Brings the results [begin, end) of `channels` rows of the weight, from `channel` on, to y; [end -
  // begin][row_length].
  void store(std::int64_t channel, std::int64_t channels, std::int64_t begin, std::int64_t end, const float* results,
             std::int64_t row_length) const {
    const RowView& y = product_.y;
    const std::int64_t first = channel % product_.outputs();
    y.for_runs(begin, end, [&](std::int64_t, std::int64_t count, std::int64_t offset) {
      offset += first * y.column_stride;
      if (finished_ && y.column_stride == 1) {
        for (std::int64_t row = 0; row < count; ++row)
          store_row(results + row * row_length, channels, offset + row * y.row_stride());
      } else if (finished_ && y.row_stride() == 1) {
        store_turned(results, row_length, count, channels, offset);
      } else {
        for (std::int64_t row = 0; row < count; ++row)
          for (std::int64_t c = 0; c < channels; ++c)
            store_one(results[row * row_length + c], channel + c, offset + row * y.row_stride() + c * y.column_stride);
      }
      results += count * row_length;
    });
  }

 private:
  static constexpr std::int64_t kLine = RowPacker::kLine;

  // Stores results of rows that lie side by side. Whole vectors of fp32 go to their places, the rest by way of a copy.
  void store_turned(const float* results, std::int64_t row_length, std::int64_t rows, std::int64_t channels,
                    std::int64_t offset) const {
    const RowView& y = product_.y;
    constexpr int kFloat = static_cast<int>(DType::f32);
    const std::int64_t placed = y.dtype == DType::f32 ? rows / kLine * kLine : 0, rest = rows - placed;
    if (placed) kernels_.rows->transpose(results, kFloat, row_length, placed, channels, y_ + offset, y.column_stride);
    if (!rest) return;
    Scratch scratch;
    const std::int64_t stride = round_up(rest, kLine);
    float* turned = scratch.take<float>(channels * stride);
    kernels_.rows->transpose(results + placed * row_length, kFloat, row_length, rest, channels, turned, stride);
    for (std::int64_t c = 0; c < channels; ++c)
      store_row(turned + c * stride, rest, offset + placed + c * y.column_stride);
  }

  void store_row(const float* values, std::int64_t count, std::int64_t offset) const {
    kernels_.rows->store_row(values, count, reinterpret_cast<char*>(y_) + offset * y_item_,
                             static_cast<int>(product_.y.dtype));
  }

  void store_one(float value, std::int64_t channel, std::int64_t offset) const {
    if (finished_)
      store_float(y_, product_.y.dtype, offset, value);
    else
      store_result(product_, offset, channel, value);
  }

  const BlockProduct& product_;
  const BlockKernels& kernels_;
  const bool finished_;  // bias and activation are done in the tile
  float* const y_;
  const std::int64_t y_item_ = static_cast<std::int64_t>(item_size(product_.y.dtype));
};

}  // namespace qcore
