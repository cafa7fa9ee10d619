#pragma once

#include <cstddef>

#include "linear/float_mma_kernels.cuh"
#include "runtime/ptx.cuh"

// What some chunks of a tile need, in shared memory, and how it gets there. Weights stay packed.
namespace qcore::float_mma {

// kSets: of parameters, one per chunk or one for the stage; kArrays: scales, and offsets.
template <Size kSize, int kBits, int kPlanes, int kSets, int kArrays>
struct Stage {
  static constexpr Shape kShape = Tuning::shape(kSize, kPlanes);
  static constexpr int kChunks = kShape.chunks, kColumns = kShape.columns(), kRows = kShape.rows();
  static constexpr int kSteps = kBits == 8 ? 8 : 4;  // packed steps in a chunk
  static constexpr int kPanels = kColumns / static_cast<int>(PackedLayout::kPanelRows);

  uint4 weights[kPanels * kChunks * kSteps * 4];
  uint4 x[kPlanes * kChunks * kRows * 4];
  float parameters[kArrays][kSets][kColumns];

  __device__ float4 scales(int set, int column) const {
    return *reinterpret_cast<const float4*>(&parameters[0][set][column]);
  }
  __device__ float4 offsets(int set, int column) const {
    return *reinterpret_cast<const float4*>(&parameters[kArrays - 1][set][column]);
  }

  // Lines of 128 bytes are two steps. Lanes that differ in the step and in the lowest bit of the unit, 4 columns n,
  // read at once: the exclusive or spreads them over the banks.
  __device__ static int weight_unit(int panel, int chunk, int step, int unit) {
    const int line = step / 2;
    return (panel * kChunks + chunk) * kSteps * 4 + line * 8 + ((step % 2 * 4 + unit) ^ (2 * (line % (kSteps / 2))));
  }
  // Lanes read 8 k each, eight lanes two neighbouring rows: 128 bytes. A row's chunks are written at once; those of odd
  // numbers have neighbouring rows exchanged, which puts two chunks on all banks.
  __device__ static int x_unit(int plane, int chunk, int row, int quad) {
    return ((plane * kChunks + chunk) * kRows + (row ^ (chunk & 1))) * 4 + quad;
  }
};

// Copies a tile's stages, one after the other. As every block is whole chunks but the last one, chunk i starts at step
// i*kSteps of each panel and at unit 4*i of each row. What a thread copies lies at the same place of every stage.
template <class To, int kPlanes, int kSets, int kArrays>
class Copier {
 public:
  __device__ Copier(const Arguments& a, int chunks, int block_chunks)
      : a_(a), thread_(static_cast<int>(threadIdx.x)), chunks_(chunks), block_chunks_(block_chunks) {
    const DeviceWeight& w = a.w;
    const std::int64_t first_panel = static_cast<std::int64_t>(blockIdx.x) * To::kPanels;
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * To::kRows;
    panels_left_ = static_cast<int>(w.panels - first_panel < To::kPanels ? w.panels - first_panel : To::kPanels);
    rows_left_ = static_cast<int>(a.x.rows - first_row < To::kRows ? a.x.rows - first_row : To::kRows);
    panel_units_ = w.steps * 4;
    weight_units_left_ = static_cast<int>(panel_units_) - thread_ % kPanelUnits;
    x_units_left_ = static_cast<int>(a.x.units) - thread_ % kRowUnits;
    words_ = reinterpret_cast<const uint4*>(w.words) + (first_panel + thread_ / kPanelUnits) * panel_units_ +
             thread_ % kPanelUnits;
    x_ = a.x.values + (first_row + thread_ / kRowUnits) * a.x.row_units + thread_ % kRowUnits;

    const int unit = thread_ % kColumnUnits, array = thread_ / (kSets * kColumnUnits);
    set_ = thread_ / kColumnUnits % kSets;
    if (array < kArrays) {
      const bool exists = first_panel + unit / 4 < w.panels;
      parameters_ = (array == 0 ? w.scales : w.offsets) +
                    w.parameter_index(exists ? first_panel + unit / 4 : 0, 0, unit % 4 * 4);
      panel_exists_ = exists;
    }
  }

  // The next stage.
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
        ptx::copy_async(&to.x[To::x_unit(plane, unit / 4, row, unit % 4)],
                        x_ + plane * a_.x.plane_units + i * kRowsAtOnce * a_.x.row_units,
                        row < rows_left_ && x_units_left_ > 0);
      }
    if (parameters_) {
      const int chunk = chunk_ + set_, p = chunk / block_chunks_;
      ptx::copy_async(&to.parameters[0][0][0] + 4 * thread_, parameters_ + p * PackedLayout::kPanelRows,
                      panel_exists_ && chunk < chunks_);
    }
    words_ += kPanelUnits;
    weight_units_left_ -= kPanelUnits;
    x_ += kRowUnits;
    x_units_left_ -= kRowUnits;
    chunk_ += To::kChunks;
  }

 private:
  static constexpr int kPanelUnits = To::kChunks * To::kSteps * 4, kRowUnits = To::kChunks * 4;
  static constexpr int kWeightCopies = (To::kPanels * kPanelUnits + kThreads - 1) / kThreads;
  static constexpr int kRowsAtOnce = kThreads / kRowUnits, kRowCopies = To::kRows / kRowsAtOnce;
  static constexpr int kColumnUnits = To::kColumns / 4;
  static_assert(kThreads % kPanelUnits == 0, "a thread copies the same unit of panels");
  static_assert(kThreads % kRowUnits == 0 && To::kRows % kRowsAtOnce == 0, "whole copies of rows");
  static_assert(kThreads >= kArrays * kSets * kColumnUnits, "a thread copies one unit of parameters");

  const Arguments& a_;
  int thread_, set_, panels_left_, rows_left_, weight_units_left_, x_units_left_;
  bool panel_exists_ = false;
  int chunks_, block_chunks_, chunk_ = 0;
  std::int64_t panel_units_;
  const uint4* words_;
  const uint4* x_;
  const float* parameters_ = nullptr;  // null: nothing to copy
};

}  // namespace qcore::float_mma
