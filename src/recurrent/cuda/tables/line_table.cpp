// Compiled with the CUDA backend only.
#include "recurrent/cuda/tables/line_table.h"

#include <algorithm>
#include <optional>

#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr std::int64_t kUnit = std::int64_t{1} << kLineBits;

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

bool is_int32(std::int64_t value) { return value == static_cast<std::int32_t>(value); }

// A line whose integer parts are the codes, or nothing. There is one if its slope is right for each two entries.
std::optional<TableLine> line_through(const std::int32_t* codes, int count) {
  std::int64_t least = count > 1 ? -(std::int64_t{1} << 40) : 0, most = -least;
  for (int i = 0; i < count; ++i)
    for (int j = i + 1; j < count; ++j) {
      const std::int64_t rise = std::int64_t{codes[j]} - codes[i];
      most = std::min(most, floor_quotient((rise + 1) * kUnit - 1, j - i));
      least = std::max(least, -floor_quotient((1 - rise) * kUnit - 1, j - i));
    }
  if (least > most) return std::nullopt;
  const std::int64_t slope = least + (most - least) / 2;
  std::int64_t base = codes[0] * kUnit;
  for (int i = 1; i < count; ++i) base = std::max(base, codes[i] * kUnit - i * slope);
  for (int i = 0; i < count; ++i)
    if (!is_int32(base + i * slope) || !is_int32(i * slope) || (base + i * slope) >> kLineBits != codes[i])
      return std::nullopt;
  if (!is_int32(base) || !is_int32(slope)) return std::nullopt;
  return TableLine{static_cast<std::int32_t>(base), static_cast<std::int32_t>(slope)};
}

}  // namespace

LineTable make_lines(const std::vector<std::int32_t>& codes) {
  constexpr int kMostShift = 5;  // more entries on a line do not pay, and take long to try
  const auto count = static_cast<std::int64_t>(codes.size());
  LineTable table;
  for (table.shift = kMostShift; table.shift >= 0; --table.shift) {
    table.lines.clear();
    for (std::int64_t at = 0; at < count; at += std::int64_t{1} << table.shift) {
      const std::int64_t entries = std::min(count - at, std::int64_t{1} << table.shift);
      const std::optional<TableLine> line = line_through(codes.data() + at, static_cast<int>(entries));
      if (!line) break;
      table.lines.push_back(*line);
    }
    if (static_cast<std::int64_t>(table.lines.size()) == ceil_div(count, std::int64_t{1} << table.shift)) break;
  }
  return table;
}

}  // namespace qcore
