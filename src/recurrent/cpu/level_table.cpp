#include "recurrent/cpu/level_table.h"

#include <algorithm>

namespace qcore {
namespace {

// Computes a table's entry as the kernels do, in integers of 16 bits, so that every entry can be compared with it.
std::int32_t entry(const LevelTable& table, std::int32_t index) {
  const int at = std::min<int>(std::max(index - table.start, 0), table.span);
  const int segment = at >> table.shift, rest = (at << (16 - table.shift)) & 0xffff;
  const int line = (table.base[segment] + (rest * std::int64_t{table.rise[segment]} >> 16)) & 0xffff;
  const int level = line >> 8;
  return table.lowest + level + (at >= table.next[level]);
}

}  // namespace

std::optional<LevelTable> make_levels(const std::vector<std::int32_t>& codes) {
  const std::int32_t count = static_cast<std::int32_t>(codes.size()), lowest = codes.front();
  const std::int32_t levels = codes.back() - lowest;
  if (count > 65536 || levels < 0 || levels >= LevelTable::kLevels || !std::is_sorted(codes.begin(), codes.end()))
    return std::nullopt;
  // first[n]: the first index whose level is at least n.
  std::vector<std::int32_t> first(levels + 1);
  for (std::int32_t n = 0; n <= levels; ++n)
    first[n] = static_cast<std::int32_t>(std::lower_bound(codes.begin(), codes.end(), lowest + n) - codes.begin());
  LevelTable table{};
  table.lowest = static_cast<std::int16_t>(lowest);
  const std::int32_t start = levels ? first[1] - 1 : 0, span = levels ? first[levels] - start : 0;
  table.start = static_cast<std::uint16_t>(start);
  table.span = static_cast<std::uint16_t>(span);
  while (span >> table.shift >= LevelTable::kSegments) ++table.shift;
  for (std::int32_t n = 0; n < LevelTable::kLevels; ++n)
    table.next[n] = static_cast<std::uint16_t>(n < levels ? first[n + 1] - start : 65535);

  // Returns the unrounded function between two codes: it passes half a code at the first index of each code. A code has
  // 256 steps.
  const auto line = [&](std::int32_t at) {
    const std::int32_t index = std::min(start + at, start + span), level = codes[index] - lowest;
    if (level == 0) return 0;
    if (level == levels) return level * 256 - 128;
    const std::int32_t length = first[level + 1] - first[level];
    return level * 256 - 128 + (index - first[level]) * 256 / length;
  };
  for (std::int32_t i = 0; i <= span >> table.shift; ++i) {
    const std::int32_t from = line(i << table.shift), to = line((i + 1) << table.shift);
    table.base[i] = static_cast<std::uint16_t>(from);
    table.rise[i] = static_cast<std::uint16_t>(std::max(to - from, 0));
  }
  for (std::int32_t index = 0; index < count; ++index)
    if (entry(table, index) != codes[index]) return std::nullopt;
  return table;
}

}  // namespace qcore
