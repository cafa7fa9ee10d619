#include <algorithm>

#include "formats/element.h"
#include "quantize/dequantize.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

// Values of a row that are computed together. The rows of a panel share the lines of their codes, which stay in the
// first-level cache from row to row.
constexpr std::int64_t kRunElements = 1024;
// Beyond this the result does not stay in the caches, and is written past them.
constexpr std::int64_t kPastCacheBytes = 8 << 20;

class RowDequantizer {
 public:
  RowDequantizer(const DequantizeProblem& problem, const DequantizeKernels& kernels)
      : weight_(problem.weight),
        layout_(weight_.layout),
        out_(problem.out),
        kernels_(kernels),
        reader_(weight_),
        places_(layout_),
        past_cache_(kernels.fence && out_.size() * item_size(out_.dtype) >= kPastCacheBytes) {}

  // Memory of a task for as many blocks of a row.
  struct Buffers {
    float *scales, *offsets;
    std::uint8_t* codes;  // of encoded weights, which are expanded
  };
  Buffers buffers(std::int64_t blocks, Scratch& scratch) const {
    return {scratch.take<float>(blocks), scratch.take<float>(blocks),
            weight_.encoded ? scratch.take<std::uint8_t>(blocks * expanded_bytes()) : nullptr};
  }

  // The blocks [first, end) of a row.
  void run(std::int64_t row, std::int64_t first, std::int64_t end, const Buffers& buffers) const {
    bool shifts = false;  // whether there are codes that 8 bits may not hold
    const std::int64_t parameter = places_.parameter(row, first);
    for (std::int64_t p = first, i = 0; p < end; ++p, ++i) {
      if (weight_.encoded) {
        const PackedWeight::BlockDecoder decoder = weight_.decoder(row, p);
        shifts = shifts || decoder.shift != 0;
        buffers.scales[i] = decoder.scale, buffers.offsets[i] = decoder.offset;
      } else {
        const std::int64_t at = parameter + i * PackedLayout::kPanelRows;
        buffers.scales[i] = weight_.scales[at];
        buffers.offsets[i] = weight_.offsets ? weight_.offsets[at] : 0.0f;
      }
    }
    DequantizeRun run{};
    run.block_size = layout_.block_size;
    run.count = (end - first - 1) * layout_.block_size + layout_.block_length(end - 1);
    run.scales = buffers.scales, run.offsets = buffers.offsets;
    run.past_cache = past_cache_ && !shifts;
    for (std::int64_t tap = 0; tap < layout_.taps; ++tap) {
      if (weight_.encoded) {
        expand(row, first, end, tap, buffers.codes);
        run.bits = 8;
        run.codes = buffers.codes, run.word_bytes = kWordBytes, run.block_bytes = expanded_bytes();
      } else {
        run.bits = layout_.bits;
        run.codes = weight_.codes + places_.first(row, first, tap), run.word_bytes = PackedLayout::kStepBytes;
        run.block_bytes = layout_.block_first_step(1) * PackedLayout::kStepBytes;
      }
      store(run, WeightRows{out_}.offset(row, layout_.block_begin(first), tap));
      if (shifts) store_shifted(row, first, end, tap);
    }
  }

  void finish() const {
    if (past_cache_) kernels_.fence();
  }

 private:
  static constexpr std::int64_t kWordBytes = 4;

  // Returns how many bytes the expanded codes of a block take, one for each code.
  std::int64_t expanded_bytes() const { return round_up(layout_.block_length(0), kWordBytes); }

  // Writes the codes of encoded blocks as words of 8 bits.
  void expand(std::int64_t row, std::int64_t first, std::int64_t end, std::int64_t tap, std::uint8_t* codes) const {
    const std::int64_t bytes = expanded_bytes();
    for (std::int64_t p = first; p < end; ++p)
      reader_.read(row, p, tap, reinterpret_cast<std::int8_t*>(codes + (p - first) * bytes));
    const auto zero = static_cast<std::uint8_t>(layout_.zero_code());
    for (std::int64_t i = 0; i < (end - first) * bytes; ++i) codes[i] ^= zero;
  }

  void store(const DequantizeRun& run, std::int64_t at) const {
    const std::int64_t stride = out_.strides[1];
    if (stride != 1) {
      Scratch scratch;
      float* values = scratch.take<float>(run.count);
      DequantizeRun kept = run;
      kept.past_cache = false;
      kernels_.to_float(kept, values);
      for (std::int64_t i = 0; i < run.count; ++i) store_float(out_.data, out_.dtype, at + i * stride, values[i]);
    } else if (out_.dtype == DType::f32) {
      kernels_.to_float(run, static_cast<float*>(out_.data) + at);
    } else {
      const auto convert = out_.dtype == DType::f16 ? kernels_.to_half : kernels_.to_bfloat;
      convert(run, static_cast<std::uint16_t*>(out_.data) + at);
    }
  }

  void store_shifted(std::int64_t row, std::int64_t first, std::int64_t end, std::int64_t tap) const {
    Scratch scratch;
    std::int8_t* codes = scratch.take<std::int8_t>(layout_.block_length(first));
    for (std::int64_t p = first; p < end; ++p) {
      const PackedWeight::BlockDecoder decoder = weight_.decoder(row, p);
      if (!decoder.shift) continue;
      reader_.read(row, p, tap, codes);
      const std::int64_t at = WeightRows{out_}.offset(row, layout_.block_begin(p), tap);
      for (std::int64_t i = 0; i < layout_.block_length(p); ++i)
        store_float(out_.data, out_.dtype, at + i * out_.strides[1], decoder.value(codes[i]));
    }
  }

  const PackedWeight& weight_;
  const PackedLayout& layout_;
  const TensorView& out_;
  const DequantizeKernels& kernels_;
  BlockReader reader_;
  BlockPlaces places_;
  bool past_cache_;
};

}  // namespace

void run_dequantize_cpu(const DequantizeProblem& problem, const DequantizeKernels& kernels) {
  const PackedLayout& layout = problem.weight.layout;
  if (layout.k == 0 || layout.taps == 0) return;
  const RowDequantizer rows(problem, kernels);
  const std::int64_t blocks = layout.blocks();
  const std::int64_t together = std::max<std::int64_t>(1, kRunElements / layout.block_size);
  const std::int64_t parts = ceil_div(blocks, together);
  parallel_for(layout.panels() * parts, [&](std::int64_t task) {
    const std::int64_t begin = task / parts * PackedLayout::kPanelRows, first = task % parts * together;
    const std::int64_t end = std::min(layout.n, begin + PackedLayout::kPanelRows);
    Scratch scratch;
    const auto buffers = rows.buffers(std::min(blocks, together), scratch);
    for (std::int64_t row = begin; row < end; ++row) rows.run(row, first, std::min(blocks, first + together), buffers);
    rows.finish();
  });
}

}  // namespace qcore
