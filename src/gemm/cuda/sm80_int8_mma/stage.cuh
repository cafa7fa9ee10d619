#pragma once

#include "gemm/cuda/device_operands.cuh"
#include "gemm/cuda/operand_stage.cuh"
#include "gemm/cuda/quantize_activations.cuh"

// Stages of a tile: operands, and at the end of a block the factors that promote its products.
namespace qcore::sm80_int8_mma {

// The larger a tile, the fewer bytes of the second-level cache per operation; the smaller, the more run at once. A
// matrix has `few` in the place of `small`: where few tiles run, a stage takes the time of one warp's work on it. Where
// its stages are whole blocks, it has `many` in the place of `large`: twice as many warps, for which others need too
// many registers.
enum class Size { few, small, large, many };

struct Tuning {
  static constexpr Shape shape(Size size) {
    switch (size) {
      case Size::few:
        return {2, 2, 1, 2};
      case Size::small:
        return {2, 2, 1, 4};
      case Size::many:
        return {4, 4, 1, 4};
      default:
        return {4, 2, 1, 8};
    }
  }
  // With fewer large tiles than this, small ones.
  static constexpr int kEnoughTiles = 96;

  // Copies ahead: of whole blocks of 32*chunks k.
  static constexpr int stages(int bits, int chunks) { return chunks < 4 ? 4 : bits == 4 ? 3 : 2; }
};

struct Arguments {
  QuantizedRows<std::int8_t> x;  // codes and terms; padded_block a multiple of 32
  std::int64_t first_row;        // of the results in out.y
  DeviceWeight w;
  DeviceOutput out;
  std::int64_t enough_tiles;
  std::int64_t y_row_stride = 0;  // linear's; 0: ask out.y
  bool store_fours = false;       // four neighbors of y lie side by side and aligned
};

// kArrays: scales and offsets of the weight, and for activations with offsets its sums.
template <int kBits, int kChunks, int kArrays, int kColumns, int kRows>
struct Stage : OperandStage<kBits, kChunks, kColumns, kRows> {
  ActivationTerms terms[kRows];
  float parameters[kArrays][kColumns];

  __device__ float4 scales(int column) const { return *reinterpret_cast<const float4*>(&parameters[0][column]); }
  __device__ float4 offsets(int column) const { return *reinterpret_cast<const float4*>(&parameters[1][column]); }
  __device__ float4 sums(int column) const {
    return *reinterpret_cast<const float4*>(&parameters[kArrays - 1][column]);
  }
};

// Copies a tile's stages, one after the other. `Rows` says which panels and rows of codes they are: a result has one
// row, or under each tap of a window another.
template <class Rows, int kThreads, int kBits, int kChunks, int kArrays, int kColumns, int kRows>
class Copier : private OperandCopier<kThreads, kBits, kChunks, kColumns, kRows> {
  using Operands = OperandCopier<kThreads, kBits, kChunks, kColumns, kRows>;
  using Operands::thread_;

 public:
  using To = Stage<kBits, kChunks, kArrays, kColumns, kRows>;

  __device__ Copier(const Arguments& a, const Rows& rows, int block_stages)
      : Operands(
            reinterpret_cast<const uint4*>(a.w.words) + rows.first_panel() * static_cast<int>(panel_steps(a.w) * 4),
            rows.last_panel() - rows.first_panel(), static_cast<int>(panel_steps(a.w) * 4),
            static_cast<int>(a.w.steps * 4)),
        x_(a.x),
        rows_(rows),
        block_stages_(block_stages) {
    const DeviceWeight& w = a.w;
    set_codes();
    // One thread per row copies its terms, the next ones a weight's parameters, 4 columns each.
    if (thread_ < kRows) {
      set_terms();
      to_ = kTermsAt + thread_ * static_cast<int>(sizeof(ActivationTerms));
      stride_ = a.x.rows * static_cast<std::int64_t>(sizeof(ActivationTerms));
    } else {
      const int array = (thread_ - kRows) / kParameterUnits, unit = (thread_ - kRows) % kParameterUnits;
      const float* parameters = array == 0 ? w.scales : array == 1 ? w.offsets : array < kArrays ? w.sums : nullptr;
      const std::int64_t panel = rows.first_panel() + unit / 4;
      if (parameters && panel < rows.last_panel())
        from_ = reinterpret_cast<const char*>(parameters + w.parameter_index(panel, 0, unit % 4 * 4));
      to_ = kParametersAt + array * kColumns * static_cast<int>(sizeof(float)) + 16 * unit;
      stride_ = PackedLayout::kPanelRows * static_cast<std::int64_t>(sizeof(float));
    }
    if constexpr (Rows::kWindow) {
      const std::int64_t parameters = w.blocks * stride_;
      // The first tap's parameters again, but for the sums.
      if (thread_ >= kRows)
        next_tap_ = (thread_ - kRows) / kParameterUnits == 2 ? parameters * (w.panels - 1) : -parameters;
      stages_ = static_cast<int>(w.blocks) * block_stages;
      tap_units_ = static_cast<int>(w.steps * 4);
    }
  }

  // The next stage.
  __device__ __forceinline__ void copy(To& to) {
    Operands::copy_weights(to);
    Operands::copy_codes(to);
    if (from_) ptx::copy_async(reinterpret_cast<char*>(&to) + to_, from_, !Rows::kWindow || has_terms_);
    Operands::next();
    if (++stage_of_block_ == block_stages_) {
      stage_of_block_ = 0;
      if (from_) from_ += stride_;
    }
    if constexpr (Rows::kWindow)
      if (++stage_of_tap_ == stages_) next_tap();
  }

 private:
  static constexpr int kParameterUnits = kColumns / 4;
  static constexpr int kTermsAt = sizeof(OperandStage<kBits, kChunks, kColumns, kRows>),
                       kParametersAt = kTermsAt + static_cast<int>(sizeof(ActivationTerms)) * kRows;
  static_assert(sizeof(To) == kParametersAt + sizeof(float) * kArrays * kColumns, "nothing lies between them");
  static_assert(kThreads >= kRows + kArrays * kParameterUnits, "a thread copies one of each");

  __device__ static std::int64_t panel_steps(const DeviceWeight& w) {
    return Rows::kWindow ? w.taps * w.steps : w.steps;
  }
  __device__ void set_codes() {
    const std::int64_t row = rows_.row(Operands::row());
    Operands::set_row(x_.codes + (row < 0 ? 0 : row) * x_.blocks * x_.padded_block, row >= 0);
  }
  // Where there is no row, a window's terms are zeros: that adds nothing to the results.
  __device__ void set_terms() {
    const std::int64_t row = rows_.row(thread_);
    has_terms_ = row >= 0;
    if (Rows::kWindow || has_terms_) from_ = reinterpret_cast<const char*>(&x_.terms[row < 0 ? 0 : row]);
  }
  __device__ void next_tap() {
    stage_of_tap_ = 0;
    rows_.next_tap();
    Operands::next_tap(stages_ * Operands::kPanelUnits, tap_units_);
    set_codes();
    if (thread_ < kRows)
      set_terms();
    else if (from_)
      from_ += next_tap_;
  }

  const QuantizedRows<std::int8_t>& x_;
  Rows rows_;
  int block_stages_, stage_of_block_ = 0;
  const char* from_ = nullptr;  // null: nothing to copy
  bool has_terms_ = true;       // of a window's row; else zeros are copied
  int to_;                      // in a stage
  std::int64_t stride_;         // from block to block
  // With a window only:
  int stage_of_tap_ = 0, stages_ = 0, tap_units_ = 0;
  std::int64_t next_tap_ = 0;
};

}  // namespace qcore::sm80_int8_mma
