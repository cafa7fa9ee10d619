#include "quantize/pack_weight.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "formats/element.h"
#include "numerics/half_bits.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

// Memory for a weight whose parameters are zeros; its codes are not written.
std::shared_ptr<void> allocate_parts(const StorageLayout& parts, bool stays) {
  auto memory = stays ? allocate_long_lived(parts.bytes) : allocate_aligned(parts.bytes);
  std::memset(static_cast<char*>(memory.get()) + parts.scales, 0, static_cast<std::size_t>(parts.bytes - parts.scales));
  return memory;
}

}  // namespace

void check_weight_size(const char* op, const char* argument, int rank, const std::int64_t* shape,
                       std::int64_t block_size) {
  constexpr std::int64_t kMaxBlock = 0x7fffffff;
  QCORE_CHECK_VALUE(block_size >= 1 && block_size <= kMaxBlock, op, ": block_size is ", block_size,
                    ", expected an integer from 1 to ", kMaxBlock);
  double codes = 1;  // of a row, whose blocks are padded
  constexpr double kPadding = 8, kParameterBytes = 8, kMostBytes = 0x1p56;
  for (int axis = 0; axis < rank; ++axis) {
    QCORE_CHECK_VALUE(shape[axis] >= 0, op, ": ", argument, " has ", shape[axis], " at axis ", axis,
                      ", expected 0 or more");
    if (axis > 1) codes *= static_cast<double>(shape[axis]);
  }
  const auto k = static_cast<double>(shape[1]), blocks = k / static_cast<double>(block_size) + 1;
  const double rows = static_cast<double>(shape[0]) + PackedLayout::kPanelRows;
  codes *= k + blocks * kPadding;
  QCORE_CHECK_VALUE(rows * (codes + blocks * kParameterBytes) <= kMostBytes, op, ": ", argument, " has ", shape[0],
                    " rows and ", shape[1], " columns in blocks of ", block_size, ", expected a weight of less than ",
                    static_cast<std::int64_t>(kMostBytes), " bytes");
}

std::shared_ptr<PackedWeight> allocate_weight(const char* op, const char* argument, const TensorView& shaped_like,
                                              int bits, std::int64_t block_size, Scheme scheme, bool half_parameters) {
  QCORE_CHECK_VALUE(shaped_like.rank == 2 || shaped_like.rank == 4, op, ": ", argument, " has shape ",
                    shape_string(shaped_like), ", expected [N, K] or [Co, Ci, Kh, Kw]");
  QCORE_CHECK_VALUE(bits == 4 || bits == 8, op, ": bits is ", bits, ", expected 4 or 8");
  check_weight_size(op, argument, shaped_like.rank, shaped_like.shape, block_size);
  auto weight = std::make_shared<PackedWeight>();
  const std::int64_t taps = shaped_like.rank == 4 ? shaped_like.shape[2] * shaped_like.shape[3] : 1;
  weight->layout = PackedLayout(shaped_like.shape[0], shaped_like.shape[1], taps, block_size, bits);
  weight->rank = shaped_like.rank;
  std::copy(shaped_like.shape, shaped_like.shape + shaped_like.rank, weight->shape);
  weight->scheme = scheme;

  const PackedLayout& layout = weight->layout;
  const std::int64_t size = half_parameters ? 2 : 4;
  auto memory = allocate_parts(StorageLayout(layout, size, scheme == Scheme::asymmetric ? size : 0), half_parameters);
  if (layout.code_bytes() * 8 != layout.n * layout.k * layout.taps * bits)
    std::memset(memory.get(), bits == 8 ? 0x80 : 0x88, static_cast<std::size_t>(layout.code_bytes()));
  weight->set_memory(std::move(memory), half_parameters, half_parameters);
  return weight;
}

bool are_half(const TensorView& scales, const TensorView* offsets) {
  return scales.dtype == DType::f16 && (!offsets || offsets->dtype == DType::f16);
}

void check_parameter_arrays(const char* op, const PackedWeight& weight, const TensorView& scales,
                            const TensorView* offsets) {
  const std::int64_t expected[] = {weight.layout.n, weight.layout.blocks()};
  const auto check = [&](const char* argument, const TensorView& view) {
    check_device(op, argument, view, kCpu, "every part");
    check_floating(op, argument, view);
    check_shape(op, argument, view, 2, expected);
    check_finite(op, argument, view);
  };
  check("scales", scales);
  if (offsets) check("offsets", *offsets);
}

namespace {

constexpr std::int64_t kPanelRows = PackedLayout::kPanelRows;

// Runs body(begin, end) over parts of [0, count) in parallel.
template <class Body>
void in_parts(std::int64_t count, const Body& body) {
  constexpr std::int64_t kPart = 1 << 16;
  parallel_for(ceil_div(count, kPart),
               [&](std::int64_t part) { body(part * kPart, std::min(count, (part + 1) * kPart)); });
}

// Copies the rows of a panel, [rows, P] of any strides, to [P, 16] at `to`.
template <class Value, class Read>
void place_panel(std::int64_t rows, std::int64_t blocks, Value* to, const Read& read) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t p = 0; p < blocks; ++p) to[p * kPanelRows + row] = read(row, p);
}

void place_parameters(const PackedLayout& layout, const TensorView& from, const BlockParameters& to) {
  const std::int64_t blocks = layout.blocks(), row_stride = from.strides[0], stride = from.strides[1];
  parallel_for(layout.panels(), [&](std::int64_t panel) {
    const std::int64_t first = panel * kPanelRows, rows = std::min(layout.n - first, kPanelRows),
                       at = layout.parameter_index(first, 0);
    void* data = const_cast<void*>(to.data);
    if (to.half) {
      const auto* values = static_cast<const std::uint16_t*>(from.data) + first * row_stride;
      place_panel(rows, blocks, static_cast<std::uint16_t*>(data) + at,
                  [&](std::int64_t row, std::int64_t p) { return values[row * row_stride + p * stride]; });
    } else {
      place_panel(rows, blocks, static_cast<float*>(data) + at, [&](std::int64_t row, std::int64_t p) {
        return load_float(from.data, from.dtype, (first + row) * row_stride + p * stride);
      });
    }
  });
}

bool is_exact_in_half(const BlockParameters& parameters, std::int64_t count) {
  if (!parameters) return false;
  const auto* values = static_cast<const float*>(parameters.data);
  std::atomic<bool> exact{true};
  in_parts(count, [&](std::int64_t begin, std::int64_t end) {
    if (!exact.load(std::memory_order_relaxed)) return;
    const bool here = std::all_of(values + begin, values + end, [](float value) {
      const float back = numerics::half_to_float(numerics::float_to_half(value));
      return numerics::float_bits(back) == numerics::float_bits(value);
    });
    if (!here) exact.store(false, std::memory_order_relaxed);
  });
  return exact.load();
}

void copy_parameters(const BlockParameters& from, std::int64_t count, const BlockParameters& to) {
  if (!from) return;
  void* data = const_cast<void*>(to.data);
  if (!to.half) {
    std::memcpy(data, from.data, count * sizeof(float));
    return;
  }
  in_parts(count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) static_cast<std::uint16_t*>(data)[i] = numerics::float_to_half(from[i]);
  });
}

}  // namespace

void set_parameters(const PackedWeight& weight, const TensorView& scales, const TensorView* offsets) {
  place_parameters(weight.layout, scales, weight.scales);
  if (offsets) place_parameters(weight.layout, *offsets, weight.offsets);
}

void finish_weight(PackedWeight& weight) {
  if (weight.scales.half) return;  // it was allocated where it stays, because its parameters were known to be fp16
  const std::int64_t count = weight.layout.parameter_count();
  const bool half_scales = is_exact_in_half(weight.scales, count),
             half_offsets = is_exact_in_half(weight.offsets, count);
  const BlockParameters scales = weight.scales, offsets = weight.offsets;
  const StorageLayout parts(weight.layout, half_scales ? 2 : 4, !offsets ? 0 : half_offsets ? 2 : 4);
  if (!half_scales && !half_offsets && !shares_huge_pages(parts.bytes)) return;
  const std::shared_ptr<const void> first = weight.memory;
  auto memory = allocate_parts(parts, true);
  std::memcpy(memory.get(), weight.codes, static_cast<std::size_t>(weight.layout.code_bytes()));
  weight.set_memory(std::move(memory), half_scales, half_offsets);
  copy_parameters(scales, count, weight.scales);
  copy_parameters(offsets, count, weight.offsets);
}

}  // namespace qcore
