#pragma once

#include <cstdint>
#include <cstring>

#include "numerics/portable.h"

// The eight tile registers of AMX, of up to 16 rows of 64 bytes each. Assembly, because the intrinsics of g++ 12 do not
// say that they read and write memory, so that the compiler may move them across stores to what they load.
namespace qcore {
namespace {

constexpr int kTileRows = 16, kTileBytes = 16 * 64;
constexpr int kAmxRows = 2 * kTileRows;  // of a tile, in two registers

// How the registers are divided: 0 to 3 are sums (register 2 * a + b of operands a and b), 4 and 5 rows of activations,
// 6 and 7 weights, a row of which has four bytes of k of each of 16 columns.
struct TileShape {
  std::uint8_t rows[2];  // of activations; 0 in the second if there are at most 16
  std::uint8_t k;        // in bytes: a multiple of 4, at most 64

  friend bool operator==(const TileShape& a, const TileShape& b) {
    return a.rows[0] == b.rows[0] && a.rows[1] == b.rows[1] && a.k == b.k;
  }
};

// With two planes, both registers of activations have the same rows, of which there are at most 16.
QCORE_NUMERIC TileShape tile_shape(int rows, int k, int planes = 1) {
  if (planes == 2)
    return {{static_cast<std::uint8_t>(rows), static_cast<std::uint8_t>(rows)}, static_cast<std::uint8_t>(k)};
  const int second = rows > kTileRows ? rows - kTileRows : 0;
  return {{static_cast<std::uint8_t>(rows - second), static_cast<std::uint8_t>(second)}, static_cast<std::uint8_t>(k)};
}

// The registers are the thread's, and are configured only where the shape changes: that clears all of them.
static thread_local TileShape configured_shape{};

[[maybe_unused]] static void configure_tiles(const TileShape& shape) {
  if (configured_shape == shape) return;
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } configuration;
  const auto set = [&](int tile, int rows, int row_bytes) {
    configuration.rows[tile] = static_cast<std::uint8_t>(rows);
    configuration.row_bytes[tile] = static_cast<std::uint16_t>(rows ? row_bytes : 0);
  };
  for (int a = 0; a < 2; ++a) {
    set(2 * a, shape.rows[a], 64);
    set(2 * a + 1, shape.rows[a], 64);
    set(4 + a, shape.rows[a], shape.k);
    set(6 + a, shape.k / 4, 64);
  }
  asm volatile("ldtilecfg %0" : : "m"(configuration) : "memory");
  configured_shape = shape;
}

// Returns the registers to their initial state, in which a switch of threads does not save them.
[[maybe_unused]] static void release_tiles() {
  if (configured_shape == TileShape{}) return;
  asm volatile("tilerelease");
  configured_shape = {};
}

template <int tile>
QCORE_NUMERIC void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}

template <int tile>
QCORE_NUMERIC void load_tile(const void* from, std::int64_t row_step) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(tile), "r"(from), "r"(row_step) : "memory");
}

template <int tile>
QCORE_NUMERIC void store_tile(void* to, std::int64_t row_step) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(tile), "r"(to), "r"(row_step) : "memory");
}

// Adds the products of signed weights with activations' bytes, which are signed too or not.
template <int sums, int activations, int weights, bool is_signed = true>
QCORE_NUMERIC void multiply_tiles() {
  if constexpr (is_signed)
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(activations), "i"(weights));
  else
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(activations), "i"(weights));
}

// Adds the products of weights with activations, both bf16, to sums of floats: of each pair of k one chain of fused
// multiply-adds for the even ones and one for the odd ones, from zero on; then both are added. Subnormal numbers are
// zeros, whether read or made.
template <int sums, int activations, int weights>
QCORE_NUMERIC void multiply_bfloat_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(activations), "i"(weights));
}

// 16 rows of activations, as a tile register loads them: they lie evenly, or are copied.
struct AmxRowGroup {
  const char* first;
  std::int64_t step;
  bool even;

  QCORE_INLINE void find(const char* const* rows, int count) {
    first = rows[0];
    step = count > 1 ? rows[1] - rows[0] : 64;
    even = true;
    for (int r = 2; r < count; ++r) even = even && rows[r] - rows[r - 1] == step;
  }
};

}  // namespace
}  // namespace qcore
