#pragma once

#include "gemm/cpu/vtable.h"
#include "simd/unroll.h"

// Tiles of products with per-block weights, for the vector set V: Rows rows of x by Panels panels of 16 columns.
namespace qcore {
namespace {

// The scales or offsets of one vector of columns.
template <class V>
QCORE_NUMERIC typename V::Float load_parameters(const TileParameters& from, std::int64_t at) {
  return from.half ? V::load_half(static_cast<const std::uint16_t*>(from.data) + at)
                   : V::load(static_cast<const float*>(from.data) + at);
}

// Where the scales and offsets of a panel's block p are.
QCORE_NUMERIC std::int64_t parameters_at(const BlockTileArguments& t, int panel, std::int64_t p) {
  return panel * t.parameters_panel + (p - t.parameters_begin) * PackedLayout::kPanelRows;
}

QCORE_NUMERIC void prefetch_parameters(const TileParameters& from, std::int64_t at) {
  __builtin_prefetch(static_cast<const char*>(from.data) + (from.half ? 2 : 4) * at, 0, 2);
}

// The totals of a tile, in registers.
template <class V, int Rows, int Vectors>
struct TileTotals {
  using Float = typename V::Float;

  // Begins with zeros, or with what the blocks before left in `out`.
  QCORE_NUMERIC void load(const BlockTileArguments& t, Float (&y)[Rows][Vectors]) {
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      repeat<Vectors>([&](int v)
                          QCORE_UNROLLED { y[r][v] = t.first_block == 0 ? V::set1(0.0f) : V::load(result(t, r, v)); });
    });
  }

  // Adds the bias and clamps, after the last block.
  QCORE_NUMERIC void finish(const BlockTileArguments& t, Float (&y)[Rows][Vectors]) {
    if (t.finishes && t.bias) {
      repeat<Vectors>([&](int v) QCORE_UNROLLED {
        const Float bias = V::load(t.bias + v * V::kLanes);
        repeat<Rows>([&](int r) QCORE_UNROLLED { y[r][v] = V::add(y[r][v], bias); });
      });
    }
    if (t.finishes && t.clamp) {
      const Float lo = V::set1(t.lo), hi = V::set1(t.hi);
      repeat<Rows>([&](int r) QCORE_UNROLLED {
        repeat<Vectors>([&](int v) QCORE_UNROLLED { y[r][v] = V::at_most(V::at_least(y[r][v], lo), hi); });
      });
    }
  }

  QCORE_NUMERIC void store(const BlockTileArguments& t, Float (&y)[Rows][Vectors]) {
    finish(t, y);
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      repeat<Vectors>([&](int v) QCORE_UNROLLED { V::store(result(t, r, v), y[r][v]); });
    });
  }

 private:
  QCORE_NUMERIC float* result(const BlockTileArguments& t, int r, int v) {
    return t.out + r * t.out_stride + v * V::kLanes;
  }
};

// Rows of x under one tap, and how far into them a tile is, in bytes.
template <int Rows>
struct TileRows {
  const char* row[Rows];
  std::int64_t at;

  template <class T>
  QCORE_INLINE const T* values(int r) const {
    return reinterpret_cast<const T*>(row[r] + at);
  }
  // Reads a parameter of block p, of as many blocks.
  template <class T>
  QCORE_INLINE T parameter(int r, PackedRows::Parameter which, std::int64_t blocks, std::int64_t p) const {
    T value;
    memcpy(&value, row[r] + (which * blocks + p) * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
};

// Goes through the taps and, in each, through a run of blocks. Block<Rows, Panels> says what a block adds:
//   V, kVectors, kStepBytes            the vector set; vectors of columns; what a step takes of a row
//   Block(arguments)
//   add(y, rows, codes, p, steps)      adds block p, whose stored codes begin at `codes`, to the totals y
template <class Block, int Rows>
QCORE_NUMERIC void add_blocks(const BlockTileArguments& t) {
  using V = typename Block::V;
  using Totals = TileTotals<V, Rows, Block::kVectors>;
  typename V::Float y[Rows][Block::kVectors];
  Totals::load(t, y);
  Block block(t);
  const std::int64_t first_step = t.first_block * t.block_steps;
  const std::uint8_t* codes = t.codes;
  const char* const* x = t.x;
  for (std::int64_t tap = 0; tap < t.layout->taps; ++tap, x += t.tap_stride) {
    TileRows<Rows> rows;
    repeat<Rows>([&](int r) QCORE_UNROLLED { rows.row[r] = x[r] + t.x_offset; });
    rows.at = t.codes_at + first_step * Block::kStepBytes;
    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      const std::int64_t steps = p + 1 < t.blocks ? t.block_steps : t.last_block_steps;
      block.add(y, rows, codes, p, steps);
      codes += steps * PackedLayout::kStepBytes;
      rows.at += steps * Block::kStepBytes;
    }
    block.next_tap();
  }
  Totals::store(t, y);
}

}  // namespace
}  // namespace qcore
