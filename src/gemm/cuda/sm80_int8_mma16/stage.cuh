#pragma once

#include "gemm/cuda/sm80_int8_mma16/arguments.cuh"
#include "gemm/cuda/sm80_int8_mma16/ptx.cuh"

// Stages of a tile in shared memory, some blocks each, and how they get there.
namespace qcore::sm80_int8_mma16 {

template <int kBits, Terms kTerms, Size kSize>
struct alignas(16) Stage {
  static constexpr Shape kShape = Tuning::shape(kSize);
  static constexpr int kBlocks = Tuning::kStageBlocks, kChunks = kBlocks / 2;
  static constexpr int kRows = kShape.rows(), kPanelRows = static_cast<int>(PackedLayout::kPanelRows);
  static constexpr int kPanels = kShape.columns() / kPanelRows, kThreads = kShape.threads();
  static constexpr int kBlockUnits = 2 * kBits, kPanelUnits = kBlocks * kBlockUnits;  // of 16 bytes
  // Scales; then offsets of the weight and its sums. Activations have all three arrays or one.
  static constexpr int kArrays = kTerms == Terms::products ? 1 : kTerms == Terms::weight_offsets ? 2 : 3;
  static constexpr int kRowArrays = kTerms == Terms::products ? 1 : 3;

  uint4 weights[kPanels][kPanelUnits];
  uint4 codes[kChunks * kRows * 2];
  float columns[kArrays][kPanels][kBlocks][kPanelRows];
  float rows[kBlocks][kRowArrays][kRows];

  // Lines of 128 bytes are four rows of a chunk. The exclusive or spreads over the banks what is read at once: a block
  // of eight rows, or of four pairs of them that lie four apart.
  __device__ static int code_unit(int chunk, int row, int half) { return swizzled((chunk * kRows + row) * 2 + half); }
  __device__ static int swizzled(int unit) { return unit ^ (unit >> 3 & 1) ^ (unit >> 2 & 4); }
};

// Copies a tile's stages, one after the other. What a thread copies lies at the same place of every stage, so that all
// it keeps are pointers.
template <int kBits, Terms kTerms, Size kSize>
class Copier {
 public:
  using To = Stage<kBits, kTerms, kSize>;

  __device__ explicit Copier(const Arguments& a)
      : thread_(static_cast<int>(threadIdx.x)), blocks_left_(static_cast<int>(a.w.blocks)) {
    const DeviceWeight& w = a.w;
    const std::int64_t first_panel = static_cast<std::int64_t>(blockIdx.x) * To::kPanels, tile = blockIdx.y;
    // Behind the last panel there are parameters of the last one again; their results are not stored.
    const auto panel_at = [&](int panel) {
      return first_panel + panel < w.panels ? first_panel + panel : w.panels - 1;
    };
    const std::int64_t panel_units = w.steps * 4;
    const int unit = thread_ % To::kPanelUnits, panel = thread_ / To::kPanelUnits;
    words_ = reinterpret_cast<const uint4*>(w.words) + (first_panel + panel) * panel_units + unit;
    next_words_ = kPanelsAtOnce * panel_units;
    panels_left_ =
        static_cast<int>(w.panels - first_panel < To::kPanels ? w.panels - first_panel : To::kPanels) - panel;
    units_left_ = static_cast<int>(panel_units) - unit;
    codes_ = reinterpret_cast<const uint4*>(a.x.codes + tile * a.x.tiled.stages * (To::kRows * TiledRows::kChunkK)) +
             thread_;
    const float* rows = a.x.tiled.parameters + tile * w.blocks * (To::kRowArrays * To::kRows);
    const int column_unit = thread_ % kBlockColumnUnits;
#pragma unroll
    for (int i = 0; i < kParameterCopies; ++i) {
      const int at = thread_ + i * To::kThreads, array = at / kArrayUnits;
      if (at < kColumnUnits) {
        const float* from = array == 0 || !(array == 1 ? w.offsets : w.sums) ? w.scales
                            : array == 1                                     ? w.offsets
                                                                             : w.sums;
        parameters_[i] = reinterpret_cast<const char*>(
            from + w.parameter_index(panel_at(at % kArrayUnits / kBlockColumnUnits), 0, 0) + 4 * column_unit);
        block_[i] = column_unit / 4;
      } else {
        parameters_[i] = reinterpret_cast<const char*>(rows) + 16 * (at - kColumnUnits);
        block_[i] = -1;
      }
    }
  }

  // The next stage.
  __device__ __forceinline__ void copy(To& to) {
    const uint4* words = words_;
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i, words += next_words_) {
      const bool exists = i * kPanelsAtOnce < panels_left_ && units_left_ > 0;
      ptx::copy_async(to.weights[0] + thread_ + i * To::kThreads, words, exists);
    }
    const int place = To::swizzled(thread_);
#pragma unroll
    for (int i = 0; i < kCodeCopies; ++i)
      ptx::copy_async(&to.codes[place + i * To::kThreads], codes_ + i * To::kThreads, true);
    char* parameters = reinterpret_cast<char*>(to.columns) + 16 * thread_;
#pragma unroll
    for (int i = 0; i < kParameterCopies; ++i) {
      if (To::kThreads * (i + 1) > kParameterUnits && thread_ + To::kThreads * i >= kParameterUnits) break;
      ptx::copy_async(parameters + 16 * To::kThreads * i, parameters_[i], block_[i] < blocks_left_);
      parameters_[i] += block_[i] < 0 ? kRowBytes : kColumnBytes;
    }
    words_ += To::kPanelUnits;
    units_left_ -= To::kPanelUnits;
    codes_ += sizeof(To::codes) / 16;
    blocks_left_ -= To::kBlocks;
  }

 private:
  static constexpr int kBlockColumnUnits = To::kBlocks * To::kPanelRows / 4;
  static constexpr int kArrayUnits = To::kPanels * kBlockColumnUnits, kColumnUnits = To::kArrays * kArrayUnits;
  static constexpr int kRowBytes = static_cast<int>(sizeof(To::rows));
  static constexpr int kColumnBytes = To::kBlocks * To::kPanelRows * static_cast<int>(sizeof(float));
  static constexpr int kParameterUnits = kColumnUnits + kRowBytes / 16;
  static constexpr int kPanelsAtOnce = To::kThreads / To::kPanelUnits;
  static constexpr int kWeightCopies = To::kPanels * To::kPanelUnits / To::kThreads;
  static constexpr int kCodeCopies = static_cast<int>(sizeof(To::codes)) / 16 / To::kThreads;
  static_assert(To::kThreads % To::kPanelUnits == 0 && kCodeCopies > 0, "a thread copies the same unit of every panel");
  static constexpr int kParameterCopies = (kParameterUnits + To::kThreads - 1) / To::kThreads;
  static_assert(To::kThreads % kBlockColumnUnits == 0, "a thread copies the same block of every array");

  int thread_, blocks_left_, panels_left_, units_left_;  // units of a panel
  const uint4* words_;
  std::int64_t next_words_;  // from those of a panel to those of the next one that the thread copies
  const uint4* codes_;
  const char* parameters_[kParameterCopies];
  int block_[kParameterCopies];  // of a weight's parameters, in a stage; -1: parameters of rows, behind which is memory
};

}  // namespace qcore::sm80_int8_mma16
