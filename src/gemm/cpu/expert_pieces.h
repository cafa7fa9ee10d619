#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gemm/product.h"
#include "runtime/memory.h"

namespace qcore {

// A part of a product for one task: rows [begin, end) by columns [first_column, end_column).
struct TilePiece {
  std::int64_t begin, end, first_column, end_column;
};

// Returns the most rows of x that share a weight, which is what tiles are planned for.
inline std::int64_t most_rows(const BlockProduct& product) {
  if (!product.expert_ends) return product.results();
  std::int64_t most = 0;
  for (std::int64_t e = 0; e < product.experts; ++e)
    most = std::max(most, product.expert_ends[e] - product.first_row(e));
  return most;
}

// Cuts the products of all experts, `columns` each, into pieces of about the same number of tiles, at most about
// `wanted` of them. Columns are cut first, as in linear: a weight then goes through the caches once for all of its
// rows.
inline std::vector<TilePiece> expert_pieces(const BlockProduct& product, std::int64_t columns, std::int64_t tile_rows,
                                            std::int64_t wanted) {
  const auto tiles_of = [&](std::int64_t e) {
    return ceil_div(product.expert_ends[e] - product.first_row(e), tile_rows);
  };
  std::int64_t all = 0;
  for (std::int64_t e = 0; e < product.experts; ++e) all += tiles_of(e) * columns;
  const std::int64_t share = std::max<std::int64_t>(1, all / wanted);
  std::vector<TilePiece> pieces;
  for (std::int64_t e = 0; e < product.experts; ++e) {
    const std::int64_t tiles = tiles_of(e), first = product.first_row(e), end = product.expert_ends[e];
    if (!tiles) continue;
    const std::int64_t step = std::clamp<std::int64_t>(share / tiles, 1, columns);
    const std::int64_t row_parts = step > 1 ? 1 : ceil_div(tiles, share);
    for (std::int64_t column = 0; column < columns; column += step)
      for (std::int64_t part = 0; part < row_parts; ++part)
        pieces.push_back({first + part * tiles / row_parts * tile_rows,
                          std::min(end, first + (part + 1) * tiles / row_parts * tile_rows), e * columns + column,
                          e * columns + std::min(columns, column + step)});
  }
  return pieces;
}

}  // namespace qcore
