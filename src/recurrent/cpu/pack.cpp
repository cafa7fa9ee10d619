#include "recurrent/cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "recurrent/cpu/level_table.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

std::shared_ptr<void> pack_weights(const std::vector<std::int16_t>& codes, std::int64_t size, int gates,
                                   const CodeProduct& product) {
  const std::int64_t groups = ceil_div(size, kChannelGroup);
  auto memory = allocate_aligned(groups * product.group_bytes);
  auto* to = static_cast<std::int8_t*>(memory.get());
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t quad = 0; quad < product.quads; ++quad)
      for (int gate = 0; gate < gates; ++gate)
        for (int plane = 0; plane < product.weight_planes; ++plane)
          for (std::int64_t lane = 0; lane < kChannelGroup; ++lane)
            for (std::int64_t i = 0; i < 4; ++i) {
              const std::int64_t channel = group * kChannelGroup + lane, k = quad * 4 + i;
              const bool inside = channel < size && k < product.features;
              const int code = inside ? codes[(gate * size + channel) * product.features + k] : 0;
              const int high = code >> 8, low = (code & 255) - 128;
              *to++ = static_cast<std::int8_t>(product.weight_planes == 1 ? code : plane == 0 ? high : low);
            }
  return memory;
}

}  // namespace

CodeProduct pack_product(const ProductParts& parts, PackedProduct& memory) {
  const std::int64_t size = parts.size, groups = ceil_div(size, kChannelGroup),
                     count = groups * parts.gates * kChannelGroup;
  CodeProduct product{};
  product.features = parts.features;
  product.quads = round_up(parts.features, 16) / 4;
  product.weight_planes = parts.weight_bits <= 8 ? 1 : 2;
  product.input_planes = parts.input.bits <= 8 ? 1 : 2;
  product.input_bias = parts.input.bits <= 8 ? 1 << 7 : 1 << 15;
  product.group_bytes = product.quads * parts.gates * product.weight_planes * kChannelGroup * 4;
  product.range = parts.range;
  memory.weights = pack_weights(parts.codes, size, parts.gates, product);

  memory.offsets.assign(count, 0);
  memory.signed_offsets.assign(count, 0);
  memory.right.assign(count, 0);
  memory.left.assign(count, 0);
  product.narrow = parts.prepared.largest < kLaneBound;
  int least = kMaxLaneShift;  // shift to the right
  for (std::int64_t channel = 0; channel < size; ++channel)
    for (int gate = 0; gate < parts.gates; ++gate) {
      const std::int64_t row = gate * size + channel;
      const std::int64_t at = (channel / kChannelGroup * parts.gates + gate) * kChannelGroup + channel % kChannelGroup;
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < parts.features; ++k) sum += parts.codes[row * parts.features + k];
      const int shift = parts.prepared.shifts[row];
      memory.offsets[at] = parts.prepared.offsets[row] - sum * product.input_bias;
      // Bytes of u less 128 are u less so much, padding included; the lower plane of weights is 128 less than the
      // codes.
      const std::int64_t less = product.input_planes == 1 ? 128 : 128 * 257;
      const std::int64_t stored = sum - (product.weight_planes == 2 ? 128 * 4 * product.quads : 0);
      memory.signed_offsets[at] = memory.offsets[at] + less * stored;
      memory.right[at] = std::max(0, shift);
      memory.left[at] = std::max(0, -shift);
      product.shifts_left = product.shifts_left || shift < 0;
      least = std::min(least, shift);
      product.narrow = product.narrow && (parts.prepared.largest << memory.left[at]) < kLaneBound;
    }
  product.rounds = least > 0;
  const bool three_parts = product.weight_planes == 2 && product.input_planes == 2;
  if (!product.narrow && three_parts && least > 8 && parts.prepared.largest < kDroppedBound) {
    product.narrow = true;
    product.dropped_bits = 8;
  }
  const auto split = [&](const std::vector<std::int64_t>& offsets, std::vector<std::int32_t>& upper,
                         std::vector<std::int32_t>& low) {
    for (const std::int64_t offset : offsets) {
      upper.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(offset >> product.dropped_bits)));
      low.push_back(static_cast<std::int32_t>(offset & ((1 << product.dropped_bits) - 1)));
    }
  };
  split(memory.offsets, memory.narrow_offsets, memory.low_offsets);
  split(memory.signed_offsets, memory.narrow_signed_offsets, memory.low_signed_offsets);
  for (std::int32_t& shift : memory.right) {
    if (product.rounds) shift = std::max(1, shift - product.dropped_bits);  // 0 behind the last channel
    if (product.narrow) shift = std::min(shift, kMaxLaneShift);
    memory.halves.push_back(1 << std::min(std::max(shift - 1, 0), kMaxLaneShift));
  }
  product.weights = static_cast<const std::int8_t*>(memory.weights.get());
  product.offsets = memory.offsets.data();
  product.narrow_offsets = memory.narrow_offsets.data();
  product.signed_offsets = memory.signed_offsets.data();
  product.narrow_signed_offsets = memory.narrow_signed_offsets.data();
  product.low_offsets = memory.low_offsets.data();
  product.low_signed_offsets = memory.low_signed_offsets.data();
  product.right = memory.right.data();
  product.halves = memory.halves.data();
  product.left = memory.left.data();
  return product;
}

CellTable pack_table(const std::vector<std::int32_t>& codes, const FixedFormat& format, PackedTable& memory) {
  const int entry_bytes = format.bits <= 8 ? 1 : 2;
  memory.entries.assign(ceil_div(codes.size() * entry_bytes, 2), 0);
  auto* bytes = reinterpret_cast<std::uint8_t*>(memory.entries.data());
  for (std::size_t i = 0; i < codes.size(); ++i)
    std::memcpy(bytes + i * entry_bytes, &codes[i], entry_bytes);  // little-endian
  if (entry_bytes == 1) memory.levels = make_levels(codes);
  return {bytes, entry_bytes == 1, format.is_signed, memory.levels ? &*memory.levels : nullptr};
}

}  // namespace qcore
