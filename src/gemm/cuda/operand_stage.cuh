#pragma once

#include "formats/packed_layout.h"
#include "runtime/cuda/ptx.cuh"

// Operands of one step of a tile of integer products, in shared memory, and how they get there. Weights stay packed.
namespace qcore::sm80_int8_mma {

// A tile of y is 32*pairs*warps_n columns n by 8*tiles*warps_m rows; each warp computes 32*pairs columns of 8*tiles
// rows.
struct Shape {
  int warps_n, warps_m, pairs, tiles;

  constexpr int columns() const { return 32 * pairs * warps_n; }
  constexpr int rows() const { return 8 * tiles * warps_m; }
  constexpr int threads() const { return 32 * warps_n * warps_m; }
};

constexpr int kChunk = 32;  // k of one product of matrices

template <int kBits, int kChunks, int kColumns, int kRows>
struct OperandStage {
  static constexpr int kSteps = kBits == 8 ? 8 : 4;  // packed steps in a chunk
  static constexpr int kPanels = kColumns / static_cast<int>(PackedLayout::kPanelRows);

  uint4 weights[kPanels * kChunks * kSteps * 4];
  uint4 codes[kChunks * kRows * 2];

  // Lines of 128 bytes are two steps. Lanes that differ in the step and in the lowest bit of the unit, 4 columns n,
  // read at once: the exclusive or spreads them over the banks.
  __device__ static int weight_unit(int panel, int chunk, int step, int unit) {
    const int line = step / 2;
    return (panel * kChunks + chunk) * kSteps * 4 + line * 8 + ((step % 2 * 4 + unit) ^ (2 * (line % (kSteps / 2))));
  }
  // A chunk's rows lie 32 bytes apart, so that 8-byte reads of four rows take every bank once.
  __device__ static int code_unit(int chunk, int row, int half) { return (chunk * kRows + row) * 2 + half; }

  // Operand b of a product: the codes of column `row`.
  __device__ uint2 codes_of(int chunk, int row, int quad) const {
    return reinterpret_cast<const uint2*>(&codes[code_unit(chunk, row, 0)])[quad];
  }
};

// Operands a of two products per chunk: row `group` of them is column 4*group + word of n.
template <int kBits, int kChunks>
struct WeightFragments {
  std::uint32_t first[kChunks][4], second[kChunks][4];

  template <class OfStage>
  __device__ void load(const OfStage& stage, int panel, int quad, int unit) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if constexpr (kBits == 8) {
        const uint4 low = stage.weights[OfStage::weight_unit(panel, chunk, 2 * quad, unit)];
        const uint4 high = stage.weights[OfStage::weight_unit(panel, chunk, 2 * quad + 1, unit)];
        set(first[chunk], low.x, low.y, high.x, high.y);
        set(second[chunk], low.z, low.w, high.z, high.w);
      } else {
        constexpr std::uint32_t kLow = 0x0f0f0f0fu;
        const uint4 both = stage.weights[OfStage::weight_unit(panel, chunk, quad, unit)];
        set(first[chunk], both.x & kLow, both.y & kLow, both.x >> 4 & kLow, both.y >> 4 & kLow);
        set(second[chunk], both.z & kLow, both.w & kLow, both.z >> 4 & kLow, both.w >> 4 & kLow);
      }
    }
  }
  __device__ static void set(std::uint32_t (&to)[4], std::uint32_t a, std::uint32_t b, std::uint32_t c,
                             std::uint32_t d) {
    to[0] = a, to[1] = b, to[2] = c, to[3] = d;
  }
};

// Copies a tile's operands, stage after stage. As every block is whole 32 k but the last one, stage i of a tap starts
// at step i*kChunks*kSteps of each panel and at code i*32*kChunks of each row. What a thread copies lies at the same
// place of every stage, so that all it keeps are pointers.
template <int kThreads, int kBits, int kChunks, int kColumns, int kRows>
class OperandCopier {
 public:
  using To = OperandStage<kBits, kChunks, kColumns, kRows>;
  static constexpr int kPanelUnits = kChunks * To::kSteps * 4;

  // `words`: of the tile's first panel. Panels are panel_units apart, and one tap of them has tap_units.
  __device__ OperandCopier(const uint4* words, std::int64_t panels_left, int panel_units, int tap_units)
      : thread_(static_cast<int>(threadIdx.x)),
        panels_left_(static_cast<int>(panels_left < To::kPanels ? panels_left : To::kPanels)),
        panel_units_(panel_units),
        units_left_(tap_units - thread_ % kPanelUnits),
        words_(words + thread_ % kPanelUnits) {}

  // Returns the row of the tile whose codes this thread copies.
  __device__ int row() const { return thread_ / 2 % kRows; }
  // `codes` is the row's beginning, or anything readable for a row that has none, which counts as zeros.
  __device__ void set_row(const std::int8_t* codes, bool has_row) {
    has_row_ = has_row;
    codes_ = codes + thread_ % 2 * 16;
  }
  // Goes to the next tap, where all panels' words begin `done` units behind those of this one.
  __device__ void next_tap(int done, int tap_units) {
    words_ += tap_units - done;
    units_left_ += done;
  }

  __device__ __forceinline__ void copy_weights(To& to) const {
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int panel = thread_ / kPanelUnits + i * (kThreads / kPanelUnits), unit = thread_ % kPanelUnits;
      if (kThreads * (i + 1) > To::kPanels * kPanelUnits && panel >= To::kPanels) break;
      ptx::copy_async(&to.weights[To::weight_unit(panel, unit / 4 / To::kSteps, unit / 4 % To::kSteps, unit % 4)],
                      words_ + (panel < panels_left_ ? panel : 0) * panel_units_,
                      panel < panels_left_ && units_left_ > 0);
    }
  }
  __device__ __forceinline__ void copy_codes(To& to) const {
#pragma unroll
    for (int i = 0; i < kChunks; i += kChunksAtOnce) {
      const int chunk = i + thread_ / (2 * kRows);
      if (i + kChunksAtOnce > kChunks && chunk >= kChunks) break;
      ptx::copy_async(&to.codes[To::code_unit(chunk, thread_ / 2 % kRows, thread_ % 2)], codes_ + chunk * kChunk,
                      has_row_);
    }
  }
  // Likewise where a row that has none counts as `fill`.
  __device__ __forceinline__ void copy_codes_or_fill(To& to, std::uint32_t fill) const {
    if (has_row_) return copy_codes(to);
#pragma unroll
    for (int i = 0; i < kChunks; i += kChunksAtOnce) {
      const int chunk = i + thread_ / (2 * kRows);
      if (i + kChunksAtOnce > kChunks && chunk >= kChunks) break;
      to.codes[To::code_unit(chunk, thread_ / 2 % kRows, thread_ % 2)] = {fill, fill, fill, fill};
    }
  }
  __device__ __forceinline__ void next() {
    words_ += kPanelUnits;
    units_left_ -= kPanelUnits;
    codes_ += kChunks * kChunk;
  }

 private:
  static constexpr int kWeightCopies = (To::kPanels * kPanelUnits + kThreads - 1) / kThreads;
  static constexpr int kChunksAtOnce = kThreads / (2 * kRows);
  static_assert(kThreads % (2 * kRows) == 0, "a thread copies half a row's chunk");
  static_assert(kThreads % kPanelUnits == 0, "a thread copies the same unit of every panel");

 protected:
  int thread_;

 private:
  int panels_left_, panel_units_, units_left_;
  const uint4* words_;
  bool has_row_ = false;
  const std::int8_t* codes_ = nullptr;
};

}  // namespace qcore::sm80_int8_mma
