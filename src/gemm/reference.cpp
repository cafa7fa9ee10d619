#include "formats/compute_mode.h"
#include "gemm/epilogue.h"
#include "gemm/product.h"
#include "numerics/activation_block.h"
#include "numerics/block_product.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

using numerics::BlockScale;

class Reference {
 public:
  explicit Reference(const BlockProduct& product)
      : product_(product),
        w_(*product.weight),
        reader_(w_),
        integer_(product.compute != ComputeMode::floating),
        mode_(activation_mode(product.compute, product.scales.source == ActivationScales::Source::fixed)),
        weight_sums_(product.compute == ComputeMode::int8_asym ? w_.weight_sums() : nullptr) {}

  // Computes one row of y.
  void run(std::int64_t result) const {
    for (std::int64_t group = 0; group < product_.groups; ++group) run(result, group);
  }

 private:
  // One group of channels.
  void run(std::int64_t result, std::int64_t group) const {
    const numerics::WindowAxis &rows = product_.rows, &columns = product_.columns;
    const PackedLayout& layout = w_.layout;
    const std::int64_t outputs = product_.outputs_per_group(), line = result / columns.output;
    const std::int64_t first = product_.expert_of(result) * product_.outputs() + group * outputs;
    Scratch scratch;
    float* totals = scratch.take<float>(outputs);
    float* values = scratch.take<float>(layout.k);
    auto* codes = scratch.take<std::int32_t>(layout.k);
    auto* block = scratch.take<std::int8_t>(layout.block_length(0));
    for (std::int64_t o = 0; o < outputs; ++o) totals[o] = 0.0f;
    for (std::int64_t tap = 0; tap < layout.taps; ++tap) {
      const std::int64_t h = rows.at(line % rows.output, tap / columns.kernel);
      const std::int64_t w = columns.at(result % columns.output, tap % columns.kernel);
      if (h < 0 || w < 0) continue;
      const std::int64_t row = product_.x.row_offset((line / rows.output * rows.input + h) * columns.input + w);
      const auto place = [&](std::int64_t k) { return row + (group * layout.k + k) * product_.x.column_stride; };
      if (product_.scales.given()) {
        for (std::int64_t k = 0; k < layout.k; ++k) codes[k] = load_code(product_.x.data, product_.x.dtype, place(k));
      } else {
        for (std::int64_t k = 0; k < layout.k; ++k) values[k] = load_float(product_.x.data, product_.x.dtype, place(k));
      }
      for (std::int64_t p = 0; p < layout.blocks(); ++p) {
        if (integer_)
          add_codes(block_of(values, result, p, codes), codes, tap, p, first, block, totals);
        else
          add_values(values, tap, p, first, block, totals);
      }
    }
    for (std::int64_t o = 0; o < outputs; ++o)
      store_result(product_, product_.y.row_offset(result) + (group * outputs + o) * product_.y.column_stride,
                   first + o, totals[o]);
  }

  // Each block's products are summed first, then added to the total: the error grows with the block, not with K.
  // `block` has room for the codes of one.
  void add_values(const float* values, std::int64_t tap, std::int64_t p, std::int64_t first, std::int8_t* block,
                  float* totals) const {
    const std::int64_t begin = w_.layout.block_begin(p), length = w_.layout.block_length(p);
    for (std::int64_t o = 0; o < product_.outputs_per_group(); ++o) {
      const float scale = w_.scale(first + o, p), offset = w_.offset(first + o, p);
      reader_.read(first + o, p, tap, block);
      float sum = 0.0f;
      for (std::int64_t k = 0; k < length; ++k)
        sum = numerics::fma_once(values[begin + k], numerics::decode(block[k], scale, offset), sum);
      totals[o] += sum;
    }
  }

  // Returns the parameters of a block of a row of x, whose codes it writes, unless x holds codes.
  BlockScale block_of(const float* values, std::int64_t row, std::int64_t p, std::int32_t* codes) const {
    const ActivationScales& scales = product_.scales;
    const auto parameter = [&](const RowView& from) {
      const std::int64_t at = from.row_offset(row) + p / scales.blocks_per_scale * from.column_stride;
      return static_cast<const float*>(from.data)[at];
    };
    if (scales.given()) return {parameter(scales.scales), 1.0f, scales.offsets.data ? parameter(scales.offsets) : 0.0f};
    const std::int64_t begin = w_.layout.block_begin(p), end = begin + w_.layout.block_length(p);
    const bool per_row = scales.source == ActivationScales::Source::per_row;
    const BlockScale scale = numerics::activation_scale_of(per_row ? values : values + begin,
                                                           per_row ? w_.layout.k : end - begin, mode_, scales.fixed);
    for (std::int64_t k = begin; k < end; ++k) codes[k] = numerics::activation_code(values[k], scale, mode_);
    return scale;
  }

  void add_codes(const BlockScale& scale, const std::int32_t* codes, std::int64_t tap, std::int64_t p,
                 std::int64_t first, std::int8_t* block, float* totals) const {
    const PackedLayout& layout = w_.layout;
    const std::int64_t length = layout.block_length(p);
    codes += layout.block_begin(p);
    std::int64_t sum = 0;
    for (std::int64_t k = 0; k < length; ++k) sum += codes[k];
    for (std::int64_t o = 0; o < product_.outputs_per_group(); ++o) {
      const std::int64_t row = first + o;
      reader_.read(row, p, tap, block);
      std::int64_t acc = 0;
      for (std::int64_t k = 0; k < length; ++k) acc += std::int64_t{codes[k]} * block[k];
      float y = numerics::add_product(totals[o], acc, scale.scale, w_.scale(row, p));
      if (w_.has_offsets())
        y = numerics::add_weight_offset(y, scale.scale * static_cast<float>(sum), w_.offset(row, p));
      if (weight_sums_)
        y = numerics::add_activation_offset(
            y, scale.offset, weight_sums_[tap * layout.parameter_count() + layout.parameter_index(row, p)]);
      totals[o] = y;
    }
  }

  const BlockProduct& product_;
  const PackedWeight& w_;
  BlockReader reader_;
  bool integer_;
  int mode_;
  const float* weight_sums_;
};

}  // namespace

void run_product_reference(const BlockProduct& product) {
  const Reference reference(product);
  parallel_for(product.results(), [&](std::int64_t result) { reference.run(result); });
}

}  // namespace qcore
