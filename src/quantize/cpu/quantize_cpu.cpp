#include <algorithm>

#include "formats/element.h"
#include "quantize/block_search.h"
#include "quantize/dispatch.h"
#include "quantize/pack_weight.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

// Rows of a task: all rows of a panel write to the same cache lines.
constexpr std::int64_t kTaskElements = 2048;

// fp32 values [taps][length] of a block, or those of one tap where the weight has them in one piece.
class WeightReader {
 public:
  WeightReader(const QuantizeProblem& problem, const QuantizeKernels& kernels, float* buffer)
      : view_(problem.weight), taps_(problem.packed.layout.taps), kernels_(kernels), buffer_(buffer) {}

  const float* read(std::int64_t row, std::int64_t begin, std::int64_t length) const {
    const WeightRows rows{view_};
    if (taps_ == 1 && view_.strides[1] == 1) {
      const std::int64_t at = rows.offset(row, begin, 0);
      if (view_.dtype == DType::f32) return static_cast<const float*>(view_.data) + at;
      kernels_.load(static_cast<const std::uint16_t*>(view_.data) + at, view_.dtype == DType::bf16, length, buffer_);
      return buffer_;
    }
    for (std::int64_t tap = 0; tap < taps_; ++tap) gather(rows.offset(row, begin, tap), length, buffer_ + tap * length);
    return buffer_;
  }

 private:
  void gather(std::int64_t at, std::int64_t length, float* to) const {
    const std::int64_t stride = view_.strides[1];
    for (std::int64_t i = 0; i < length; ++i) to[i] = load_float(view_.data, view_.dtype, at + i * stride);
  }

  const TensorView& view_;
  std::int64_t taps_;
  const QuantizeKernels& kernels_;
  float* buffer_;
};

// Searches the blocks [first, end) of up to SearchedBlocks::kLanes rows, which stand side by side.
class RowsSearch {
 public:
  RowsSearch(const QuantizeProblem& problem, const QuantizeKernels& kernels, const NearestForm& form, Scratch& scratch)
      : problem_(problem), kernels_(kernels), form_(form), layout_(problem.packed.layout), writer_(problem.packed) {
    const std::int64_t longest = layout_.block_length(0) * layout_.taps;
    row_ = scratch.take<float>(longest);
    values_ = scratch.take<float>(longest * kLanes);
    importance_ = problem.options.importance ? scratch.take<float>(longest) : nullptr;
    codes_ = scratch.take<std::int8_t>(longest * kLanes);
    row_codes_ = scratch.take<std::int8_t>(layout_.block_length(0));
  }

  void run(std::int64_t first_row, std::int64_t rows, std::int64_t p) {
    const std::int64_t length = layout_.block_length(p), count = length * layout_.taps;
    const WeightReader reader(problem_, kernels_, row_);
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {  // lanes without a row repeat the last one
      const std::int64_t row = first_row + std::min(lane, rows - 1);
      const float* values = reader.read(row, layout_.block_begin(p), length);
      for (std::int64_t i = 0; i < count; ++i) values_[i * kLanes + lane] = values[i];
    }
    if (importance_) read_importance(p, length, count);
    numerics::BlockScale scales[kLanes];
    kernels_.search_blocks({values_, importance_, count}, form_, scales, codes_);
    for (std::int64_t lane = 0; lane < rows; ++lane) {
      const std::int64_t row = first_row + lane;
      check_parameters(scales[lane], row, p);
      writer_.set_parameters(row, p, scales[lane].scale, scales[lane].offset);
      for (std::int64_t tap = 0; tap < layout_.taps; ++tap) {
        for (std::int64_t i = 0; i < length; ++i) row_codes_[i] = codes_[(tap * length + i) * kLanes + lane];
        writer_.set_block(row, p, tap, row_codes_, length);
      }
    }
  }

 private:
  static constexpr std::int64_t kLanes = SearchedBlocks::kLanes;

  void read_importance(std::int64_t p, std::int64_t length, std::int64_t count) {
    const TensorView& importance = *problem_.options.importance;
    for (std::int64_t i = 0; i < count; ++i)
      importance_[i] =
          load_float(importance.data, DType::f32, (layout_.block_begin(p) + i % length) * importance.strides[0]);
  }

  const QuantizeProblem& problem_;
  const QuantizeKernels& kernels_;
  const NearestForm& form_;
  const PackedLayout& layout_;
  PackedWriter writer_;
  float *row_, *values_, *importance_;
  std::int8_t *codes_, *row_codes_;
};

}  // namespace

void run_quantize_cpu(const QuantizeProblem& problem, const QuantizeKernels& kernels) {
  const QuantizeOptions& options = problem.options;
  const PackedLayout& layout = problem.packed.layout;
  if (layout.n == 0 || layout.k == 0 || layout.taps == 0) return;
  const NearestForm form{options.bits, options.scheme == Scheme::symmetric, options.scale_dtype == DType::f16,
                         lowest_code(options)};
  PackedWriter writer(problem.packed);
  const std::int64_t longest = layout.block_length(0) * layout.taps;
  const std::int64_t together = std::max<std::int64_t>(1, kTaskElements / longest);
  const std::int64_t parts = ceil_div(layout.blocks(), together);
  parallel_for(layout.panels() * parts, [&](std::int64_t task) {
    Scratch scratch;
    const std::int64_t first_row = task / parts * PackedLayout::kPanelRows, first = task % parts * together;
    const std::int64_t rows = std::min(layout.n, first_row + PackedLayout::kPanelRows);
    const std::int64_t end = std::min(layout.blocks(), first + together);
    if (options.method != Method::rtn) {
      RowsSearch search(problem, kernels, form, scratch);
      for (std::int64_t row = first_row; row < rows; row += SearchedBlocks::kLanes)
        for (std::int64_t p = first; p < end; ++p)
          search.run(row, std::min<std::int64_t>(SearchedBlocks::kLanes, rows - row), p);
      return;
    }
    const WeightReader reader(problem, kernels, scratch.take<float>(longest));
    std::int8_t* codes = scratch.take<std::int8_t>(longest);
    for (std::int64_t row = first_row; row < rows; ++row)
      for (std::int64_t p = first; p < end; ++p) {
        const std::int64_t length = layout.block_length(p);
        const float* values = reader.read(row, layout.block_begin(p), length);
        const auto scale = kernels.quantize_block(values, length * layout.taps, form, codes);
        check_parameters(scale, row, p);
        writer.set_parameters(row, p, scale.scale, scale.offset);
        for (std::int64_t tap = 0; tap < layout.taps; ++tap)
          writer.set_block(row, p, tap, codes + tap * length, length);
      }
  });
}

}  // namespace qcore
