#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/activation_scales.h"
#include "formats/compute_mode.h"
#include "formats/element.h"
#include "formats/row_view.h"
#include "gemm/cpu/vtable.h"
#include "runtime/memory.h"

namespace qcore {

// Brings rows of x to the kernels of an instruction set, which quantize them: as fp32 values with neighboring channels.
class RowPacker {
 public:
  static constexpr std::int64_t kLine = 16;  // floats that the widest vector holds

  // Every row has so many channels in `groups`, each of which is a row for the kernels.
  RowPacker(const RowView& x, const ActivationScales& scales, ComputeMode compute, const BlockKernels& kernels,
            const PackedLayout& layout, std::int64_t channels, std::int64_t groups)
      : x_(x),
        scales_(scales),
        mode_(scales.given() ? numerics::kActivationCodes
                             : activation_mode(compute, scales.source == ActivationScales::Source::fixed)),
        kernels_(kernels),
        layout_(layout),
        groups_(groups),
        channels_(channels) {}

  // Packs the rows [begin, end) to rows.data, row_bytes each.
  void pack(std::int64_t begin, std::int64_t end, PackedRows rows, std::int64_t row_bytes) const {
    Scratch scratch;
    rows.per_row = scales_.source == ActivationScales::Source::per_row;
    rows.fixed = scales_.fixed;
    if (scales_.given()) {
      rows.blocks_per_scale = scales_.blocks_per_scale;
      rows.row_scales = ceil_div(layout_.blocks(), scales_.blocks_per_scale);
      rows.scales = gather(scales_.scales, begin, end, rows.row_scales, scratch);
      if (scales_.offsets.data) rows.offsets = gather(scales_.offsets, begin, end, rows.row_scales, scratch);
    }
    x_.for_runs(begin, end, [&](std::int64_t, std::int64_t count, std::int64_t offset) {
      pack_run(count, offset, rows, row_bytes);
      rows.data += count * row_bytes;
      if (rows.scales) rows.scales += count * rows.row_scales;
      if (rows.offsets) rows.offsets += count * rows.row_scales;
    });
  }

 private:
  static const float* gather(const RowView& from, std::int64_t begin, std::int64_t end, std::int64_t columns,
                             Scratch& scratch) {
    float* to = scratch.take<float>((end - begin) * columns);
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t column = 0; column < columns; ++column)
        to[(row - begin) * columns + column] =
            static_cast<const float*>(from.data)[from.row_offset(row) + column * from.column_stride];
    return to;
  }

  // Copies what is not fp32 with neighboring channels.
  void pack_run(std::int64_t count, std::int64_t offset, const PackedRows& rows, std::int64_t row_bytes) const {
    if (x_.dtype == DType::f32 && x_.column_stride == 1)
      return pack_values(static_cast<const float*>(x_.data) + offset, x_.row_stride(), count, rows, row_bytes);
    Scratch scratch;
    const std::int64_t stride = round_up(channels_, kLine);
    float* copy = scratch.take<float>(count * stride);
    const int dtype = static_cast<int>(x_.dtype);
    if (scales_.given()) {
      for (std::int64_t row = 0; row < count; ++row) copy_codes(offset + row * x_.row_stride(), copy + row * stride);
    } else if (x_.column_stride != 1 && x_.row_stride() == 1) {
      const char* data = static_cast<const char*>(x_.data) + offset * item_size(x_.dtype);
      kernels_.rows->transpose(data, dtype, x_.column_stride, channels_, count, copy, stride);
    } else if (x_.column_stride == 1) {
      for (std::int64_t row = 0; row < count; ++row)
        kernels_.rows->widen(static_cast<const std::uint16_t*>(x_.data) + offset + row * x_.row_stride(), dtype,
                             channels_, copy + row * stride);
    } else {
      for (std::int64_t row = 0; row < count; ++row)
        for (std::int64_t c = 0; c < channels_; ++c)
          copy[row * stride + c] = load_float(x_.data, x_.dtype, offset + row * x_.row_stride() + c * x_.column_stride);
    }
    pack_values(copy, stride, count, rows, row_bytes);
  }

  void copy_codes(std::int64_t from, float* to) const {
    for (std::int64_t c = 0; c < channels_; ++c)
      to[c] = static_cast<float>(load_code(x_.data, x_.dtype, from + c * x_.column_stride));
  }

  void pack_values(const float* values, std::int64_t stride, std::int64_t count, PackedRows rows,
                   std::int64_t row_bytes) const {
    const std::int64_t row_values = channels_ / groups_;
    if (groups_ == 1 || stride == channels_)
      return kernels_.pack(values, groups_ == 1 ? stride : row_values, count * groups_, layout_, mode_, rows);
    for (; count > 0; --count, values += stride, rows.data += row_bytes)
      kernels_.pack(values, row_values, groups_, layout_, mode_, rows);
  }

  const RowView& x_;
  const ActivationScales& scales_;
  const int mode_;
  const BlockKernels& kernels_;
  const PackedLayout& layout_;
  const std::int64_t groups_, channels_;
};

}  // namespace qcore
