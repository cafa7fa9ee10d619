#include <algorithm>

#include "activations/dispatch.h"
#include "gemm/cpu/row_packer.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

// Codes and parameters that lie as tiles of linear read them, brought to the caller's arrays.
class PackedReader {
 public:
  PackedReader(const ActivationsProblem& problem, const PackedLayout& layout, const PackedRows& rows, int code_bytes)
      : problem_(problem),
        layout_(layout),
        rows_(rows),
        code_bytes_(code_bytes),
        blocks_(layout.blocks()),
        block_k_(layout.block_first_step(1) * layout.step_k()) {}

  void store(std::int64_t row, const char* from) const {
    store_parameters(problem_.scales, row, from + PackedRows::kScale * blocks_ * kFloatBytes);
    if (problem_.offsets.data)
      store_parameters(problem_.offsets, row, from + PackedRows::kOffset * blocks_ * kFloatBytes);
    if (problem_.mode == ComputeMode::int16)
      store_codes<std::int16_t, std::int16_t>(row, from + rows_.codes);
    else if (code_bytes_ == 1)
      copy_codes(row, from + rows_.codes);
    else  // sets of instructions that multiply 16 bits
      store_codes<std::int16_t, std::int8_t>(row, from + rows_.codes);
  }

 private:
  static constexpr std::int64_t kFloatBytes = sizeof(float);

  template <class Packed, class Code>
  void store_codes(std::int64_t row, const char* from) const {
    const RowView& codes = problem_.codes;
    Code* to = static_cast<Code*>(const_cast<void*>(codes.data)) + codes.row_offset(row);
    const auto* packed = reinterpret_cast<const Packed*>(from);
    for (std::int64_t p = 0; p < blocks_; ++p, packed += block_k_) {
      const std::int64_t length = layout_.block_length(p);
      for (std::int64_t i = 0; i < length; ++i)
        to[i * codes.column_stride] = static_cast<Code>(packed[place<Packed>(i)]);
      to += length * codes.column_stride;
    }
  }

  // Codes of 8 bits lie in their order.
  void copy_codes(std::int64_t row, const char* from) const {
    const RowView& codes = problem_.codes;
    if (codes.column_stride != 1) return store_codes<std::int8_t, std::int8_t>(row, from);
    char* to = static_cast<char*>(const_cast<void*>(codes.data)) + codes.row_offset(row);
    if (block_k_ == layout_.block_size || blocks_ == 1) {  // blocks without padding between them
      std::copy_n(from, layout_.k, to);
      return;
    }
    for (std::int64_t p = 0; p < blocks_; ++p)
      std::copy_n(from + p * block_k_, layout_.block_length(p), to + layout_.block_begin(p));
  }

  // Words of 16 bits lie as products of pairs take them: of four codes, the first and the third before the others.
  template <class Packed>
  static std::int64_t place(std::int64_t i) {
    return sizeof(Packed) == 1 ? i : (i & ~std::int64_t{3}) | (i << 1 & 2) | (i >> 1 & 1);
  }

  void store_parameters(const RowView& to, std::int64_t row, const char* from) const {
    float* first = static_cast<float*>(const_cast<void*>(to.data)) + to.row_offset(row);
    const auto* values = reinterpret_cast<const float*>(from);
    if (to.column_stride == 1) {
      std::copy_n(values, blocks_, first);
      return;
    }
    for (std::int64_t p = 0; p < blocks_; ++p) first[p * to.column_stride] = values[p];
  }

  const ActivationsProblem& problem_;
  const PackedLayout& layout_;
  const PackedRows& rows_;
  const int code_bytes_;
  const std::int64_t blocks_, block_k_;
};

}  // namespace

void run_quantize_activations_cpu(const ActivationsProblem& problem, const BlockKernels& kernels) {
  PackedLayout layout{};
  layout.n = 0;
  layout.k = problem.k;
  layout.bits = 8;
  layout.block_size = problem.block_size;
  layout.taps = 1;
  const std::int64_t blocks = layout.blocks(), step_bytes = layout.step_k() * kernels.bytes_per_code;
  PackedRows rows{};
  rows.codes = PackedRows::kParameters * blocks * static_cast<std::int64_t>(sizeof(float));
  rows.row_bytes = round_up(rows.codes + layout.steps() * step_bytes, kAlignment) + PackedRows::kSlackBytes;
  ActivationScales scales;
  scales.fixed = problem.fixed_scale;
  if (problem.fixed_scale != 0.0f) scales.source = ActivationScales::Source::fixed;
  const RowPacker packer(problem.x, scales, problem.mode, kernels, layout, problem.k, 1);
  const PackedReader reader(problem, layout, rows, kernels.bytes_per_code);

  constexpr std::int64_t kElements = 8192, kSerialElements = 1 << 14;
  const std::int64_t least = problem.x.row_stride() == 1 ? RowPacker::kLine : 1;
  const std::int64_t rows_per_task = std::max(least, kElements / problem.k);
  const auto pack = [&](std::int64_t task) {
    const std::int64_t begin = task * rows_per_task, end = std::min(problem.m, begin + rows_per_task);
    Scratch scratch;
    PackedRows packed = rows;
    packed.data = scratch.take<char>((end - begin) * rows.row_bytes);
    packer.pack(begin, end, packed, rows.row_bytes);
    for (std::int64_t row = begin; row < end; ++row) reader.store(row, packed.data + (row - begin) * rows.row_bytes);
  };
  const std::int64_t tasks = ceil_div(problem.m, rows_per_task);
  if (problem.m * problem.k > kSerialElements) return parallel_for(tasks, pack);
  for (std::int64_t task = 0; task < tasks; ++task) pack(task);
}

}  // namespace qcore
