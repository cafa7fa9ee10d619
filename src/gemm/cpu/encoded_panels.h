#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "formats/packed_weight.h"
#include "gemm/cpu/vtable.h"
#include "runtime/memory.h"

// The panels of an encoded weight, run by run of blocks, as the tiles read them. Unsigned codes of 4 bits in blocks of
// whole steps lie as plain ones do, so that the tiles of 4 bits read them where they are; the others are made plain.
namespace qcore {

class EncodedPanels {
 public:
  // Returns the layout of the codes that tiles read; `looks_up` is BlockKernels::looks_up_nibbles.
  static PackedLayout tile_layout(const PackedWeight& weight, bool looks_up) {
    const PackedLayout& layout = weight.layout;
    if (!weight.encoded) return layout;
    const WeightEncoding& encoding = weight.encoded->encoding;
    PackedLayout nibbles(layout.n, layout.k, layout.taps, layout.block_size, 4);
    const bool plain = encoding.bits == 4 && (looks_up || !encoding.has_codebook) &&
                       layout.block_size % nibbles.step_k() == 0 &&
                       layout.k % (nibbles.step_k() * Planes::kGroup / 2) == 0 && layout.k > 0;
    return plain ? nibbles : layout;
  }

  // `layout` is that of tile_layout(), `panels` are those of a tile that reads plain codes.
  EncodedPanels(const PackedWeight& weight, const PackedLayout& layout, const BlockKernels& kernels,
                std::int64_t results, std::int64_t rows_per_tile, std::int64_t panels)
      : weight_(*weight.encoded),
        layout_(layout),
        kernels_(kernels),
        panel_bytes_(weight_.code_panel_bytes(weight.layout)),
        decodes_(decodes(results)),
        panels_(decodes_ ? kernels.encoded_panels : panels),
        reads_integers_(reads_integers(results)),
        run_(blocks_per_run(results <= rows_per_tile)) {
    const WeightEncoding& encoding = weight_.encoding;
    for (int u = 0; u < 16; ++u) {
      table_[u] = static_cast<std::uint8_t>(encoding.codebook[u] + weight.layout.zero_code());
      nibbles_[u] = static_cast<float>(weight_.code(static_cast<unsigned>(u)));
    }
    codes_.bits = encoding.bits;
    codes_.looked_up = encoding.has_codebook;
    codes_.table = table_;
    codes_.zero = encoding.zero;
    codes_.prefetch_distance = prefetch_bytes(panel_bytes_);
    if (reads_integers_) set_integers();
  }
  EncodedPanels(const EncodedPanels&) = delete;
  EncodedPanels& operator=(const EncodedPanels&) = delete;

  std::int64_t panels() const { return panels_; }  // of a tile
  std::int64_t panel_bytes() const { return panel_bytes_; }
  std::int64_t blocks_per_run() const { return run_; }
  bool has_plain_codes() const { return layout_.bits == 4; }
  // Returns the number that a stored code exceeds its value by, for codes as tiles read them.
  const float* nibbles() const { return nibbles_; }  // as BlockTileArguments::nibbles
  int zero_code() const { return has_plain_codes() ? weight_.encoding.zero : layout_.zero_code(); }

  // Returns the size of the memory that set_run() writes to.
  std::int64_t expanded_bytes() const {
    return expanded_code_bytes() + 2 * expanded_parameters() * static_cast<std::int64_t>(sizeof(float));
  }

  // Gives the tile the blocks [t.first_block, t.end_block): `codes` are all of the weight's from the tile's first panel
  // on, and `room` is where plain codes and fp32 parameters go.
  void set_run(BlockTileArguments& t, const std::uint8_t* codes, std::uint8_t* room) const {
    const std::int64_t first_step = t.first_block * t.block_steps;
    t.codes = codes + (has_plain_codes() ? first_step * PackedLayout::kStepBytes
                                         : first_step / Planes::kGroup * weight_.code_planes().group_bytes());
    t.panel_bytes = panel_bytes_;
    t.encoded = decodes_ && t.panels == panels_ ? &codes_ : nullptr;
    if (!t.encoded && !has_plain_codes() && weight_.encoding.bits != 8) expand_codes(t, room);
    t.integers = reads_integers_ && (t.encoded || has_plain_codes()) ? &integers_ : nullptr;
    if (t.integers) return;
    if (is_read_by_tiles(weight_.scales.type) && is_read_by_tiles(weight_.offsets.type)) {
      t.scales = stored_parameters(weight_.scales, t.first_panel);
      t.offsets = stored_parameters(weight_.offsets, t.first_panel);
      return;
    }
    auto* const scales = reinterpret_cast<float*>(room + expanded_code_bytes());
    t.parameters_begin = t.first_block;
    t.parameters_panel = (t.end_block - t.first_block) * PackedLayout::kPanelRows;
    t.scales = expand_parameters(t, weight_.scales, scales);
    t.offsets = expand_parameters(t, weight_.offsets, scales + expanded_parameters());
  }

  // A tile that decodes asks for its codes early, and towards the panel's end for the next column's. What others read
  // is in the caches.
  void set_prefetch(BlockTileArguments& t) const {
    std::fill_n(t.prefetch_distance, BlockTileArguments::kMaxPanels, 0);
    const std::int64_t block_bytes = t.block_steps * weight_.code_planes().group_bytes() / Planes::kGroup;
    t.prefetch_switch_block = decodes_ ? (panel_bytes_ - codes_.prefetch_distance) / block_bytes : -1;
    t.prefetch_switch_bytes = (panels_ - 1) * panel_bytes_;
    t.prefetch_parameters = 0;
  }

 private:
  static bool is_read_by_tiles(ParameterType type) {
    return type == ParameterType::none || type == ParameterType::f32 || type == ParameterType::f16;
  }

  static TileParameters stored_parameters(const EncodedParameters& from, std::int64_t panel) {
    if (from.type == ParameterType::none) return {};
    return {from.data + panel * from.panel_bytes(), from.type == ParameterType::f16};
  }

  // Returns whether there is a tile that decodes such a weight on the way, for these few rows.
  bool decodes(std::int64_t results) const {
    const std::int64_t blocks = layout_.blocks(), steps = blocks ? layout_.block_first_step(1) : 0;
    const WeightEncoding& encoding = weight_.encoding;
    return !has_plain_codes() && kernels_.encoded_tile && results <= kernels_.encoded_rows && encoding.bits != 8 &&
           encoding.has_codebook == (encoding.bits == 4) && blocks &&
           (steps % Planes::kGroup == 0 || 2 * steps == Planes::kGroup) && layout_.block_steps(blocks - 1) == steps;
  }

  // Returns whether a tile computes this weight's parameters on the way, for these few rows.
  bool reads_integers(std::int64_t results) const {
    const WeightEncoding& encoding = weight_.encoding;
    const std::int64_t together = encoding.super_block;
    if (results > kernels_.integer_rows || !(decodes_ || has_plain_codes()) || !layout_.blocks() ||
        together % Planes::kGroup != 0 || (together & (together - 1)) != 0)
      return false;
    const auto are = [&](ParameterType scales, ParameterType offsets) {
      return encoding.scales == scales && encoding.offsets == offsets;
    };
    switch (encoding.bits) {
      case 2:
        return are(ParameterType::u4, ParameterType::u4);
      case 5:
        return are(ParameterType::u6, ParameterType::u6);
      case 6:
        return are(ParameterType::u8, ParameterType::none);
      default:
        return are(ParameterType::u6, has_plain_codes() ? ParameterType::u6 : ParameterType::none);
    }
  }

  void set_integers() {
    const auto set = [](TileNumbers& numbers, const EncodedParameters& from, int zero, float sign) {
      numbers = {from.data, from.super, from.panel_bytes(),      from.supers() * PackedLayout::kPanelRows,
                 {},        {},         static_cast<float>(zero)};
      for (int i = 0; i < 16; ++i) {
        numbers.low[i] = sign * static_cast<float>(i);
        numbers.high[i] = sign * static_cast<float>(i % 4 * 16 - zero);
        if (from.type == ParameterType::u4) numbers.low[i] = sign * static_cast<float>(i - zero);
      }
    };
    set(integers_.scales, weight_.scales, weight_.encoding.scale_zero, 1.0f);
    set(integers_.offsets, weight_.offsets, 0, -1.0f);
    while (std::int64_t{1} << integers_.super_shift < weight_.encoding.super_block) ++integers_.super_shift;
  }

  // Runs begin with a group of steps. A tile that decodes, or reads plain codes, keeps the parameters of a run in the
  // first-level cache; a single other tile reads expanded codes from there, and several from the second level.
  std::int64_t blocks_per_run(bool single) const {
    constexpr std::int64_t kFewBytes = 64 << 10, kSingleBytes = 16 << 10, kManyBytes = 512 << 10;
    const std::int64_t steps = layout_.blocks() ? layout_.block_first_step(1) : 1;
    const std::int64_t together = Planes::kGroup / std::gcd(steps, Planes::kGroup);
    const std::int64_t bytes = decodes_             ? kFewBytes
                               : kernels_.run_bytes ? kernels_.run_bytes
                               : !single            ? kManyBytes
                               : has_plain_codes()  ? kFewBytes
                                                    : kSingleBytes;
    return std::max<std::int64_t>(1, bytes / (panels_ * steps * together * PackedLayout::kStepBytes)) * together;
  }

  std::int64_t longest_run() const { return std::min(run_, layout_.blocks()); }
  std::int64_t expanded_code_bytes() const {
    if (has_plain_codes()) return 0;
    const std::int64_t steps = longest_run() * (layout_.blocks() ? layout_.block_first_step(1) : 0);
    return panels_ * round_up(steps, Planes::kGroup) * PackedLayout::kStepBytes;
  }
  std::int64_t expanded_parameters() const { return panels_ * longest_run() * PackedLayout::kPanelRows; }

  void expand_codes(BlockTileArguments& t, std::uint8_t* to) const {
    const std::int64_t last = t.end_block - 1;
    const std::int64_t steps =
        t.end_block > t.first_block
            ? (last - t.first_block) * t.block_steps + (t.end_block < t.blocks ? t.block_steps : t.last_block_steps)
            : 0;
    ExpandedCodes a = codes_;
    a.groups = ceil_div(steps, Planes::kGroup);
    a.from = t.codes;
    a.from_panel = panel_bytes_;
    a.to = to;
    a.to_panel = a.groups * Planes::kGroup * PackedLayout::kStepBytes;
    a.panels = t.panels;
    kernels_.rows->expand_codes(a);
    t.codes = to;
    t.panel_bytes = a.to_panel;
  }

  // Writes scales, or offsets after them.
  TileParameters expand_parameters(const BlockTileArguments& t, const EncodedParameters& from, float* to) const {
    if (from.type == ParameterType::none) return {};
    constexpr ExpandedParameters::Type kTypes[] = {
        ExpandedParameters::kF32,  ExpandedParameters::kF32,  ExpandedParameters::kF16, ExpandedParameters::kBf16,
        ExpandedParameters::kE8m0, ExpandedParameters::kE4m3, ExpandedParameters::kU4,  ExpandedParameters::kU6,
        ExpandedParameters::kU8,   ExpandedParameters::kZ4,   ExpandedParameters::kZ8};
    const WeightEncoding& encoding = weight_.encoding;
    const bool offsets = &from == &weight_.offsets;
    ExpandedParameters a{};
    a.from_panel = from.panel_bytes();
    a.from = from.data + t.first_panel * a.from_panel;
    a.super_panel = from.supers() * PackedLayout::kPanelRows;
    a.super = from.super + t.first_panel * a.super_panel;
    a.to = to;
    a.panels = t.panels;
    a.type = kTypes[static_cast<int>(from.type)];
    a.first_block = t.first_block;
    a.end_block = t.end_block;
    a.super_block = from.super_block;
    a.scales = static_cast<const float*>(t.scales.data);
    a.negated = offsets && is_integer(from.type);
    a.zero = static_cast<float>(!offsets ? encoding.scale_zero : is_zero_point(from.type) ? encoding.zero : 0);
    a.factor = encoding.tensor_scale;
    a.prefetch_distance = panels_ * a.from_panel;
    a.prefetch_supers = panels_ * a.super_panel;
    kernels_.rows->expand_parameters(a);
    return {to, false};
  }

  const EncodedWeight& weight_;
  const PackedLayout layout_;  // of the codes that tiles read
  const BlockKernels& kernels_;
  const std::int64_t panel_bytes_;
  const bool decodes_;
  const std::int64_t panels_;
  const bool reads_integers_;
  const std::int64_t run_;
  std::uint8_t table_[16];
  float nibbles_[16];
  ExpandedCodes codes_{};
  TileIntegers integers_{};
};

}  // namespace qcore
