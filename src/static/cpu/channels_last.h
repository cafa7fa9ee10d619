#pragma once

#include <cstdint>

#include "gemm/cpu/tiled.h"
#include "static/cpu/vtable.h"
#include "static/problem.h"

namespace qcore {

// x as the kernels of an instruction set read it: the channels of a pixel after each other, each group's in whole
// fours. In place if it lies so, else a copy in the scratch memory of the caller.
struct ChannelsLast {
  const std::uint8_t* data = nullptr;  // the first pixel of the first image
  std::int64_t image = 0, row = 0, column = 0;
  std::int64_t group = 0;        // from group to group within a pixel
  std::int64_t group_codes = 0;  // of a pixel's group, with padding
  bool joined = false;  // the taps of a row of the kernel are one run: rows hold their padding, and begin with it
  numerics::WindowAxis columns;           // the problem's, or those of runs
  const std::uint8_t* padding = nullptr;  // codes of padding, as many as a run from any group on
};

// `quads`: runs are read in whole fours, and may be joined where that pays. Otherwise pixels are read code by code.
ChannelsLast channels_last(const StaticProblem& problem, const StaticTileKernels& kernels, bool quads,
                           Scratch& scratch);

// Brings codes [count][step] of the results from `first` on, and of the channels from `channel` on, to their places.
void scatter(const RowView& y, const StaticTileKernels& kernels, const std::uint8_t* codes, std::int64_t step,
             std::int64_t first, std::int64_t count, std::int64_t channel, std::int64_t channels);

// With fewer multiply-adds a call is over before a second thread has woken up; int8 sums take half of linear's time.
constexpr std::int64_t kSerialStaticProducts = 1 << 19;

// How y is stored.
StaticCodeFormat code_format(const StaticLayer& layer);

// Returns what gives the codes of x the sign that the kernels multiply: 0x80, or 0 where they have it.
inline std::uint32_t x_flip(const StaticLayer& layer, const StaticTileKernels& kernels) {
  return kernels.both_signs || (layer.options.x.dtype == DType::i8) == kernels.signed_codes ? 0 : 0x80;
}

// Returns layer.acc_init for such codes.
inline std::int32_t sum_start(const StaticLayer& layer, const StaticTileKernels& kernels, std::int64_t channel) {
  const auto start = static_cast<std::uint32_t>(layer.acc_init[channel]);
  const std::uint32_t flipped = x_flip(layer, kernels) * static_cast<std::uint32_t>(layer.sums[channel]);
  return static_cast<std::int32_t>(kernels.signed_codes ? start + flipped : start - flipped);
}

}  // namespace qcore
