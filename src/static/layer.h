#pragma once

#include <cstdint>
#include <memory>

#include "formats/packed_layout.h"
#include "qcore/static.h"

namespace qcore {

// The storage behind StaticConv2d and StaticLinear; immutable once built.
//
// Weights are w - Zw, signed bytes in the places of a PackedLayout with one block, a group's panels after each other.
// Where a difference does not fit into a byte, all of them are sums of parts that do: so many times the taps, over the
// same pixels.
struct StaticLayer {
  const char* op = "static.qconv2d";
  StaticOptions options;
  ConvParams window;
  std::int64_t shape[4] = {};  // [Co, Ci / groups, Kh, Kw]; of a linear layer [N, K, 1, 1]
  Device device;

  PackedLayout layout;  // of one group; n = Co / groups, k = Ci / groups, taps = parts * Kh * Kw
  std::int64_t parts = 1;

  const std::int8_t* codes = nullptr;      // groups * layout.code_bytes(); padding is 0
  const std::int32_t* acc_init = nullptr;  // [Co] bias - Zx * sum of w, modulo 2^32: what the sum of x * w starts from
  const std::int32_t* sums = nullptr;      // [Co] sum of w, modulo 2^32
  const float* multipliers = nullptr;      // [Co]
  std::shared_ptr<const void> storage;     // of all of them, and of what follows
  std::int64_t storage_bytes = 0;

  // The same weights for kernels that take channels side by side, if each has its own window and parts is 1, else null:
  // [ceil(Kh / 4)][Kw][Co][4 rows of the kernel]; missing rows are 0.
  const std::int8_t* depthwise = nullptr;

  std::int64_t kernel_taps() const { return shape[2] * shape[3]; }
  std::int64_t place(std::int64_t channel, std::int64_t k, std::int64_t tap) const {
    return channel / layout.n * layout.code_bytes() + layout.place(channel % layout.n, k, tap).byte;
  }
};

std::shared_ptr<const StaticLayer> make_static_layer(const char* op, const TensorView& weight,
                                                     const TensorView& w_scale, const TensorView* bias,
                                                     const ConvParams& window, const StaticOptions& options);

std::shared_ptr<const StaticLayer> move_static_layer(std::shared_ptr<const StaticLayer> layer, Device device);

}  // namespace qcore
