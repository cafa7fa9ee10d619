#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/compute_mode.h"
#include "formats/element.h"
#include "formats/packed_weight.h"
#include "gemm/cpu/tile_data.h"
#include "qcore/linear.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

// What the CPU drivers of linear, conv2d and static share around their tiles.
namespace qcore {

// With fewer multiply-adds, or elements to pack, a call is over before a second thread has woken up.
constexpr std::int64_t kSerialProducts = 1 << 18, kSerialElements = 1 << 14;

// Runs task(0) to task(tasks - 1), on the thread pool if `parallel`.
template <class Task>
void for_each_task(std::int64_t tasks, bool parallel, const Task& task) {
  if (parallel && tasks > 1)
    parallel_for(tasks, task);
  else
    for (std::int64_t i = 0; i < tasks; ++i) task(i);
}

// Whether tiles and their vectors apply the activation themselves; the others are applied value by value.
inline bool is_clamp_or_none(const FusedActivation& activation) {
  return activation.kind == ActivationKind::none || activation.kind == ActivationKind::clamp;
}

// Returns a bias as fp32 [padded] in `scratch`, zeros from `n` on; null if there is none.
inline float* float_bias(const TensorView& bias, std::int64_t n, std::int64_t padded, Scratch& scratch) {
  if (!bias.rank) return nullptr;
  float* values = scratch.take<float>(padded);
  for (std::int64_t i = 0; i < n; ++i) values[i] = load_float(bias.data, bias.dtype, i * bias.strides[0]);
  std::fill(values + n, values + padded, 0.0f);
  return values;
}

// Returns a weight's scales or offsets from element `first` on, as tiles read them.
inline TileParameters tile_parameters(const BlockParameters& all, std::int64_t first) {
  return {all ? static_cast<const char*>(all.data) + first * all.item_size() : nullptr, all.half};
}

}  // namespace qcore
