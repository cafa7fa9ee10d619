#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gru/gru_packed.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

// Numbers below this can be shifted right by any amount up to 30 in int32, rounding included, and summed in fours.
constexpr std::int64_t kLaneBound = std::int64_t{1} << 29;
constexpr int kMostLaneShift = 30;

void pack_weights(const std::vector<std::int16_t>& codes, std::int64_t size, GruProduct& product) {
  const std::int64_t groups = ceil_div(size, kGruGroup), bytes = groups * product.group_bytes();
  product.weights = allocate_aligned(bytes);
  auto* to = static_cast<std::int8_t*>(product.weights.get());
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
}

GruProduct pack_product(const GruParameters& p, const std::vector<std::int16_t>& codes, std::int64_t features,
                        const FixedFormat& input, const std::vector<std::int64_t>& offsets,
                        const std::vector<int>& shifts, std::int64_t largest, const numerics::GruRange& range) {
  GruProduct product;
  product.features = features;
  product.quads = round_up(features, 16) / 4;
  product.weight_planes = p.weight_bits <= 8 ? 1 : 2;
  product.input_planes = input.bits <= 8 ? 1 : 2;
  product.input_bias = input.bits <= 8 ? 1 << 7 : 1 << 15;
  product.range = range;
  pack_weights(codes, p.hidden_size, product);

  const std::int64_t size = p.hidden_size, groups = ceil_div(size, kGruGroup), count = groups * kGruGates * kGruGroup;
  product.offsets.assign(count, 0);
  product.right.assign(count, 0);
  product.left.assign(count, 0);
  product.narrow = largest < kLaneBound;
  for (std::int64_t channel = 0; channel < size; ++channel)
    for (int gate = 0; gate < kGruGates; ++gate) {
      const std::int64_t row = gate * size + channel;
      const std::int64_t at = (channel / kGruGroup * kGruGates + gate) * kGruGroup + channel % kGruGroup;
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < features; ++k) sum += codes[row * features + k];
      product.offsets[at] = offsets[row] - sum * product.input_bias;
      product.right[at] = std::max(0, shifts[row]);
      product.left[at] = std::max(0, -shifts[row]);
      product.shifts_left = product.shifts_left || shifts[row] < 0;
      product.narrow = product.narrow && (largest << product.left[at]) < kLaneBound;
    }
  for (const std::int64_t offset : product.offsets)
    product.narrow_offsets.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(offset)));
  if (product.narrow)
    for (std::int32_t& shift : product.right) shift = std::min(shift, kMostLaneShift);
  return product;
}

GruPackedTable pack_table(const std::vector<std::int32_t>& codes, const FixedFormat& format) {
  GruPackedTable table;
  table.entry_bytes = format.bits <= 8 ? 1 : 2;
  table.is_signed = format.is_signed;
  table.memory.assign(ceil_div(codes.size() * table.entry_bytes, 2), 0);
  auto* bytes = reinterpret_cast<std::uint8_t*>(table.memory.data());
  for (std::size_t i = 0; i < codes.size(); ++i)
    std::memcpy(bytes + i * table.entry_bytes, &codes[i], table.entry_bytes);  // little-endian
  return table;
}

std::int64_t reach(const numerics::GruRange& range) {
  return std::max<std::int64_t>(range.hi, -std::int64_t{range.lo});
}

// Proves how wide the cell's numbers are, and cuts shifts to what lanes can do.
class Widths {
 public:
  // A number up to `largest` and its shift; its bound after it.
  std::int64_t shift(std::int64_t largest, int& n) {
    fits_ = fits_ && largest < kLaneBound && (n >= 0 || (n >= -kMostLaneShift && largest << -n < kLaneBound));
    const std::int64_t after = !fits_ ? 0 : n < 0 ? largest << -n : largest;
    n = std::min(n, kMostLaneShift);
    return after;
  }

  // The same of a product, which may be an int64 as long as it is none behind its shift.
  void shift_product(std::int64_t largest, int& n) {
    const bool narrow = largest < kLaneBound && (n >= 0 || (n >= -kMostLaneShift && largest << -n < kLaneBound));
    narrow_ = narrow_ && narrow;
    products_.push_back(&n);
    fits_ = fits_ && (narrow || (n > 0 && (largest >> n) + 1 < kLaneBound));
  }

  void fits(std::int64_t largest) { fits_ = fits_ && largest < kLaneBound; }

  GruWidth found() {
    if (!fits_) return GruWidth::scalar;
    if (!narrow_) return GruWidth::wide_products;
    for (int* n : products_) *n = std::min(*n, kMostLaneShift);
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
  if (std::max(p.input_size, p.hidden_size) > GruProduct::kMostFeatures) return nullptr;
  auto packed = std::make_shared<GruPacked>();
  packed->groups = ceil_div(p.hidden_size, kGruGroup);
  packed->input =
      pack_product(p, p.w, p.input_size, p.formats.x, gru.wx_offsets, gru.wx_shifts, gru.largest_wx, gru.cell.wx);
  packed->state =
      pack_product(p, p.r, p.hidden_size, p.formats.h, gru.rh_offsets, gru.rh_shifts, gru.largest_rh, gru.cell.rh);
  const FixedFormat* gates[] = {&p.formats.z, &p.formats.r, &p.formats.g};
  for (int gate = 0; gate < kGruGates; ++gate) packed->tables[gate] = pack_table(gru.tables[gate], *gates[gate]);
  packed->cell = gru.cell;
  packed->width = prove_widths(gru, packed->cell);
  if (packed->width == GruWidth::scalar) {
    packed->cell = gru.cell;
  } else if (p.pipeline == GruPipeline::staged) {
    for (int i = 0; i < 4; ++i) {
      packed->biases[i].assign(packed->groups * kGruGroup, 0);
      for (std::int64_t channel = 0; channel < p.hidden_size; ++channel)
        packed->biases[i][channel] = static_cast<std::int32_t>(gru.biases[i][channel]);
    }
  }
  return packed;
}

}  // namespace qcore
