#pragma once

#include <cstddef>

#include "linear/fused_kernels.cuh"
#include "runtime/ptx.cuh"

// What one step of a tile needs, in shared memory, and how it gets there. Weights stay packed.
namespace qcore::fused {

// kArrays: scales and offsets of the weight, and for activations with offsets its sums.
template <int kBits, int kChunks, int kArrays, int kColumns, int kRows>
struct Stage {
  static constexpr int kSteps = kBits == 8 ? 8 : 4;  // packed steps in a chunk
  static constexpr int kPanels = kColumns / static_cast<int>(PackedLayout::kPanelRows);

  uint4 weights[kPanels * kChunks * kSteps * 4];
  uint4 codes[kChunks * kRows * 2];
  ActivationTerms terms[kRows];
  float parameters[kArrays][kColumns];

  __device__ float4 scales(int column) const { return *reinterpret_cast<const float4*>(&parameters[0][column]); }
  __device__ float4 offsets(int column) const { return *reinterpret_cast<const float4*>(&parameters[1][column]); }
  __device__ float4 sums(int column) const {
    return *reinterpret_cast<const float4*>(&parameters[kArrays - 1][column]);
  }

  // Lines of 128 bytes are two steps. Lanes that differ in the step and in the lowest bit of the unit, 4 columns n,
  // read at once: the exclusive or spreads them over the banks.
  __device__ static int weight_unit(int panel, int chunk, int step, int unit) {
    const int line = step / 2;
    return (panel * kChunks + chunk) * kSteps * 4 + line * 8 + ((step % 2 * 4 + unit) ^ (2 * (line % (kSteps / 2))));
  }
  // A chunk's rows lie 32 bytes apart, so that 8-byte reads of four rows take every bank once.
  __device__ static int code_unit(int chunk, int row, int half) { return (chunk * kRows + row) * 2 + half; }
};

// Copies a tile's stages, one after the other. As every block is whole 32 k but the last one, stage i starts at step
// i*kChunks*kSteps of each panel and at code i*32*kChunks of each row. What a thread copies lies at the same place of
// every stage, so that all it keeps are pointers.
template <int kThreads, int kBits, int kChunks, int kArrays, int kColumns, int kRows>
class Copier {
 public:
  using To = Stage<kBits, kChunks, kArrays, kColumns, kRows>;

  __device__ Copier(const Arguments& a, int block_stages)
      : thread_(static_cast<int>(threadIdx.x)), block_stages_(block_stages) {
    const DeviceWeight& w = a.w;
    const std::int64_t first_panel = static_cast<std::int64_t>(blockIdx.x) * To::kPanels;
    const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kRows;
    panels_left_ = static_cast<int>(w.panels - first_panel < To::kPanels ? w.panels - first_panel : To::kPanels);
    panel_units_ = static_cast<int>(w.steps * 4);
    units_left_ = panel_units_ - thread_ % kPanelUnits;
    words_ = reinterpret_cast<const uint4*>(w.words) + first_panel * panel_units_ + thread_ % kPanelUnits;

    const std::int64_t row = first_row + thread_ / 2 % kRows;
    has_row_ = row < a.x.rows;
    codes_ = a.x.codes + (has_row_ ? row : 0) * a.x.blocks * a.x.padded_block + thread_ % 2 * 16;

    // One thread per row copies its terms, the next ones a weight's parameters, 4 columns each.
    if (thread_ < kRows) {
      if (first_row + thread_ < a.x.rows) from_ = reinterpret_cast<const char*>(&a.x.terms[first_row + thread_]);
      to_ = kTermsAt + thread_ * static_cast<int>(sizeof(ActivationTerms));
      stride_ = a.x.rows * static_cast<std::int64_t>(sizeof(ActivationTerms));
    } else {
      const int array = (thread_ - kRows) / kParameterUnits, unit = (thread_ - kRows) % kParameterUnits;
      const float* parameters = array == 0 ? w.scales : array == 1 ? w.offsets : array < kArrays ? w.sums : nullptr;
      if (parameters && first_panel + unit / 4 < w.panels)
        from_ = reinterpret_cast<const char*>(parameters + w.parameter_index(first_panel + unit / 4, 0, unit % 4 * 4));
      to_ = kParametersAt + array * kColumns * static_cast<int>(sizeof(float)) + 16 * unit;
      stride_ = PackedLayout::kPanelRows * static_cast<std::int64_t>(sizeof(float));
    }
  }

  // The next stage.
  __device__ __forceinline__ void copy(To& to) {
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int panel = thread_ / kPanelUnits + i * (kThreads / kPanelUnits), unit = thread_ % kPanelUnits;
      if (kThreads * (i + 1) > To::kPanels * kPanelUnits && panel >= To::kPanels) break;
      ptx::copy_async(&to.weights[To::weight_unit(panel, unit / 4 / To::kSteps, unit / 4 % To::kSteps, unit % 4)],
                      words_ + (panel < panels_left_ ? panel : 0) * panel_units_,
                      panel < panels_left_ && units_left_ > 0);
    }
#pragma unroll
    for (int i = 0; i < kChunks; i += kChunksAtOnce) {
      const int chunk = i + thread_ / (2 * kRows);
      if (i + kChunksAtOnce > kChunks && chunk >= kChunks) break;
      ptx::copy_async(&to.codes[To::code_unit(chunk, thread_ / 2 % kRows, thread_ % 2)], codes_ + chunk * kChunk,
                      has_row_);
    }
    if (from_) ptx::copy_async(reinterpret_cast<char*>(&to) + to_, from_, true);

    words_ += kPanelUnits;
    units_left_ -= kPanelUnits;
    codes_ += kChunks * kChunk;
    if (++stage_of_block_ == block_stages_) {
      stage_of_block_ = 0;
      if (from_) from_ += stride_;
    }
  }

 private:
  static constexpr int kPanelUnits = kChunks * To::kSteps * 4;
  static constexpr int kWeightCopies = (To::kPanels * kPanelUnits + kThreads - 1) / kThreads;
  static constexpr int kParameterUnits = kColumns / 4;
  static constexpr int kTermsAt = offsetof(To, terms), kParametersAt = offsetof(To, parameters);
  static constexpr int kChunksAtOnce = kThreads / (2 * kRows);
  static_assert(kThreads % (2 * kRows) == 0, "a thread copies half a row's chunk");
  static_assert(kThreads >= kRows + kArrays * kParameterUnits && kThreads % kPanelUnits == 0,
                "a thread copies one of each");

  int thread_, block_stages_, stage_of_block_ = 0;
  int panels_left_, panel_units_, units_left_;
  bool has_row_;
  const uint4* words_;
  const std::int8_t* codes_;
  const char* from_ = nullptr;  // null: nothing to copy
  int to_;                      // in a stage
  std::int64_t stride_;         // from block to block
};

}  // namespace qcore::fused
