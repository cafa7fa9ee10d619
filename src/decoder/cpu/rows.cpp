#include <algorithm>

#include "decoder/cpu/row_access.h"
#include "decoder/dispatch.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

constexpr std::int64_t kTaskElements = 1 << 13;  // enough work to be worth another thread's attention
constexpr std::int64_t kColumns = 1 << 14;       // of a long row that are computed together

// Calls run(begin, end) on ranges of `rows` rows of `count` elements.
template <class Run>
void for_row_ranges(std::int64_t rows, std::int64_t count, const Run& run) {
  const std::int64_t per_task = std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, count));
  if (rows * count < 2 * kTaskElements) return run(0, rows);
  parallel_for(ceil_div(rows, per_task),
               [&](std::int64_t task) { run(task * per_task, std::min(rows, (task + 1) * per_task)); });
}

// Calls run(row, first column, columns) on pieces of rows of `count` elements.
template <class Run>
void for_row_pieces(std::int64_t rows, std::int64_t count, const Run& run) {
  const std::int64_t pieces = ceil_div(count, kColumns);
  for_row_ranges(rows * pieces, std::min(count, kColumns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t column = i % pieces * kColumns;
      run(i / pieces, column, std::min(kColumns, count - column));
    }
  });
}

// fp32 [R] of a table that may have any strides.
const float* angles(const TensorView& table, std::int64_t position, std::int64_t rotary, float* memory) {
  const float* row = static_cast<const float*>(table.data) + position * table.strides[0];
  if (table.strides[1] == 1) return row;
  for (std::int64_t i = 0; i < rotary; ++i) memory[i] = row[i * table.strides[1]];
  return memory;
}

}  // namespace

void run_norm_cpu(const NormProblem& p, const DecoderKernels& kernels) {
  Scratch outer;
  float* weight = nullptr;
  if (p.weight.rank && p.normalize) {
    weight = outer.take<float>(round_up(p.count, kRowPadding));
    load_row(kernels, {p.weight.data, p.weight.dtype, 0, p.weight.strides[0]}, p.count, weight);
    if (p.offset != 0.0f)
      for (std::int64_t i = 0; i < p.count; ++i) weight[i] += p.offset;
  }
  for_row_ranges(p.rows, p.count, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch;
    float* row = scratch.take<float>(round_up(p.count, kRowPadding));
    float* other = scratch.take<float>(round_up(p.count, kRowPadding));
    for (std::int64_t r = begin; r < end; ++r) {
      load_row(kernels, row_of(p.x, r), p.count, row);
      if (p.multiplier != 1.0f) kernels.scale_row(row, p.multiplier, p.count);
      if (p.residual.data) {
        load_row(kernels, row_of(p.residual, r), p.count, other);
        kernels.add_row(row, other, p.count);
        round_row(kernels, row, p.count, p.residual.dtype, other);
        store_row(kernels, row, p.count, writable_row_of(p.residual, r));
      }
      if (p.normalize) {
        kernels.normalize_row(row, p.count, p.eps);
        if (p.round_normalized) round_row(kernels, row, p.count, p.y.dtype, other);
        if (weight) kernels.multiply_row(row, weight, p.count);
      }
      if (p.y.data) store_row(kernels, row, p.count, writable_row_of(p.y, r));
    }
  });
}

void run_rotary_cpu(const RotaryProblem& p, const DecoderKernels& kernels) {
  const std::int64_t tokens = p.x.shape[1], heads = p.x.shape[2], size = p.x.shape[3], rotary = p.cos.shape[1];
  const bool in_place = p.x.data == p.y.data;
  const std::int64_t moved = in_place ? rotary : size;  // elements of a head that are read and written
  for_row_ranges(p.x.shape[0] * tokens, heads * size, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch;
    float* row = scratch.take<float>(round_up(size, kRowPadding));
    float* memory = scratch.take<float>(2 * rotary);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t b = i / tokens, t = i % tokens, position = load_index(p.positions, b, t);
      const float* cos = angles(p.cos, position, rotary, memory);
      const float* sin = angles(p.sin, position, rotary, memory + rotary);
      for (std::int64_t head = 0; head < heads; ++head) {
        load_row(kernels, head_of(p.x, b, t, head), moved, row);
        kernels.rotate_row(row, cos, sin, rotary, p.layout == RotaryLayout::interleaved);
        store_row(kernels, row, moved, writable_head_of(p.y, b, t, head));
      }
    }
  });
}

void run_gate_cpu(const GateProblem& p, const DecoderKernels& kernels) {
  for_row_pieces(p.rows, p.count, [&](std::int64_t row, std::int64_t column, std::int64_t columns) {
    Scratch scratch;
    float* gate = scratch.take<float>(round_up(columns, kRowPadding));
    float* up = scratch.take<float>(round_up(columns, kRowPadding));
    load_row(kernels, row_of(p.x, row, column), columns, gate);
    load_row(kernels, row_of(p.x, row, p.count + column), columns, up);
    kernels.gate_row(gate, up, columns, static_cast<int>(p.activation));
    store_row(kernels, gate, columns, writable_row_of(p.y, row, column));
  });
}

void run_cap_cpu(const CapProblem& p, const DecoderKernels& kernels) {
  for_row_pieces(p.rows, p.count, [&](std::int64_t row, std::int64_t column, std::int64_t columns) {
    Scratch scratch;
    float* values = scratch.take<float>(round_up(columns, kRowPadding));
    load_row(kernels, row_of(p.x, row, column), columns, values);
    kernels.cap_row(values, columns, p.multiplier, p.soft_cap);
    store_row(kernels, values, columns, writable_row_of(p.y, row, column));
  });
}

void run_cache_cpu(const CacheProblem& p, const DecoderKernels& kernels) {
  const std::int64_t tokens = p.keys.shape[1], heads = p.keys.shape[2], size = p.keys.shape[3];
  const auto write = [&](const ConstElements& x, const TensorView& cache, const TensorView& scales, std::int64_t b,
                         std::int64_t head, std::int64_t position, float* row) {
    const std::int64_t offset = b * cache.strides[0] + head * cache.strides[1] + position * cache.strides[2];
    load_row(kernels, x, size, row);
    if (cache.dtype != DType::i8) return store_row(kernels, row, size, {cache.data, cache.dtype, offset, 1});
    const std::int64_t scale = b * scales.strides[0] + head * scales.strides[1] + position * scales.strides[2];
    kernels.quantize_row(row, size, static_cast<std::int8_t*>(cache.data) + offset,
                         static_cast<float*>(scales.data) + scale);
  };
  for_row_ranges(p.keys.shape[0] * tokens, 2 * heads * size, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch;
    float* row = scratch.take<float>(round_up(size, kRowPadding));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t b = i / tokens, t = i % tokens, position = load_index(p.past, b) + t;
      for (std::int64_t head = 0; head < heads; ++head) {
        write(head_of(p.keys, b, t, head), p.cache.keys, p.cache.key_scales, b, head, position, row);
        write(head_of(p.values, b, t, head), p.cache.values, p.cache.value_scales, b, head, position, row);
      }
    }
  });
}

}  // namespace qcore
