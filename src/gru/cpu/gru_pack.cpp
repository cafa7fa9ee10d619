#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gru/cpu/gru_packed.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

// Numbers below this can be shifted right by any amount up to 30 in int32, rounding included, and summed in fours.
constexpr std::int64_t kLaneBound = std::int64_t{1} << 29;
constexpr int kMaxLaneShift = 30;

std::shared_ptr<void> pack_weights(const std::vector<std::int16_t>& codes, std::int64_t size,
                                   const GruProduct& product) {
  const std::int64_t groups = ceil_div(size, kGruGroup);
  auto memory = allocate_aligned(groups * product.group_bytes);
  auto* to = static_cast<std::int8_t*>(memory.get());
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t quad = 0; quad < product.quads; ++quad)
      for (int gate = 0; gate < kGruGates; ++gate)
        for (int plane = 0; plane < product.weight_planes; ++plane)
          for (std::int64_t lane = 0; lane < kGruGroup; ++lane)
            for (std::int64_t i = 0; i < 4; ++i) {
              const std::int64_t channel = group * kGruGroup + lane, k = quad * 4 + i;
              const bool inside = channel < size && k < product.features;
              const int code = inside ? codes[(gate * size + channel) * product.features + k] : 0;
              const int high = code >> 8, low = (code & 255) - 128;
              *to++ = static_cast<std::int8_t>(product.weight_planes == 1 ? code : plane == 0 ? high : low);
            }
  return memory;
}

// Operands of one of the two products.
struct ProductParts {
  const std::vector<std::int16_t>& codes;
  std::int64_t features;
  const FixedFormat& input;
  const std::vector<std::int64_t>& offsets;
  const std::vector<int>& shifts;
  std::int64_t largest;
  const numerics::GruRange& range;
};

GruProduct pack_product(const GruParameters& p, const ProductParts& parts, GruPacked::Product& memory) {
  const std::int64_t size = p.hidden_size, groups = ceil_div(size, kGruGroup), count = groups * kGruGates * kGruGroup;
  GruProduct product{};
  product.features = parts.features;
  product.quads = round_up(parts.features, 16) / 4;
  product.weight_planes = p.weight_bits <= 8 ? 1 : 2;
  product.input_planes = parts.input.bits <= 8 ? 1 : 2;
  product.input_bias = parts.input.bits <= 8 ? 1 << 7 : 1 << 15;
  product.group_bytes = product.quads * kGruGates * product.weight_planes * kGruGroup * 4;
  product.range = parts.range;
  memory.weights = pack_weights(parts.codes, size, product);

  memory.offsets.assign(count, 0);
  memory.signed_offsets.assign(count, 0);
  memory.right.assign(count, 0);
  memory.left.assign(count, 0);
  product.narrow = parts.largest < kLaneBound;
  for (std::int64_t channel = 0; channel < size; ++channel)
    for (int gate = 0; gate < kGruGates; ++gate) {
      const std::int64_t row = gate * size + channel;
      const std::int64_t at = (channel / kGruGroup * kGruGates + gate) * kGruGroup + channel % kGruGroup;
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < parts.features; ++k) sum += parts.codes[row * parts.features + k];
      const int shift = parts.shifts[row];
      memory.offsets[at] = parts.offsets[row] - sum * product.input_bias;
      // Bytes of u less 128 are u less so much, padding included; the lower plane of weights is 128 less than the
      // codes.
      const std::int64_t less = product.input_planes == 1 ? 128 : 128 * 257;
      const std::int64_t stored = sum - (product.weight_planes == 2 ? 128 * 4 * product.quads : 0);
      memory.signed_offsets[at] = memory.offsets[at] + less * stored;
      memory.right[at] = std::max(0, shift);
      memory.left[at] = std::max(0, -shift);
      product.shifts_left = product.shifts_left || shift < 0;
      product.narrow = product.narrow && (parts.largest << memory.left[at]) < kLaneBound;
    }
  const auto narrowed = [](const std::vector<std::int64_t>& offsets, std::vector<std::int32_t>& to) {
    for (const std::int64_t offset : offsets)
      to.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(offset)));
  };
  narrowed(memory.offsets, memory.narrow_offsets);
  narrowed(memory.signed_offsets, memory.narrow_signed_offsets);
  if (product.narrow)
    for (std::int32_t& shift : memory.right) shift = std::min(shift, kMaxLaneShift);
  product.weights = static_cast<const std::int8_t*>(memory.weights.get());
  product.offsets = memory.offsets.data();
  product.narrow_offsets = memory.narrow_offsets.data();
  product.signed_offsets = memory.signed_offsets.data();
  product.narrow_signed_offsets = memory.narrow_signed_offsets.data();
  product.right = memory.right.data();
  product.left = memory.left.data();
  return product;
}

GruTable pack_table(const std::vector<std::int32_t>& codes, const FixedFormat& format,
                    std::vector<std::uint16_t>& memory) {
  const int entry_bytes = format.bits <= 8 ? 1 : 2;
  memory.assign(ceil_div(codes.size() * entry_bytes, 2), 0);
  auto* bytes = reinterpret_cast<std::uint8_t*>(memory.data());
  for (std::size_t i = 0; i < codes.size(); ++i)
    std::memcpy(bytes + i * entry_bytes, &codes[i], entry_bytes);  // little-endian
  return {memory.data(), entry_bytes == 1, format.is_signed};
}

std::int64_t reach(const numerics::GruRange& range) {
  return std::max<std::int64_t>(range.hi, -std::int64_t{range.lo});
}

// Proves how wide the cell's numbers are, and cuts shifts to what lanes can do.
class Widths {
 public:
  // A number up to `largest` and its shift; its bound after it.
  std::int64_t shift(std::int64_t largest, int& n) {
    fits_ = fits_ && largest < kLaneBound && (n >= 0 || (n >= -kMaxLaneShift && largest << -n < kLaneBound));
    const std::int64_t after = !fits_ ? 0 : n < 0 ? largest << -n : largest;
    n = std::min(n, kMaxLaneShift);
    return after;
  }

  // The same of a product, which may be an int64 as long as it is none behind its shift.
  void shift_product(std::int64_t largest, int& n) {
    const bool narrow = largest < kLaneBound && (n >= 0 || (n >= -kMaxLaneShift && largest << -n < kLaneBound));
    narrow_ = narrow_ && narrow;
    products_.push_back(&n);
    fits_ = fits_ && (narrow || (n > 0 && (largest >> n) + 1 < kLaneBound));
  }

  void fits(std::int64_t largest) { fits_ = fits_ && largest < kLaneBound; }

  GruWidth found() {
    if (!fits_) return GruWidth::scalar;
    if (!narrow_) return GruWidth::wide_products;
    for (int* n : products_) *n = std::min(*n, kMaxLaneShift);
    return GruWidth::narrow;
  }

 private:
  bool fits_ = true, narrow_ = true;
  std::vector<int*> products_;
};

GruWidth prove_widths(const GruStorage& gru, numerics::GruCell& c) {
  const GruFormats& f = gru.parameters.formats;
  const std::int64_t z = std::max<std::int64_t>(f.z.highest(), -f.z.lowest()),
                     r = std::max<std::int64_t>(f.r.highest(), -f.r.lowest()),
                     g = std::max<std::int64_t>(f.g.highest(), -f.g.lowest()), rest = c.one + z;
  Widths widths;
  widths.fits(rest);
  widths.shift(reach(c.wx), c.wx_to_z);
  widths.shift(reach(c.rh), c.rh_to_z);
  widths.shift(reach(c.wx), c.wx_to_r);
  widths.shift(reach(c.rh), c.rh_to_r);
  widths.shift(reach(c.wx), c.wx_to_g);
  if (gru.parameters.pipeline == GruPipeline::staged) {
    widths.shift(reach(c.rh), c.rh_to_rb);
    widths.shift_product(r * reach(c.rb), c.r_rb_to_rrh);
    widths.shift(reach(c.rrh), c.rrh_to_g);
    widths.shift_product(z * reach(c.h), c.z_h_to_old);
    widths.shift_product(rest * g, c.z_g_to_new);
    widths.shift(reach(c.old_part), c.old_to_h);
    widths.shift(reach(c.new_part), c.new_to_h);
    for (const auto& biases : gru.biases)
      for (const std::int64_t bias : biases) widths.fits(std::abs(bias));
  } else {
    widths.shift_product(r * reach(c.rh), c.r_rh_to_g);
    const std::int64_t candidate = widths.shift(g, c.g_to_h);
    widths.shift_product(z * reach(c.h) + rest * candidate, c.z_bits);
  }
  return widths.found();
}

}  // namespace

std::shared_ptr<const GruPacked> pack_gru(const GruStorage& gru) {
  const GruParameters& p = gru.parameters;
  const GruFormats& f = p.formats;
  if (std::max(p.input_size, p.hidden_size) > kMaxGruFeatures) return nullptr;
  auto packed = std::make_shared<GruPacked>();
  GruLayer& layer = packed->layer;
  layer = {};
  layer.size = p.hidden_size;
  layer.groups = ceil_div(p.hidden_size, kGruGroup);
  layer.staged = p.pipeline == GruPipeline::staged;
  layer.half_even = p.rounding == ShiftRounding::half_even;
  layer.x = gru.x_format;
  layer.h = gru.h_format;
  layer.rb_zero = layer.staged ? f.rb.zero_point : f.rh.zero_point;
  layer.input = pack_product(p, {p.w, p.input_size, f.x, gru.wx_offsets, gru.wx_shifts, gru.largest_wx, gru.cell.wx},
                             packed->input);
  layer.state = pack_product(p, {p.r, p.hidden_size, f.h, gru.rh_offsets, gru.rh_shifts, gru.largest_rh, gru.cell.rh},
                             packed->state);
  layer.cell = layer.scalar_cell = gru.cell;
  layer.width = prove_widths(gru, layer.cell);
  const FixedFormat* gates[] = {&f.z, &f.r, &f.g};
  for (int gate = 0; gate < kGruGates; ++gate) {
    layer.tables[gate] = pack_table(gru.tables[gate], *gates[gate], packed->tables[gate]);
    layer.scalar_tables[gate] = gru.tables[gate].data();
  }
  for (int i = 0; i < 4; ++i) {
    packed->biases[i].assign(layer.groups * kGruGroup, 0);
    if (layer.width != GruWidth::scalar)
      std::transform(gru.biases[i].begin(), gru.biases[i].end(), packed->biases[i].begin(),
                     [](std::int64_t bias) { return static_cast<std::int32_t>(bias); });
    layer.biases[i] = packed->biases[i].data();
    layer.scalar_biases[i] = gru.biases[i].data();
  }
  return packed;
}

}  // namespace qcore
