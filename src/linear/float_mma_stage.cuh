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
  // `row` is below 8.
  __device__ static int x_unit(int plane, int chunk, int eight, int row, int quad) {
    return ((plane * kChunks + chunk) * kRows + 8 * eight) * 4 + (row ^ (chunk & 1)) * 4 + quad;
  }
};

// Which chunks of k a stage holds. Each of the warps that share K takes a range of it, and a stage holds `parts`
// successive chunks of every range; chunk i of a stage is part i / warps_k of range i % warps_k.
struct Ranges {
  int chunks;  // of K
  int length;  // of a range, in chunks
  int parts;

  __device__ Ranges(int chunks_, int warps_k, int parts_) : chunks(chunks_), parts(parts_) {
    length = ((chunks + warps_k - 1) / warps_k + parts - 1) / parts * parts;
  }
  __device__ int stages() const { return length / parts; }
  __device__ int begin(int range) const { return range * length; }
  __device__ int end(int range) const { return chunks - begin(range) < length ? chunks : begin(range) + length; }
};

// Copies a tile's stages, one after the other. As every block is whole chunks but the last one, chunk i starts at step
// i*kSteps of each panel and at unit 4*i of each row. What a thread copies lies at the same place of every stage.
template <class To, int kPlanes, int kSets, int kArrays>
class Copier {
 public:
  __device__ Copier(const Arguments& a, const Ranges& ranges, int block_chunks)
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
  // Of the parameters: chunks of the range from here on, and how a stage's chunks move through blocks.
  int block_chunks_, chunks_left_ = 0, chunk_of_block_ = 0, whole_blocks_ = 0, other_chunks_ = 0;
  std::int64_t panel_units_;
  const uint4* words_;
  const uint4* x_;
  const float* parameters_ = nullptr;  // null: nothing to copy
};

}  // namespace qcore::float_mma
