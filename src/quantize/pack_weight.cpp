#include "quantize/pack_weight.h"

#include <algorithm>
#include <cstring>

#include "numerics/half_bits.h"
#include "runtime/check.h"
#include "runtime/memory.h"

namespace qcore {

std::shared_ptr<PackedWeight> allocate_weight(const char* op, const char* argument, const TensorView& shaped_like,
                                              int bits, std::int64_t block_size, Scheme scheme) {
  QCORE_CHECK_VALUE(shaped_like.rank == 2 || shaped_like.rank == 4, op, ": ", argument, " has shape ",
                    shape_string(shaped_like), ", expected [N, K] or [Co, Ci, Kh, Kw]");
  QCORE_CHECK_VALUE(bits == 4 || bits == 8, op, ": bits is ", bits, ", expected 4 or 8");
  constexpr std::int64_t kLargestBlock = 0x7fffffff;
  QCORE_CHECK_VALUE(block_size >= 1 && block_size <= kLargestBlock, op, ": block_size is ", block_size,
                    ", expected an integer from 1 to ", kLargestBlock);
  auto weight = std::make_shared<PackedWeight>();
  const std::int64_t taps = shaped_like.rank == 4 ? shaped_like.shape[2] * shaped_like.shape[3] : 1;
  weight->layout = PackedLayout(shaped_like.shape[0], shaped_like.shape[1], taps, block_size, bits);
  weight->rank = shaped_like.rank;
  std::copy(shaped_like.shape, shaped_like.shape + shaped_like.rank, weight->shape);
  weight->scheme = scheme;

  const PackedLayout& layout = weight->layout;
  const std::int64_t parameter_bytes = layout.parameter_count() * static_cast<std::int64_t>(sizeof(float));
  auto codes = allocate_aligned(layout.code_bytes());
  std::memset(codes.get(), bits == 8 ? 0x80 : 0x88, layout.code_bytes());
  auto scales = allocate_aligned(parameter_bytes);
  std::memset(scales.get(), 0, parameter_bytes);
  weight->codes = static_cast<const std::uint8_t*>(codes.get());
  weight->scales.data = scales.get();
  weight->code_storage = std::move(codes);
  weight->scale_storage = std::move(scales);
  if (scheme == Scheme::asymmetric) {
    auto offsets = allocate_aligned(parameter_bytes);
    std::memset(offsets.get(), 0, parameter_bytes);
    weight->offsets.data = offsets.get();
    weight->offset_storage = std::move(offsets);
  }
  return weight;
}

namespace {

void narrow(BlockParameters& parameters, std::shared_ptr<const void>& storage, std::int64_t count) {
  if (!parameters || parameters.half) return;
  const auto* values = static_cast<const float*>(parameters.data);
  const auto exact = [](float value) {
    const float back = numerics::half_to_float(numerics::float_to_half(value));
    return numerics::float_bits(back) == numerics::float_bits(value);
  };
  if (!std::all_of(values, values + count, exact)) return;
  auto memory = allocate_aligned(count * static_cast<std::int64_t>(sizeof(std::uint16_t)));
  for (std::int64_t i = 0; i < count; ++i)
    static_cast<std::uint16_t*>(memory.get())[i] = numerics::float_to_half(values[i]);
  parameters = {memory.get(), true};
  storage = std::move(memory);
}

}  // namespace

void narrow_parameters(PackedWeight& weight) {
  narrow(weight.scales, weight.scale_storage, weight.layout.parameter_count());
  narrow(weight.offsets, weight.offset_storage, weight.layout.parameter_count());
}

}  // namespace qcore
