#pragma once

#include "conv2d/cpu/vtable.h"
#include "gemm/cpu/pack_rows.h"

// Quantization of pixels into their rows, for the vector set V.
namespace qcore {
namespace {

template <class V, class Code>
struct PackPixels {
  using Pack = PackRows<V, Code>;
  using Place = typename Pack::Place;

  // Pixels have few blocks, so that those of several pixels are packed at once.
  static void run(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
                  const PixelRows& rows) {
    const std::int64_t blocks = layout.blocks(), block_k = layout.block_first_step(1) * layout.step_k();
    auto* parameters = reinterpret_cast<float*>(rows.data);
    auto* integers = reinterpret_cast<std::int32_t*>(rows.data);
    const PackedRows packed{1,
                            rows.data + rows.codes,
                            0,
                            parameters + PixelRows::kScale * blocks,
                            parameters + PixelRows::kScaledSum * blocks,
                            parameters + PixelRows::kOffset * blocks,
                            integers + PixelRows::kSum * blocks,
                            integers + PixelRows::kStart * blocks};
    Place places[V::kLanes];
    int filled = 0;
    for (std::int64_t row = 0; row < count; ++row) {
      const float* x = values + row * stride;
      auto* codes = reinterpret_cast<Code*>(rows.data + row * rows.row_bytes + rows.codes);
      const std::int64_t at = row * rows.row_bytes / static_cast<std::int64_t>(sizeof(float));
      for (std::int64_t p = 0; p < blocks; ++p) {
        places[filled++] = {x + p * layout.block_size, layout.block_length(p),
                            p + 1 < blocks ? block_k : layout.block_steps(p) * layout.step_k(), codes + p * block_k,
                            at + p};
        if (filled < V::kLanes && (p + 1 < blocks || row + 1 < count)) continue;
        Pack::pack(filled, mode, layout.zero_code(), packed, [&](int i) QCORE_UNROLLED { return places[i]; });
        filled = 0;
      }
    }
  }
};

[[maybe_unused]] static void pack_float_pixels(const float* values, std::int64_t stride, std::int64_t count,
                                               const PackedLayout& layout, int mode, const PixelRows& rows) {
  const PackedRows packed{1,       rows.data, rows.row_bytes / static_cast<std::int64_t>(sizeof(float)),
                          nullptr, nullptr,   nullptr,
                          nullptr, nullptr};
  for (std::int64_t row = 0; row < count; ++row)
    pack_float_row(values + row * stride, layout, mode, static_cast<int>(row), packed);
}

}  // namespace
}  // namespace qcore
