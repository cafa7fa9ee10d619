#pragma once

#include <algorithm>

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/spread_steps.cuh"
#include "gemm/cuda/window/image_copies.h"
#include "runtime/cuda/ptx_tensor_map.cuh"
#include "runtime/memory.h"

// Float activations and many rows on sm_90a: as `sm80_float_mma`, but with the products of whole warpgroups, y^T = W
// x^T. One operand is the weight, decoded into registers; the other are rows of x, which the copy engine brings to
// shared memory from where they are.
namespace qcore::sm90_float_wgmma {

constexpr int kStageK = 64;          // k of a stage: what the copy engine takes of a row
constexpr int kStepK = 2 * kStageK;  // k that is multiplied at a time
constexpr int kPartRows = 64;        // rows of x in a product

struct Tuning {
  static constexpr int kColumns = 128;          // n of a tile
  static constexpr int kMaxParts = 4;           // of kPartRows in a tile
  static constexpr std::int64_t kFewRows = 16;  // which `sm80_float_mma` takes
};

// Rows of x under a window: under each tap a result has the row of another pixel. The weight's steps and its k are
// those of all taps, one after the other, its blocks and their parameters those of every tap.
struct Window {
  DeviceWindow of;  // steps of the input in values; none of `before` and of `kernel` is beyond what copies take
  FirstResult first;
  std::int64_t images;
  int channels;  // k of a tap, whole stages; 0 if x is a matrix
};

struct Arguments {
  ptx::TensorMap x;                // in parts of a tile's rows
  ptx::TensorMap words;            // of the weight, in parts of a stage
  ptx::TensorMap scales, offsets;  // in parts of a block
  const std::uint16_t* values;     // [M, K]
  std::int64_t row_stride;
  DType dtype;             // f16 or bf16
  std::int64_t rows;       // M of this launch
  std::int64_t first_row;  // of these rows in out.y
  const float* row_sums;   // [units, M rounded up to whole tiles], see row_sums.cuh; null unless it is needed
  std::int64_t sum_stride;
  Window window;
  DeviceWeight w;
  bool has_zero_points;  // see PackedWeight: row_sums are not needed
  bool new_weight;       // the kernel right in front of this one writes the weight, so that they must not overlap
  DeviceOutput out;
  bool pairs;                   // y has one leading axis, and two neighboring outputs of a row are one aligned store
  int parts;                    // of a tile: 1, 2 or 4; see parts_fit()
  int spread;                   // thread blocks over which the last tiles' steps are spread; 0 if they are not
  SpreadTotals spread_totals;   // of that many thread blocks
  int copied_rows;              // of a tile: set by set_maps(); zeros behind the last row of x take as long as rows
  unsigned tiles, whole_tiles;  // set by the launch: all, and those whose steps are not spread
};

// Returns how many k are multiplied before their sums are scaled: blocks of the weight are whole ones.
inline int promoted_k(const DeviceWeight& w) {
  if (w.blocks <= 1 || w.block_size % kStepK == 0) return kStepK;
  return w.block_size % kStageK == 0 ? kStageK : kStageK / 2;
}

// Returns the k of a unit of row_sums: a stage holds whole ones.
inline int sum_unit(const DeviceWeight& w) { return promoted_k(w) < kStageK ? kStageK / 2 : kStageK; }

// Whether there is a kernel for tiles of so many parts.
inline bool parts_fit(const DeviceWeight& w, int parts) {
  const int promoted = promoted_k(w);
  return promoted == kStepK || (promoted == kStageK ? parts != 2 : parts == 2);
}

// Sets the matrices of x and of the weight as the copy engine takes them, when all else is set.
inline void set_maps(Arguments& a) {
  constexpr int kPanel = static_cast<int>(PackedLayout::kPanelRows), kPanels = Tuning::kColumns / kPanel;
  if (a.window.channels) {
    const DeviceWindow& of = a.window.of;
    a.copied_rows = a.parts * kPartRows;
    a.x = ptx::image_map(
        image_parts(a.values, 2, a.window.images, of, a.window.channels, of.image, of.row, of.column, a.copied_rows));
  } else {
    a.copied_rows = static_cast<int>(std::min<std::int64_t>(a.parts * kPartRows, round_up(a.rows, 8)));
    a.x = ptx::tensor_map({a.values, 2, a.rows, a.w.k, a.row_stride, a.copied_rows, kStageK, true});
  }
  const std::int64_t words = a.w.steps * kPanel, parameters = a.w.blocks * kPanel;
  a.words = ptx::tensor_map({a.w.words, 4, a.w.panels, words, words, kPanels, kStageK * a.w.bits / 32 * kPanel, false});
  a.scales = ptx::tensor_map({a.w.scales, 4, a.w.panels, parameters, parameters, kPanels, kPanel, false});
  if (a.w.offsets)
    a.offsets = ptx::tensor_map({a.w.offsets, 4, a.w.panels, parameters, parameters, kPanels, kPanel, false});
}

// y = act(x W^T + bias). Need sm_90a, and block sizes that are multiples of 32 or one block.
void run_f16(const Arguments& arguments, cudaStream_t stream);
void run_bf16(const Arguments& arguments, cudaStream_t stream);

}  // namespace qcore::sm90_float_wgmma
