#include "formats/packed_weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "numerics/block_product.h"

namespace qcore {
namespace {

constexpr std::int64_t kRows = PackedLayout::kPanelRows;

// Adds each row's stored codes of `count` steps, two 16-bit sums in a word: no more than 128 steps fit.
void add_steps(const std::uint8_t* steps, std::int64_t count, int bits, std::int64_t (&sums)[kRows]) {
  constexpr std::uint32_t kEven = 0x00ff00ffu, kLow = 0x0f0f0f0fu;
  std::uint32_t words[kRows], parts[kRows] = {};
  for (std::int64_t step = 0; step < count; ++step) {
    std::memcpy(words, steps + step * PackedLayout::kStepBytes, sizeof(words));
    if (bits == 4)
      for (std::uint32_t& word : words) word = (word & kLow) + (word >> 4 & kLow);
    for (int row = 0; row < kRows; ++row) parts[row] += (words[row] & kEven) + (words[row] >> 8 & kEven);
  }
  for (int row = 0; row < kRows; ++row) sums[row] += (parts[row] & 0xffffu) + (parts[row] >> 16);
}

void add_encoded_sums(const PackedWeight& weight, float* sums) {
  const PackedLayout& layout = weight.layout;
  const BlockReader reader(weight);
  std::vector<std::int8_t> codes(static_cast<std::size_t>(layout.k));
  for (std::int64_t row = 0; row < layout.n; ++row)
    for (std::int64_t p = 0; p < layout.blocks(); ++p) {
      const std::int64_t length = layout.block_length(p);
      reader.read(row, p, 0, codes.data());
      sums[layout.parameter_index(row, p)] =
          numerics::block_weight_sum(std::accumulate(codes.begin(), codes.begin() + length, std::int64_t{0}), length,
                                     weight.scale(row, p), weight.offset(row, p));
    }
}

}  // namespace

bool PackedWeight::finds_zero_points() const {
  if (encoded || !offsets || layout.bits != 4) return false;
  const auto is_zero_point = [](float scale, float offset) {
    if (scale == 0.0f) return offset == 0.0f;
    if (!(std::fabs(scale) >= 0x1p-100f && std::fabs(scale) <= 0x1p100f)) return false;
    const float shift = std::nearbyint(offset / scale);  // 8 - z
    return shift >= -7.0f && shift <= 8.0f && numerics::fma_once(scale, -shift, offset) == 0.0f;
  };
  for (std::int64_t i = 0; i < layout.parameter_count(); ++i)
    if (!is_zero_point(scales[i], offsets[i])) return false;
  return true;
}

const float* PackedWeight::weight_sums() const {
  std::call_once(sums_once_, [this] {
    auto sums = std::make_unique<float[]>(layout.taps * layout.parameter_count());
    if (encoded) add_encoded_sums(*this, sums.get());
    for (std::int64_t tap = 0; tap < layout.taps && !encoded; ++tap)
      for (std::int64_t panel = 0; panel < layout.panels(); ++panel)
        for (std::int64_t p = 0; p < layout.blocks(); ++p) {
          const std::int64_t steps = layout.block_steps(p);
          const std::uint8_t* first =
              codes +
              ((panel * layout.taps + tap) * layout.steps() + layout.block_first_step(p)) * PackedLayout::kStepBytes;
          std::int64_t stored[kRows] = {};
          for (std::int64_t step = 0; step < steps; step += 128)
            add_steps(first + step * PackedLayout::kStepBytes, std::min<std::int64_t>(128, steps - step), layout.bits,
                      stored);
          // Padding is code 0, stored like every code with its shift.
          const std::int64_t shift = layout.zero_code() * steps * layout.step_k();
          for (std::int64_t row = panel * kRows; row < std::min(layout.n, (panel + 1) * kRows); ++row)
            sums[tap * layout.parameter_count() + layout.parameter_index(row, p)] = numerics::block_weight_sum(
                stored[row % kRows] - shift, layout.block_length(p), scale(row, p), offset(row, p));
        }
    sums_ = std::move(sums);
  });
  return sums_.get();
}

}  // namespace qcore
