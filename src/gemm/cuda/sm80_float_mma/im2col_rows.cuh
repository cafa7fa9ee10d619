#pragma once

#include "gemm/cuda/sm80_float_mma/stage.cuh"
#include "runtime/cuda/cuda_launch.h"

// A window's results as tiles of float_mma take them: rows of activations are pixels that change from tap to tap. Where
// a tap lies in the padding, zeros are multiplied.
namespace qcore::sm80_float_mma {

// Copies a tile's stages, one after the other. The depth of the product is taps of whole chunks, and a stage has one
// chunk of each range; the threads that copy that range's chunks go through blocks and taps together.
template <class Rows, class To, int kPlanes, int kSets, int kArrays>
class WindowCopier {
 public:
  __device__ WindowCopier(const WindowArguments& a, const Rows& rows, const Ranges& ranges, int block_chunks)
      : a_(a),
        rows_(rows),
        range_(static_cast<int>(threadIdx.x) / kRangeThreads),
        thread_(static_cast<int>(threadIdx.x) % kRangeThreads),
        tap_units_(static_cast<int>(a.w.steps * 4)),
        block_chunks_(block_chunks),
        chunks_left_(ranges.end(range_) - ranges.begin(range_)) {
    tap_chunks_ = (tap_units_ + kChunkUnits - 1) / kChunkUnits;
    const std::int64_t first_panel = rows.first_panel(), panels = rows.last_panel() - first_panel;
    panels_left_ = static_cast<int>(panels < To::kPanels ? panels : To::kPanels);
    panel_units_ = a.w.taps * tap_units_;
    words_ = reinterpret_cast<const uint4*>(a.w.words) + (first_panel + thread_ / kChunkUnits) * panel_units_ +
             thread_ % kChunkUnits;
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) x_[i] = a.x.values;
    // An empty range takes the parameters of the first block.
    const int begin = chunks_left_ > 0 ? ranges.begin(range_) : 0;
    const int tap = tap_chunks_ > 0 ? begin / tap_chunks_ : 0, chunk = begin - tap * tap_chunks_;
    const int array = thread_ / kColumnUnits, unit = thread_ % kColumnUnits;
    if (array < kArrays && ranges.chunks > 0) {
      // A panel that does not exist takes another one's: its products are never stored.
      const std::int64_t panel = first_panel + unit / 4 < rows.last_panel() ? first_panel + unit / 4 : first_panel;
      parameters_ =
          (array == 0 ? a.w.scales : a.w.offsets) + a.w.parameter_index(panel, chunk / block_chunks, unit % 4 * 4);
    }
    if (chunks_left_ <= 0) return;
    tap_row_ = tap / a.window.kernel[1];
    tap_column_ = tap % a.window.kernel[1];
    words_ += static_cast<std::int64_t>(tap) * tap_units_;
    begin_tap();
    chunk_of_block_ = chunk % block_chunks;
    tap_left_ -= chunk;
    skip(chunk);
  }

  // The next stage; behind the last one, zeros.
  __device__ __forceinline__ void copy(To& to) {
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int panel = thread_ / kChunkUnits + i * (kRangeThreads / kChunkUnits), unit = thread_ % kChunkUnits;
      if (To::kPanels * kChunkUnits < kRangeThreads && panel >= To::kPanels) break;
      ptx::copy_async(&to.weights[To::weight_unit(panel, range_, unit / 4, unit % 4)],
                      words_ + i * (kRangeThreads / kChunkUnits) * panel_units_,
                      panel < panels_left_ && weight_units_left_ > 0);
    }
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
      for (int i = 0; i < kRowCopies; ++i)
        ptx::copy_async(&to.x[To::x_unit(plane, range_, row(i) / 8, row(i) % 8, thread_ % 4)],
                        x_[i] + plane * a_.x.plane_units, (has_row_ >> i & 1) && x_units_left_ > 0);
    if (parameters_)
      ptx::copy_async(&to.parameters[thread_ / kColumnUnits][range_][thread_ % kColumnUnits * 4], parameters_, true);
    next();
  }

 private:
  static constexpr int kRangeThreads = kThreads / To::kChunks;
  static constexpr int kChunkUnits = To::kSteps * 4;  // of a panel
  static constexpr int kWeightCopies = (To::kPanels * kChunkUnits + kRangeThreads - 1) / kRangeThreads;
  static constexpr int kRowsAtOnce = kRangeThreads / 4, kRowCopies = To::kRows / kRowsAtOnce;
  static constexpr int kColumnUnits = To::kColumns / 4;
  static_assert(To::kChunks == To::kShape.warps_k && kSets == To::kChunks, "a chunk of each range is a stage");
  static_assert(kRangeThreads % kChunkUnits == 0, "a thread copies the same unit of panels");
  static_assert(To::kRows % kRowsAtOnce == 0, "whole copies of rows");
  static_assert(kRangeThreads >= kArrays * kColumnUnits, "a thread copies one unit of parameters");

  __device__ int row(int i) const { return thread_ / 4 + i * kRowsAtOnce; }

  __device__ __forceinline__ void next() {
    if (--chunks_left_ <= 0) {
      // The last block's parameters stay: it may not be complete.
      weight_units_left_ = x_units_left_ = 0;
      return;
    }
    skip(1);
    if (++chunk_of_block_ == block_chunks_) {
      chunk_of_block_ = 0;
      if (parameters_) parameters_ += PackedLayout::kPanelRows;
    }
    if (--tap_left_ == 0) next_tap();
  }
  __device__ __forceinline__ void skip(int chunks) {
    words_ += chunks * kChunkUnits;
    weight_units_left_ -= chunks * kChunkUnits;
    x_units_left_ -= chunks * 4;
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) x_[i] += chunks * 4;
  }
  __device__ void next_tap() {
    words_ += tap_units_ - tap_chunks_ * kChunkUnits;
    if (parameters_) parameters_ -= (a_.w.blocks - (chunk_of_block_ > 0)) * PackedLayout::kPanelRows;
    chunk_of_block_ = 0;
    if (++tap_column_ == a_.window.kernel[1]) {
      tap_column_ = 0;
      ++tap_row_;
    }
    begin_tap();
  }
  __device__ void begin_tap() {
    tap_left_ = tap_chunks_;
    weight_units_left_ = tap_units_ - thread_ % kChunkUnits;
    x_units_left_ = static_cast<int>(a_.x.units) - thread_ % 4;
    has_row_ = 0;
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) {
      std::int64_t unit = 0;
      const bool found = rows_.find(row(i), tap_row_, tap_column_, unit);
      has_row_ |= (found ? 1u : 0u) << i;
      x_[i] = a_.x.values + unit + thread_ % 4;
    }
  }

  const WindowArguments& a_;
  Rows rows_;
  int range_, thread_;  // of those that copy the range
  int panels_left_, tap_units_, tap_chunks_, block_chunks_;
  int chunks_left_, tap_left_ = 0, chunk_of_block_ = 0;  // of the range, of the tap
  int tap_row_ = 0, tap_column_ = 0;
  int weight_units_left_ = 0, x_units_left_ = 0;  // of the tap
  std::uint32_t has_row_ = 0;
  std::int64_t panel_units_;
  const uint4* words_;
  const uint4* x_[kRowCopies];
  const float* parameters_ = nullptr;  // null: nothing to copy
};

template <Size kSize, int kPlanes>
class Im2colRows : public WindowTile<WindowArguments, Tuning::shape(kSize, kPlanes, true).columns(),
                                     Tuning::shape(kSize, kPlanes, true).rows()> {
 public:
  static constexpr Shape kShape = Tuning::shape(kSize, kPlanes, true);
  using Given = WindowArguments;
  using Tile = WindowTile<WindowArguments, kShape.columns(), kShape.rows()>;
  template <class To, int kSets, int kArrays>
  using CopierOf = WindowCopier<Im2colRows, To, kPlanes, kSets, kArrays>;

  __device__ explicit Im2colRows(const WindowArguments& a) : Tile(a, block_shared<WindowPlaces<kShape.rows()>>()) {}
  // Where the pixel under a tap of the tile's result `i` lies, in units; nowhere in the padding.
  __device__ bool find(int i, int tap_row, int tap_column, std::int64_t& unit) const {
    if (!Tile::find(i, tap_row, tap_column, unit)) return false;
    unit += blockIdx.z * Tile::a_.group_units;
    return true;
  }
  __device__ bool find(int i, std::int64_t tap, std::int64_t& unit) const {
    const int kernel = Tile::a_.window.kernel[1];
    return find(i, static_cast<int>(tap / kernel), static_cast<int>(tap % kernel), unit);
  }
};

}  // namespace qcore::sm80_float_mma
