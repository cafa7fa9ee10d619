#pragma once

#include "gemm/cuda/sm80_float_mma/stage.cuh"

// The rows of a matrix as tiles of float_mma take them.
namespace qcore::sm80_float_mma {

// Copies a tile's stages, one after the other. As every block is whole chunks but the last one, chunk i starts at step
// i*kSteps of each panel and at unit 4*i of each row. What a thread copies lies at the same place of every stage.
template <class To, int kPlanes, int kSets, int kArrays>
class Copier {
 public:
  template <class Rows>
  __device__ Copier(const Arguments& a, const Rows&, const Ranges& ranges, int block_chunks)
      : a_(a), thread_(static_cast<int>(threadIdx.x)), block_chunks_(block_chunks) {
    const DeviceWeight& w = a.w;
    const std::int64_t first_panel = static_cast<std::int64_t>(blockIdx.x) * To::kPanels;
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * To::kRows;
    panels_left_ = static_cast<int>(w.panels - first_panel < To::kPanels ? w.panels - first_panel : To::kPanels);
    rows_left_ = static_cast<int>(a.x.rows - first_row < To::kRows ? a.x.rows - first_row : To::kRows);

    panel_units_ = w.steps * 4;
    const int weight_unit = thread_ % kPanelUnits, weight_begin = first_unit(ranges, weight_unit, kChunkUnits);
    weight_units_left_ = last_unit(ranges, weight_unit, kChunkUnits, static_cast<int>(panel_units_)) - weight_begin;
    words_ =
        reinterpret_cast<const uint4*>(w.words) + (first_panel + thread_ / kPanelUnits) * panel_units_ + weight_begin;

    const int x_unit = thread_ % kRowUnits, x_begin = first_unit(ranges, x_unit, 4);
    x_units_left_ = last_unit(ranges, x_unit, 4, static_cast<int>(a.x.units)) - x_begin;
    x_ = a.x.values + (first_row + thread_ / kRowUnits) * a.x.row_units + x_begin;

    const int unit = thread_ % kColumnUnits, array = thread_ / (kSets * kColumnUnits);
    const int set = thread_ / kColumnUnits % kSets;
    if (array < kArrays && ranges.chunks > 0) {
      // A panel or a range that does not exist takes another one's: its products are zeros, or never stored.
      const std::int64_t panel = first_panel + unit / 4 < w.panels ? first_panel + unit / 4 : 0;
      const int begin = ranges.begin(set % kWarpsK) + set / kWarpsK, end = ranges.end(set % kWarpsK);
      const int chunk = begin < end ? begin : 0;
      parameters_ = (array == 0 ? w.scales : w.offsets) + w.parameter_index(panel, chunk / block_chunks, unit % 4 * 4);
      chunks_left_ = end - begin;
      chunk_of_block_ = chunk % block_chunks;
      whole_blocks_ = kParts / block_chunks;
      other_chunks_ = kParts % block_chunks;
    }
  }

  // The next stage; behind the last one, zeros.
  __device__ __forceinline__ void copy(To& to) {
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int panel = thread_ / kPanelUnits + i * (kThreads / kPanelUnits), unit = thread_ % kPanelUnits;
      if (To::kPanels * kPanelUnits < kThreads && panel >= To::kPanels) break;
      ptx::copy_async(&to.weights[To::weight_unit(panel, unit / 4 / To::kSteps, unit / 4 % To::kSteps, unit % 4)],
                      words_ + i * (kThreads / kPanelUnits) * panel_units_,
                      panel < panels_left_ && weight_units_left_ > 0);
    }
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
      for (int i = 0; i < kRowCopies; ++i) {
        const int row = thread_ / kRowUnits + i * kRowsAtOnce, unit = thread_ % kRowUnits;
        ptx::copy_async(&to.x[To::x_unit(plane, unit / 4, row / 8, row % 8, unit % 4)],
                        x_ + plane * a_.x.plane_units + i * kRowsAtOnce * a_.x.row_units,
                        row < rows_left_ && x_units_left_ > 0);
      }
    if (parameters_) {
      ptx::copy_async(&to.parameters[0][0][0] + 4 * thread_, parameters_, true);
      // A range that ends early closes its last block behind its last chunk.
      chunks_left_ -= kParts;
      if (chunks_left_ > 0) {
        parameters_ += whole_blocks_ * PackedLayout::kPanelRows;
        chunk_of_block_ += other_chunks_;
        if (chunk_of_block_ >= block_chunks_) {
          chunk_of_block_ -= block_chunks_;
          parameters_ += PackedLayout::kPanelRows;
        }
      }
    }
    words_ += kParts * kChunkUnits;
    weight_units_left_ -= kParts * kChunkUnits;
    x_ += kParts * 4;
    x_units_left_ -= kParts * 4;
  }

 private:
  static constexpr int kWarpsK = To::kShape.warps_k, kParts = To::kChunks / kWarpsK;
  static constexpr int kChunkUnits = To::kSteps * 4;  // of a panel
  static constexpr int kPanelUnits = To::kChunks * kChunkUnits, kRowUnits = To::kChunks * 4;
  static constexpr int kWeightCopies = (To::kPanels * kPanelUnits + kThreads - 1) / kThreads;
  static constexpr int kRowsAtOnce = kThreads / kRowUnits, kRowCopies = To::kRows / kRowsAtOnce;
  static constexpr int kColumnUnits = To::kColumns / 4;
  static_assert(kThreads % kPanelUnits == 0, "a thread copies the same unit of panels");
  static_assert(kThreads % kRowUnits == 0 && To::kRows % kRowsAtOnce == 0, "whole copies of rows");
  static_assert(kThreads >= kArrays * kSets * kColumnUnits, "a thread copies one unit of parameters");

  // Where unit `unit` of the first stage lies in a panel or row, whose chunks are `size` units each; and the end of its
  // range.
  __device__ static int first_unit(const Ranges& ranges, int unit, int size) {
    const int chunk = unit / size;
    return (ranges.begin(chunk % kWarpsK) + chunk / kWarpsK) * size + unit % size;
  }
  __device__ static int last_unit(const Ranges& ranges, int unit, int size, int units) {
    const int end = ranges.end(unit / size % kWarpsK) * size;
    return end < units ? end : units;
  }

  const Arguments& a_;
  int thread_, panels_left_, rows_left_, weight_units_left_, x_units_left_;
  // Position of the parameters: chunks left of the range, and how a stage's chunks move through blocks.
  int block_chunks_, chunks_left_ = 0, chunk_of_block_ = 0, whole_blocks_ = 0, other_chunks_ = 0;
  std::int64_t panel_units_;
  const uint4* words_;
  const uint4* x_;
  const float* parameters_ = nullptr;  // null: nothing to copy
};

// A product of matrices: result m takes row m, all columns.
template <Size kSize, int kPlanes>
class GemmRows {
 public:
  static constexpr Shape kShape = Tuning::shape(kSize, kPlanes, false);
  static constexpr bool kWindow = false;
  using Given = Arguments;
  template <class To, int kSets, int kArrays>
  using CopierOf = Copier<To, kPlanes, kSets, kArrays>;

  __device__ explicit GemmRows(const Arguments& a) : a_(a) {}
  __device__ std::int64_t first_column() const { return blockIdx.x * static_cast<std::int64_t>(kShape.columns()); }
  __device__ std::int64_t last_column() const { return a_.w.n; }  // exclusive end
  __device__ std::int64_t first_row() const { return blockIdx.y * static_cast<std::int64_t>(kShape.rows()); }
  __device__ std::int64_t count() const { return a_.x.rows; }
  __device__ std::int64_t y_offset(int i) const {
    const std::int64_t m = a_.first_row + first_row() + i;
    return a_.y_row_stride ? m * a_.y_row_stride : a_.out.y.row_offset(m);
  }
  // Where the row of the tile's result `i` lies, in units.
  __device__ bool find(int i, std::int64_t, std::int64_t& unit) const {
    unit = (first_row() + i) * a_.x.row_units;
    return true;
  }

 private:
  const Arguments& a_;
};

}  // namespace qcore::sm80_float_mma
